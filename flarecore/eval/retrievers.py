"""The retriever of an evaluation: built from the corpus once and kept, or an index of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flarecore.errors import ConfigError
from flarecore.eval.dataset import EvalData
from flarecore.retrieval.passage import Filter, Passage, Progress
from flarecore.validation import check_choice

if TYPE_CHECKING:
    from flarecore.retrieval import HybridRetriever
    from flarecore.retrieval.stored import StoredRetriever

__all__ = ["RETRIEVERS", "UnopenedRetriever", "index_name", "open_index", "open_retriever"]

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


class UnopenedRetriever:
    """Stands for a retriever until it is built, so that options can be checked before."""

    def search(
        self, queries: Sequence[str], k: int, filter: Filter | None = None
    ) -> list[list[Passage]]:
        """Raises ConfigError."""
        raise ConfigError("the evaluation's retriever is not open yet")


def index_name(path: str | os.PathLike[str]) -> str:
    """What settings call an index file: another file is another retriever.

    Raises
    ------
    IndexFileError
        Missing, or no index.
    """
    from flarecore.retrieval import index_info

    kind = index_info(path)["kind"]
    return f"{kind}, index {hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]}"


def open_index(
    path: str | os.PathLike[str], data: EvalData, *, encoder: str | None = None
) -> StoredRetriever | HybridRetriever:
    """An index that was made by ``flarecore index``, once it is known to be one of the corpus.

    Parameters
    ----------
    path : path
        The index file.
    data : EvalData
        Whose passages it must hold, all of them and no others.
    encoder : str, optional
        As for :func:`flarecore.retrieval.load_index`.

    Raises
    ------
    ConfigError
        It holds other passages.
    IndexFileError, UnsupportedError
        As from ``load_index``.
    """
    from flarecore.retrieval import HybridRetriever, load_index

    index = load_index(path, encoder)
    parts = index.retrievers if isinstance(index, HybridRetriever) else (index,)
    for part in parts:
        _check_passages(path, part.passages, data)  # type: ignore[attr-defined]
    return index


def _check_passages(
    path: str | os.PathLike[str], passages: Sequence[Passage], data: EvalData
) -> None:
    held, wanted = ({p.id: (p.title, p.text, p.metadata) for p in some}
                    for some in (passages, data.passages))
    if held == wanted:
        return
    other = [name for name in {**wanted, **held} if held.get(name) != wanted.get(name)]
    raise ConfigError(
        f"--index {path}: is no index of this corpus: it has {len(held)} passages, the corpus "
        f"{len(wanted)}, and passage {other[0]!r} is not the same in both; make it with "
        "'flarecore index CORPUS', or leave --index out")


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
