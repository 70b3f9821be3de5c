"""Dense retrieval in process: HNSW over a large collection, exact search where that is better.

The vectors are the truth, the graph only an accelerator. Exact search answers when few passages
are in question (a small index, a strong filter), when the graph cannot reach enough of them, and
for the rows the graph does not hold yet, so that a passage is found as soon as ``add`` has stored
it. Whatever found a passage, its score and rank come from :mod:`flarecore.retrieval.ranking`.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from flarecore.retrieval.filters import compile_filter
from flarecore.retrieval.graph import GraphParams, HnswGraph
from flarecore.retrieval.hnsw_file import IndexParts, hnsw_contents, parts_from_file
from flarecore.retrieval.index_io import IndexFile, read_index_file
from flarecore.retrieval.index_sections import GivenEncoder, IndexContents
from flarecore.retrieval.locks import ReadWriteLock
from flarecore.retrieval.passage import (
    Filter,
    Passage,
    Progress,
    TextEncoder,
    check_search_arguments,
    check_text_encoder,
)
from flarecore.retrieval.ranking import (
    FloatArray,
    IndexArray,
    RankedRows,
    exact_top_k,
    rank_candidates,
)
from flarecore.retrieval.store import PassageStore, StoreOptions, embed, embed_passages, int_in
from flarecore.retrieval.stored import StoredRetriever

__all__ = ["HnswRetriever", "SearchStats"]

_INSERT_ROWS = 32  # rows per write lock: a search waits for at most these
_EXACT_FRACTION = 0.1  # below this share of passing rows the graph would mostly find others
_SPARE_CANDIDATES = 8  # beyond k, so that equal scores at the end are more likely all seen


@dataclass
class SearchStats:
    """How many queries went which way since the retriever was made."""

    num_graph: int = 0
    num_exact: int = 0


class HnswRetriever(StoredRetriever):
    """Passages, their vectors and an HNSW graph. Made by :meth:`build` or :meth:`load`.

    Safe to share between threads: searches run together, also while another thread adds.
    Insertion is single-threaded and seeded, so the same sequence of calls gives the same graph,
    results and file.
    """

    def __init__(self, parts: IndexParts) -> None:
        super().__init__()
        self._parts = parts
        self._lock = ReadWriteLock()  # passages and graph: _parts
        self._stats = SearchStats()
        self._stats_lock = threading.Lock()

    @classmethod
    def build(
        cls, passages: Iterable[Passage], encoder: TextEncoder, *, m: int = 16,
        ef_construction: int = 200, ef_search: int = 64, seed: int = 0,
        title_in_text: bool = True, batch_size: int = 64, exact_below: int = 2000,
        progress: Progress | None = None
    ) -> HnswRetriever:
        """An index of some passages.

        Parameters
        ----------
        passages : iterable of Passage
            Ids unique; may be empty.
        encoder : TextEncoder
            For passages and queries alike.
        m, ef_construction, ef_search : int
            The graph's links per element and the candidates kept while building and searching
            (M, efConstruction and ef of arXiv 1603.09320).
        seed : int
            Of the random levels.
        title_in_text : bool
            Embed "title, newline, text" instead of the text alone.
        batch_size : int
            Texts per call of the encoder.
        exact_below : int
            With fewer passages in question than this, search is exact and needs no graph.
        progress : callable, optional
            ``progress(stage, done, total)``, stages "embed" and "graph"; what it raises is passed
            on and ends the work.

        Raises
        ------
        ConfigError
            An option is out of range or a passage cannot be stored.
        RetrievalError
            The encoder failed.
        """
        check_text_encoder(encoder)
        params = GraphParams(m, ef_construction, ef_search, seed)
        options = StoreOptions(title_in_text=title_in_text, batch_size=batch_size)
        int_in("exact_below", exact_below, 0, 1 << 31)
        retriever = cls(IndexParts(
            encoder, PassageStore(encoder.dim), options, params, exact_below, graph=None))
        retriever.add(passages, progress=progress)
        return retriever

    @property
    def encoder(self) -> TextEncoder:
        """The encoder of passages and queries."""
        return self._parts.encoder

    @property
    def stats(self) -> SearchStats:
        """A copy of the counters: which queries the graph answered."""
        with self._stats_lock:
            return SearchStats(self._stats.num_graph, self._stats.num_exact)

    @property
    def passages(self) -> Sequence[Passage]:
        """The passages in the order they were added; do not change."""
        return self._parts.store.passages

    @contextmanager
    def staged_add(
        self, passages: Iterable[Passage], progress: Progress | None = None
    ) -> Iterator[Callable[[], None]]:
        """See ``StoredRetriever.staged_add``.

        From the stage "graph" on the passages are in: if `progress` raises then, the graph is
        finished by the next ``add``, and until then the missing rows are searched exactly.
        """
        with self._writer:
            new = self._parts.store.check_new(passages)
            vectors = embed_passages(self._parts.encoder, new, self._parts.options, progress)

            def commit() -> None:
                with self._lock.write():
                    self._parts.store.append_embedded(new, vectors)
                self._grow_graph(progress)

            yield commit

    def _grow_graph(self, progress: Progress | None) -> None:
        """Lets the graph catch up with the vectors; may stop anywhere and go on later."""
        parts = self._parts
        vectors, total = parts.store.vectors, len(parts.store)
        if parts.graph is None and total < max(parts.exact_below, 1):
            return
        graph = parts.graph or HnswGraph(parts.store.dim, parts.params)
        begin = graph.num_rows
        while begin < total:
            end = min(begin + _INSERT_ROWS, total)
            with self._lock.write():
                try:
                    graph.insert(vectors[begin:end])
                except (MemoryError, RuntimeError) as error:
                    # Half an insertion may be in it. Searches stay right without any graph.
                    parts.graph = None
                    warnings.warn(
                        f"the HNSW graph could not grow to {total} passages ({error}); searches "
                        "are exact until the next add", RuntimeWarning, stacklevel=4)
                    return
                parts.graph = graph
            begin = end
            if progress is not None:
                progress("graph", end, total)

    def search(
        self, queries: Sequence[str], k: int, filter: Filter | None = None
    ) -> list[list[Passage]]:
        """The passages most similar to each query.

        Parameters
        ----------
        queries : sequence of str
        k : int
            At least 1. Fewer come back only when fewer passages meet the filter.
        filter : mapping, optional
            See :mod:`flarecore.retrieval.filters`. Tested before the search, so it never costs
            results.

        Returns
        -------
        list of list of Passage
            Per query, best first, ``score`` the cosine similarity; equal scores in the order the
            passages were added.

        Raises
        ------
        ConfigError
            Unusable arguments or filter.
        RetrievalError
            The encoder failed.
        """
        texts = check_search_arguments(queries, k)
        compiled = compile_filter(filter)
        store = self._parts.store
        vectors = embed(self._parts.encoder, texts, self._parts.options.batch_size)
        with self._lock.read():
            found = self._rank(vectors, int(k), store.allowed(compiled))
            return [store.results(rows, scores.tolist()) for rows, scores in found]

    def _rank(
        self, queries: FloatArray, k: int, allowed: IndexArray | None
    ) -> list[RankedRows]:
        table = self._parts.store.vectors
        num_rows = len(table)
        num_allowed = num_rows if allowed is None else len(allowed)
        num_candidates = min(k, num_rows) + _SPARE_CANDIDATES
        if num_allowed < num_rows:
            # On average this many of all rows hold half as many again as are needed.
            num_candidates = int(1.5 * num_candidates * num_rows / max(num_allowed, 1))
        use_exact = (num_allowed < self._parts.exact_below or num_allowed <= 4 * num_candidates
                     or num_allowed < _EXACT_FRACTION * num_rows)
        graph, near = self._parts.graph, None
        num_in_graph = 0 if graph is None else graph.num_rows
        if graph is not None and num_in_graph >= num_candidates and not use_exact:
            near = graph.query(queries, num_candidates)
        if near is None:
            self._count(num_exact=len(queries))
            return exact_top_k(table, queries, k, allowed)
        tail = None
        if num_in_graph < num_rows:
            tail = (np.arange(num_in_graph, num_rows, dtype=np.int64) if allowed is None
                    else allowed[np.searchsorted(allowed, num_in_graph):])
        return [self._choose(query, rows, tail, k, allowed)
                for query, rows in zip(queries, near, strict=True)]

    def _choose(
        self, query: FloatArray, near: IndexArray, tail: IndexArray | None, k: int,
        allowed: IndexArray | None
    ) -> RankedRows:
        """The best of what the graph found and of `tail`, the rows it does not hold yet."""
        table = self._parts.store.vectors
        if allowed is not None:
            near = near[np.isin(near, allowed, assume_unique=True)]
        if len(near) < k:
            self._count(num_exact=1)
            return exact_top_k(table, query[None], k, allowed)[0]
        self._count(num_graph=1)
        if tail is not None and len(tail):
            near = np.concatenate([near, exact_top_k(table, query[None], k, tail)[0][0]])
        return rank_candidates(table, query, near, k)

    def _count(self, num_graph: int = 0, num_exact: int = 0) -> None:
        with self._stats_lock:
            self._stats.num_graph += num_graph
            self._stats.num_exact += num_exact

    def contents(self) -> IndexContents:
        """See ``StoredRetriever.contents``."""
        return hnsw_contents(self._parts)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], encoder: GivenEncoder = None, *,
        ef_search: int | None = None
    ) -> HnswRetriever:
        """The index that :meth:`save` wrote.

        Parameters
        ----------
        path : path
        encoder : TextEncoder, str or path, optional
            The encoder the index was built with, or its name or folder, which is loaded quantised
            as it was; by its stored name if None.
        ef_search : int, optional
            Instead of the stored value.

        Raises
        ------
        IndexFileError
            Missing, damaged, hostile, of another version, or built with another encoder.
        ConfigError
            `ef_search` is out of range.
        """
        if ef_search is not None:
            int_in("ef_search", ef_search, 1, 1 << 16)
        return cls.from_file(read_index_file(path), encoder, ef_search)

    @classmethod
    def from_file(
        cls, file: IndexFile, encoder: GivenEncoder, ef_search: int | None = None
    ) -> HnswRetriever:
        """As :meth:`load`, of a file that was read."""
        retriever = cls(parts_from_file(file, encoder, ef_search))
        retriever._grow_graph(None)
        return retriever

