"""Several retrievers as one: their rankings are fused by reciprocal rank.

Words find names and numbers, vectors find meaning; ranks need no common scale of scores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from flarecore.errors import UnsupportedError
from flarecore.retrieval.fusion import fuse
from flarecore.retrieval.hybrid_file import StoredParts, hybrid_contents, parts_from_file
from flarecore.retrieval.hybrid_parts import (
    asearched,
    check_retrievers,
    check_weights,
    positive,
    searched,
)
from flarecore.retrieval.index_io import IndexFile, read_index_file, write_index_file
from flarecore.retrieval.passage import (
    Filter,
    Passage,
    Progress,
    Retriever,
    TextEncoder,
    check_search_arguments,
)
from flarecore.retrieval.store import int_in
from flarecore.retrieval.stored import StoredRetriever

if TYPE_CHECKING:
    import os

    from flarecore.retrieval.analysis import Analyser
    from flarecore.retrieval.index_sections import GivenEncoder

__all__ = ["HybridRetriever"]

_MAX_DEPTH = 1 << 20


class HybridRetriever:
    """Searches all its retrievers and fuses what they find.

    Safe to share between threads if its retrievers are.

    Parameters
    ----------
    retrievers : sequence of Retriever
        At least one, each once. They may hold the same passages or different ones; a passage that
        several return is recognised by its id.
    weights : sequence of float, optional
        What each retriever counts, above 0; 1 for all if None.
    rank_constant : float
        The constant k of reciprocal rank fusion, 60 in the paper.
    depth : int
        How many passages each retriever is asked for, or the search's own k if that is more.

    Raises
    ------
    ConfigError
        No retriever, one that cannot search or that comes twice, or an option out of range.
    """

    def __init__(
        self, retrievers: Sequence[Retriever], *, weights: Sequence[float] | None = None,
        rank_constant: float = 60.0, depth: int = 100
    ) -> None:
        self._retrievers = check_retrievers(retrievers)
        self._weights = check_weights(weights, len(self._retrievers))
        self._rank_constant = positive("rank_constant", rank_constant)
        self._depth = int_in("depth", depth, 1, _MAX_DEPTH)

    @classmethod
    def build(
        cls, passages: Iterable[Passage], encoder: TextEncoder, *,
        analyser: Analyser | Callable[[str], Sequence[str]] | None = None,
        title_in_text: bool = True, weights: Sequence[float] | None = None,
        rank_constant: float = 60.0, depth: int = 100, progress: Progress | None = None
    ) -> HybridRetriever:
        """BM25 and HNSW, in this order, over the same passages.

        For other options of the two build them yourself and give them to the constructor.

        Parameters
        ----------
        passages : iterable of Passage
        encoder, analyser, title_in_text, progress
            As of ``HnswRetriever.build`` and ``BM25Retriever.build``.
        weights, rank_constant, depth
            As of the constructor.

        Raises
        ------
        ConfigError, RetrievalError, UnsupportedError
            As those.
        """
        from flarecore.retrieval.bm25 import BM25Retriever
        from flarecore.retrieval.hnsw import HnswRetriever

        hybrid = cls(
            [BM25Retriever.build([], analyser=analyser, title_in_text=title_in_text),
             HnswRetriever.build([], encoder, title_in_text=title_in_text)],
            weights=weights, rank_constant=rank_constant, depth=depth)
        hybrid.add(passages, progress=progress)
        return hybrid

    @property
    def retrievers(self) -> tuple[Retriever, ...]:
        """The retrievers in the order they were given."""
        return self._retrievers

    def __len__(self) -> int:
        """How many passages all retrievers hold together, each id once.

        Raises
        ------
        UnsupportedError
            A retriever does not say which passages it holds.
        """
        return len({p.id for retriever in self._stored("len()") for p in retriever.passages})

    def check_filter(self, filter: Filter | None) -> None:
        """Raises ConfigError for a filter that one of the retrievers would refuse."""
        for retriever in self._retrievers:
            check = getattr(retriever, "check_filter", None)
            if check is not None:
                check(filter)

    def search(
        self, queries: Sequence[str], k: int, filter: Filter | None = None
    ) -> list[list[Passage]]:
        """The passages that stand high in the rankings of all retrievers.

        Parameters
        ----------
        queries : sequence of str
        k : int
            At least 1. Fewer come back when the retrievers found fewer.
        filter : mapping, optional
            Given to every retriever.

        Returns
        -------
        list of list of Passage
            Per query, best first, ``score`` as defined by :func:`flarecore.retrieval.fusion.fuse`:
            above 0, at most ``sum(weights) / (rank_constant + 1)``.

        Raises
        ------
        ConfigError
            Unusable arguments or filter.
        RetrievalError
            A retriever failed or broke the protocol (the cause is chained), or two hold different
            passages under one id.
        """
        texts = check_search_arguments(queries, k)
        depth = max(int(k), self._depth)
        return self._fused(texts, int(k), [
            searched(position, retriever, texts, depth, filter)
            for position, retriever in enumerate(self._retrievers)])

    async def asearch(
        self, queries: Sequence[str], k: int, filter: Filter | None = None
    ) -> list[list[Passage]]:
        """As :meth:`search`, with all retrievers at the same time.

        Awaits a retriever's own ``asearch``; one without is searched on a thread.
        """
        texts = check_search_arguments(queries, k)
        depth = max(int(k), self._depth)
        tasks = [asyncio.ensure_future(asearched(position, retriever, texts, depth, filter))
                 for position, retriever in enumerate(self._retrievers)]
        try:
            return self._fused(texts, int(k), await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()  # those that another's failure left behind

    def _fused(
        self, texts: list[str], k: int, found: Sequence[list[list[Passage]]]
    ) -> list[list[Passage]]:
        return [fuse([lists[i] for lists in found], self._weights, self._rank_constant, k)
                for i in range(len(texts))]

    def add(self, passages: Iterable[Passage], *, progress: Progress | None = None) -> None:
        """Adds passages to all retrievers; a failed call adds none. Searches go on meanwhile.

        Raises
        ------
        UnsupportedError
            A retriever cannot be added to from here.
        ConfigError, RetrievalError
            As ``add`` of the retrievers.
        """
        retrievers = self._stored("add")
        new = list(passages)
        with ExitStack() as stack:
            commits = {id(r): stack.enter_context(r.staged_add(new, progress))
                       for r in _lock_order(retrievers)}
            # What `progress` raises after the passages are in must not keep them out of the rest.
            with ExitStack() as all_of_them:
                for retriever in reversed(retrievers):
                    all_of_them.callback(commits[id(retriever)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all retrievers to one file, in one step: a crash leaves the old or the new one.

        Passages that all retrievers hold alike are written once. Waits for a running ``add``.

        Raises
        ------
        UnsupportedError
            A retriever is not one of BM25, HNSW and exact search.
        IndexFileError
            The file cannot be written.
        """
        retrievers = self._stored("save")
        with _all_frozen(retrievers):
            contents = hybrid_contents(
                StoredParts(retrievers, self._weights, self._rank_constant, self._depth))
            write_index_file(path, contents.header, contents.sections)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], encoder: GivenEncoder = None, *,
        analyser: Analyser | Callable[[str], Sequence[str]] | None = None
    ) -> HybridRetriever:
        """The index that :meth:`save` wrote.

        Parameters
        ----------
        path : path
        encoder, analyser : optional
            As of ``HnswRetriever.load`` and ``BM25Retriever.load``.

        Raises
        ------
        IndexFileError
            Missing, damaged, hostile, of another version, or built with another encoder or
            analyser.
        UnsupportedError
            A package that the index needs is not installed.
        """
        return cls.from_file(read_index_file(path), encoder, analyser)

    @classmethod
    def from_file(
        cls, file: IndexFile, encoder: GivenEncoder = None,
        analyser: Analyser | Callable[[str], Sequence[str]] | None = None
    ) -> HybridRetriever:
        """As :meth:`load`, of a file that was read."""
        return parts_from_file(
            file, encoder, analyser, lambda parts: cls(
                parts.retrievers, weights=parts.weights, rank_constant=parts.rank_constant,
                depth=parts.depth))

    def _stored(self, what: str) -> list[StoredRetriever]:
        stored = []
        for position, retriever in enumerate(self._retrievers):
            if not isinstance(retriever, StoredRetriever):
                raise UnsupportedError(
                    f"hybrid: {what} needs retrievers of flarecore (BM25, HNSW, exact), retriever "
                    f"{position} is a {type(retriever).__name__}; use its own methods")
            stored.append(retriever)
        return stored


def _lock_order(retrievers: list[StoredRetriever]) -> list[StoredRetriever]:
    """One order for all hybrids that share retrievers, or two of them might wait for each other."""
    return sorted(retrievers, key=id)


@contextmanager
def _all_frozen(retrievers: list[StoredRetriever]) -> Iterator[None]:
    with ExitStack() as stack:
        for retriever in _lock_order(retrievers):
            stack.enter_context(retriever.frozen())
        yield
