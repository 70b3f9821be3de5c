"""Lexical retrieval in process: BM25, the retriever of the FLARE paper.

The weights of terms depend on all passages, so an addition computes all scores anew and puts the
result in place of the old in one step: a search sees the index before or after, never between, and
waits for nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from flarecore.errors import ConfigError
from flarecore.retrieval.analysis import Analyser, as_analyser
from flarecore.retrieval.bm25_file import BM25Parts, bm25_contents, parts_from_file
from flarecore.retrieval.bm25_terms import (
    BM25Params,
    TermScores,
    TermTable,
    analysed,
    checked_terms,
    need_bm25s,
    top_rows,
)
from flarecore.retrieval.filters import compile_filter
from flarecore.retrieval.index_io import IndexFile, read_index_file
from flarecore.retrieval.index_sections import IndexContents
from flarecore.retrieval.passage import Filter, Passage, Progress, check_search_arguments
from flarecore.retrieval.passage_table import PassageTable
from flarecore.retrieval.stored import StoredRetriever

__all__ = ["BM25Retriever"]


class BM25Retriever(StoredRetriever):
    """Passages and the terms in them. Made by :meth:`build` or :meth:`load`.

    Safe to share between threads: searches run together, also while another thread adds. The time
    of an ``add`` grows with all passages that are there, so add many at once.
    """

    def __init__(self, parts: BM25Parts) -> None:
        super().__init__()
        self._parts = parts
        # What searches use, replaced as a whole: an attribute is read and written in one step.
        self._scores = TermScores(parts.terms, parts.params)

    @classmethod
    def build(
        cls, passages: Iterable[Passage], *,
        analyser: Analyser | Callable[[str], Sequence[str]] | None = None,
        k1: float = 0.9, b: float = 0.4, title_in_text: bool = True,
        progress: Progress | None = None
    ) -> BM25Retriever:
        """An index of some passages.

        Parameters
        ----------
        passages : iterable of Passage
            Ids unique; may be empty.
        analyser : Analyser or callable, optional
            Makes terms of texts; see :mod:`flarecore.retrieval.analysis`. A function must have a
            name, by which the index file knows it.
        k1, b : float
            How much repeats of a term count (from 0) and how much a long passage is marked down (0
            to 1). The defaults are Anserini's, which suit short passages; Lucene's are 1.2, 0.75.
        title_in_text : bool
            Search in "title, newline, text" instead of the text alone.
        progress : callable, optional
            ``progress("analyse", done, total)``; what it raises is passed on and ends the work.

        Raises
        ------
        ConfigError
            An option is out of range or a passage cannot be stored.
        RetrievalError
            The analyser failed.
        UnsupportedError
            The package bm25s is not installed.
        """
        if not isinstance(title_in_text, bool):
            raise ConfigError(f"title_in_text must be a bool, got {title_in_text!r}")
        need_bm25s()
        retriever = cls(BM25Parts(
            PassageTable(), TermTable.empty(), as_analyser(analyser), BM25Params(k1, b),
            title_in_text))
        retriever.add(passages, progress=progress)
        return retriever

    @property
    def analyser(self) -> Analyser:
        """Makes terms of passages and queries."""
        return self._parts.analyser

    @property
    def passages(self) -> Sequence[Passage]:
        """The passages in the order they were added; do not change."""
        return self._parts.table.passages

    @contextmanager
    def staged_add(
        self, passages: Iterable[Passage], progress: Progress | None = None
    ) -> Iterator[Callable[[], None]]:
        """See ``StoredRetriever.staged_add``."""
        with self._writer:
            parts = self._parts
            new = parts.table.check_new(passages)
            found = analysed(parts.analyser, new, parts.title_in_text, progress)
            terms = parts.terms.extended(found)
            scores = TermScores(terms, parts.params) if new else self._scores

            def commit() -> None:
                parts.table.append(new)  # first: scores name rows that must be there
                parts.terms = terms
                self._scores = scores

            yield commit

    def search(
        self, queries: Sequence[str], k: int, filter: Filter | None = None
    ) -> list[list[Passage]]:
        """The passages with the highest BM25 score for each query.

        Parameters
        ----------
        queries : sequence of str
        k : int
            At least 1. Fewer come back when fewer passages meet the filter and share a term with
            the query; none if no passage has a word of it.
        filter : mapping, optional
            See :mod:`flarecore.retrieval.filters`. Terms are weighted over all passages, whatever
            the filter, so a filter leaves passages out and changes no score.

        Returns
        -------
        list of list of Passage
            Per query, best first, ``score`` as defined by ``TermScores``: above 0, without upper
            limit, comparable within a query only; equal scores in the order the passages were
            added.

        Raises
        ------
        ConfigError
            Unusable arguments or filter.
        RetrievalError
            The analyser failed.
        """
        texts = check_search_arguments(queries, k)
        compiled = compile_filter(filter)
        scores, parts = self._scores, self._parts
        allowed = parts.table.allowed(compiled, scores.num_passages)
        results: list[list[Passage]] = []
        for text in texts:
            terms = checked_terms(parts.analyser, parts.analyser.query_terms, text)
            found = scores.scores(terms)
            results.append([] if found is None else parts.table.results(
                *top_rows(found, int(k), allowed)))
        return results

    def contents(self) -> IndexContents:
        """See ``StoredRetriever.contents``."""
        return bm25_contents(self._parts)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str],
        analyser: Analyser | Callable[[str], Sequence[str]] | None = None
    ) -> BM25Retriever:
        """The index that :meth:`save` wrote.

        Parameters
        ----------
        path : path
        analyser : Analyser or callable, optional
            The analyser the index was built with; needed if it was not a ``TextAnalyser``.

        Raises
        ------
        IndexFileError
            Missing, damaged, hostile, of another version, or built with another analyser.
        UnsupportedError
            The package bm25s, or PyStemmer if the index needs it, is not installed.
        """
        return cls.from_file(read_index_file(path), analyser)

    @classmethod
    def from_file(
        cls, file: IndexFile,
        analyser: Analyser | Callable[[str], Sequence[str]] | None = None
    ) -> BM25Retriever:
        """As :meth:`load`, of a file that was read."""
        need_bm25s()
        return cls(parts_from_file(file, None if analyser is None else as_analyser(analyser)))
