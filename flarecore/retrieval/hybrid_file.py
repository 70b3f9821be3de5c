"""What an index file of :class:`HybridRetriever` holds, and how its parts are checked.

The header lists the parts in order, each with the header of its own kind and its weight. A part's
sections carry its number and a dot before their names. Passages that are the same in all parts
stand once, in the section ``passages``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from flarecore.errors import ConfigError, IndexFileError
from flarecore.retrieval.index_io import IndexFile
from flarecore.retrieval.index_sections import (
    MAX_COUNT,
    GivenEncoder,
    IndexContents,
    check_kind,
    passage_lines,
    read_passages_section,
)

if TYPE_CHECKING:
    from flarecore.retrieval.analysis import Analyser
    from flarecore.retrieval.stored import StoredRetriever

__all__ = ["StoredParts", "hybrid_contents", "parts_from_file"]

_KIND = "hybrid"
_PART_KINDS = ("bm25", "exact", "hnsw")
_MAX_PARTS = 64
_Hybrid = TypeVar("_Hybrid")


@dataclass
class StoredParts:
    """Everything a hybrid retriever consists of."""

    retrievers: Sequence[StoredRetriever]
    weights: Sequence[float]
    rank_constant: float
    depth: int


def hybrid_contents(parts: StoredParts) -> IndexContents:
    """What an index file of these parts holds. The caller keeps others from adding."""
    first = parts.retrievers[0].passages
    share = all(list(r.passages) == list(first) for r in parts.retrievers[1:])
    sections: dict[str, Any] = {"passages": passage_lines(first)} if share else {}
    headers = []
    for number, (retriever, weight) in enumerate(
            zip(parts.retrievers, parts.weights, strict=True)):
        contents = retriever.contents()
        headers.append({"weight": weight, "header": contents.header})
        sections.update((f"{number}.{name}", chunks) for name, chunks in contents.sections.items()
                        if name != "passages" or not share)
    header = {
        "kind": _KIND,
        "count": len({p.id for r in parts.retrievers for p in r.passages}),
        "shared_passages": share,
        "rank_constant": parts.rank_constant,
        "depth": parts.depth,
        "parts": headers,
    }
    return IndexContents(header, sections)


def parts_from_file(
    file: IndexFile, encoder: GivenEncoder,
    analyser: Analyser | Callable[[str], Sequence[str]] | None,
    make: Callable[[StoredParts], _Hybrid]
) -> _Hybrid:
    """What `make` makes of the checked parts of an index file; see ``HybridRetriever.load``."""
    from flarecore.retrieval.loading import open_part

    check_kind(file, _KIND)
    share = file.header.get("shared_passages")
    count = file.integer("count", 0, MAX_COUNT)
    passages = list(read_passages_section(file, count)) if share is True else None
    retrievers: list[StoredRetriever] = []
    weights: list[Any] = []
    for number, entry in enumerate(_entries(file)):
        part = file.part(entry["header"], f"{number}.")
        part.passages = passages
        retrievers.append(open_part(part, encoder, analyser))
        weights.append(entry.get("weight"))
    rank_constant: Any = file.header.get("rank_constant")
    try:
        return make(StoredParts(
            retrievers, weights, rank_constant, file.integer("depth", 1, 1 << 20)))
    except ConfigError as error:
        raise IndexFileError(f"{file.path}: {error}") from error


def _entries(file: IndexFile) -> list[dict[str, Any]]:
    entries = file.header.get("parts")
    if not isinstance(entries, list) or not 1 <= len(entries) <= _MAX_PARTS:
        raise IndexFileError(f"{file.path}: header field 'parts' must list 1 to {_MAX_PARTS} parts")
    for number, entry in enumerate(entries):
        header = entry.get("header") if isinstance(entry, dict) else None
        if not isinstance(header, dict) or header.get("kind") not in _PART_KINDS:
            raise IndexFileError(
                f"{file.path}: part {number} must have a header of a kind among "
                f"{', '.join(_PART_KINDS)}")
    return entries
