"""The retriever of an evaluation, built from the corpus once and kept beside the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flarecore.eval.dataset import EvalData
from flarecore.retrieval.passage import Progress, Retriever
from flarecore.validation import check_choice

__all__ = ["RETRIEVERS", "open_retriever"]

RETRIEVERS = ("hnsw", "exact")


def open_retriever(
    kind: str, data: EvalData, folder: Path, *, encoder: str = "minilm-l6-v2",
    threads: int | None = None, progress: Progress | None = None,
) -> Retriever:
    """A retriever over the passages.

    Parameters
    ----------
    kind : str
        One of `RETRIEVERS`.
    data : EvalData
        Whose passages.
    folder : Path
        Where the index is kept; its name carries the corpus's checksum, so that another corpus
        never meets an old index.
    encoder, threads : str, int
        For dense retrievers.
    progress : callable, optional
        As for ``HnswRetriever.build``.

    Raises
    ------
    ConfigError
        Unknown kind.
    IndexFileError
        The kept index is damaged.
    """
    check_choice("--retriever", kind, RETRIEVERS)
    from flarecore.retrieval.encoder import SentenceEncoder

    if kind == "exact":
        from flarecore.retrieval.exact import ExactRetriever

        return ExactRetriever(
            SentenceEncoder.load(encoder, threads=threads), data.passages, progress=progress)
    from flarecore.retrieval.hnsw import HnswRetriever

    file = folder / f"{kind}-{Path(encoder).name}-{data.corpus_sha256[:12]}.index"
    if file.exists():
        return HnswRetriever.load(file)
    built: Any = HnswRetriever.build(
        data.passages, SentenceEncoder.load(encoder, threads=threads), progress=progress)
    folder.mkdir(parents=True, exist_ok=True)
    built.save(file)
    return built  # type: ignore[no-any-return]
