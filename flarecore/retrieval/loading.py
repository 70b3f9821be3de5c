"""Opens an index file of any kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flarecore.errors import IndexFileError
from flarecore.retrieval.bm25 import BM25Retriever
from flarecore.retrieval.exact import ExactRetriever
from flarecore.retrieval.hnsw import HnswRetriever
from flarecore.retrieval.hybrid import HybridRetriever
from flarecore.retrieval.index_io import IndexFile, read_index_file
from flarecore.retrieval.stored import StoredRetriever

if TYPE_CHECKING:
    from flarecore.retrieval.analysis import Analyser
    from flarecore.retrieval.index_sections import GivenEncoder

__all__ = ["load_index", "open_part"]


def load_index(
    path: str | os.PathLike[str], encoder: GivenEncoder = None, *,
    analyser: Analyser | Callable[[str], Sequence[str]] | None = None
) -> StoredRetriever | HybridRetriever:
    """The index that ``save`` of any retriever wrote; its header says which one.

    Parameters
    ----------
    path : path
    encoder : TextEncoder, str or path, optional
        The encoder the index was built with, or its name or folder, which is loaded quantised as it
        was; by its stored name if None. Not looked at if the index holds no vectors.
    analyser : Analyser or callable, optional
        The analyser the index was built with; needed only if it was one of the user's own.

    Returns
    -------
    HnswRetriever, ExactRetriever, BM25Retriever or HybridRetriever

    Raises
    ------
    IndexFileError
        Missing, damaged, hostile, of another version or an unknown kind, or built with another
        encoder or analyser.
    UnsupportedError
        A package that the index needs is not installed.
    """
    file = read_index_file(path)
    if file.header.get("kind") == "hybrid":
        return HybridRetriever.from_file(file, encoder, analyser)
    return open_part(file, encoder, analyser)


def open_part(
    file: IndexFile, encoder: GivenEncoder,
    analyser: Analyser | Callable[[str], Sequence[str]] | None
) -> StoredRetriever:
    """An index that is not made of others; raises what :func:`load_index` raises."""
    kind = file.header.get("kind")
    if kind == "hnsw":
        return HnswRetriever.from_file(file, encoder)
    if kind == "exact":
        return ExactRetriever.from_file(file, encoder)
    if kind == "bm25":
        return BM25Retriever.from_file(file, analyser)
    raise IndexFileError(
        f"{file.path}: holds an index of kind {kind!r}, this version knows bm25, exact, hnsw and "
        "hybrid; build the index again")
