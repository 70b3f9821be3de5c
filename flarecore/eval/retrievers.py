"""The retriever of an evaluation, built from the corpus once and kept beside the answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flarecore.eval.dataset import EvalData
from flarecore.retrieval.passage import Progress
from flarecore.validation import check_choice

if TYPE_CHECKING:
    from flarecore.retrieval import HybridRetriever
    from flarecore.retrieval.stored import StoredRetriever

__all__ = ["RETRIEVERS", "open_retriever"]

RETRIEVERS = ("bm25", "hnsw", "exact", "hybrid")


def open_retriever(
    kind: str, data: EvalData, folder: Path, *, encoder: str = "minilm-l6-v2",
    threads: int | None = None, progress: Progress | None = None,
) -> StoredRetriever | HybridRetriever:
    """A retriever over the passages.

    Parameters
    ----------
    kind : {"bm25", "hnsw", "exact", "hybrid"}
        BM25 and the dense ones have their defaults; ``hybrid`` fuses BM25 and HNSW.
    data : EvalData
        Whose passages.
    folder : Path
        Where the index is kept; its name carries the corpus's checksum, so that another corpus
        never meets an old index.
    encoder, threads : str, int
        For dense retrievers.
    progress : callable, optional
        As for the retrievers' ``add``.

    Raises
    ------
    ConfigError
        Unknown kind.
    IndexFileError
        The kept index is damaged.
    UnsupportedError
        A package that it needs is not installed.
    """
    check_choice("--retriever", kind, RETRIEVERS)
    from flarecore.retrieval import load_index

    by = "" if kind == "bm25" else f"-{Path(encoder).name}"
    file = folder / f"{kind}{by}-{data.corpus_sha256[:16]}.index"
    if file.exists():
        return load_index(file)
    index = _empty(kind, encoder, threads)
    index.add(data.passages, progress=progress)
    folder.mkdir(parents=True, exist_ok=True)
    index.save(file)
    return index


def _empty(
    kind: str, encoder: str, threads: int | None
) -> StoredRetriever | HybridRetriever:
    from flarecore.retrieval import (
        BM25Retriever,
        ExactRetriever,
        HnswRetriever,
        HybridRetriever,
        SentenceEncoder,
    )

    if kind == "bm25":
        return BM25Retriever.build([])
    dense = SentenceEncoder.load(encoder, threads=threads)
    if kind == "exact":
        return ExactRetriever(dense)
    if kind == "hnsw":
        return HnswRetriever.build([], dense)
    return HybridRetriever.build([], dense)
