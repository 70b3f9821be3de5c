"""The terms of all passages as numbers, and their BM25 scores by the library bm25s."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.errors import ConfigError, FlarecoreError, RetrievalError, UnsupportedError
from flarecore.retrieval.analysis import Analyser
from flarecore.retrieval.passage import Passage, Progress
from flarecore.retrieval.ranking import IndexArray, RankedRows
from flarecore.retrieval.store import searchable_text

__all__ = [
    "BM25Params",
    "TermScores",
    "TermTable",
    "analysed",
    "checked_terms",
    "need_bm25s",
    "top_rows",
]

TermArray = npt.NDArray[np.uint32]

_PASSAGES_PER_STEP = 256
_MAX_K1 = 1000.0


@dataclass(frozen=True)
class BM25Params:
    """The two constants of BM25.

    Parameters
    ----------
    k1 : float
        How slowly repeats of a term stop to count, from 0 (only presence counts).
    b : float
        How much a long passage is marked down, from 0 (not) to 1.
    """

    k1: float = 0.9
    b: float = 0.4

    def __post_init__(self) -> None:
        for name, limit in (("k1", _MAX_K1), ("b", 1.0)):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= limit:
                raise ConfigError(f"{name} must be a number from 0 to {limit:g}, got {value!r}")


@dataclass(frozen=True)
class TermTable:
    """Which terms stand in which passage; never changed.

    Parameters
    ----------
    number_of : dict of str to int
        The numbers from 0 on of the terms, in the order of their first occurrence.
    lengths : (num_passages,) uint32
        Terms of each passage, with repeats.
    numbers : (sum of lengths,) uint32
        The terms, passage by passage.
    """

    number_of: dict[str, int]
    lengths: TermArray
    numbers: TermArray

    @classmethod
    def empty(cls) -> TermTable:
        """Of no passages."""
        nothing = np.zeros(0, dtype=np.uint32)
        return cls({}, nothing, nothing)

    def extended(self, passages: Iterable[Sequence[str]]) -> TermTable:
        """A table with the terms of more passages."""
        number_of = dict(self.number_of)
        lengths: list[int] = []
        numbers: list[int] = []
        for terms in passages:
            lengths.append(len(terms))
            numbers += [number_of.setdefault(term, len(number_of)) for term in terms]
        return TermTable(
            number_of, np.concatenate([self.lengths, np.array(lengths, dtype=np.uint32)]),
            np.concatenate([self.numbers, np.array(numbers, dtype=np.uint32)]))

    def ends(self) -> IndexArray:
        """(num_passages,) int64, where each passage's terms end in `numbers`."""
        return np.cumsum(self.lengths, dtype=np.int64)

    def by_passage(self) -> list[list[int]]:
        """The numbers of each passage's terms."""
        numbers, begin, lists = self.numbers.tolist(), 0, []
        for end in self.ends().tolist():
            lists.append(numbers[begin:end])
            begin = end
        return lists


@dataclass
class _Corpus:
    """Term numbers and the vocabulary, as bm25s takes them."""

    ids: list[list[int]]
    vocab: dict[str, int]


class TermScores:
    """BM25 as Lucene computes it (Kamphuis et al., ECIR 2020), over all passages of a table.

    A passage's score is the sum over the query's terms, repeats included, of
    ``ln(1 + (N - n + 0.5) / (n + 0.5)) * f / (f + k1 * (1 - b + b * length / mean length))``:
    N passages, n of them with the term, f times in this one. All sums are in double.
    """

    def __init__(self, table: TermTable, params: BM25Params) -> None:
        self.num_passages = len(table.lengths)
        self._number_of = table.number_of
        self._library: Any = None
        if table.number_of:  # the library divides by the mean length
            bm25s = need_bm25s()
            self._library = bm25s.BM25(
                k1=float(params.k1), b=float(params.b), method="lucene", dtype="float64",
                backend="numpy", csc_backend="numpy")
            self._library.index(
                _Corpus(table.by_passage(), table.number_of), create_empty_token=False,
                show_progress=False)

    def scores(self, terms: Sequence[str]) -> npt.NDArray[np.float64] | None:
        """(num_passages,) float64, 0 without any of the terms; None if no passage has one."""
        known = [number for term in terms if (number := self._number_of.get(term)) is not None]
        if not known:
            return None
        # In one order, so that equal passages get equal sums whatever the order of the words.
        scores: npt.NDArray[np.float64] = self._library.get_scores_from_ids(sorted(known))
        return scores


def need_bm25s() -> Any:
    """The library.

    Raises
    ------
    UnsupportedError
        Not installed.
    """
    try:
        import bm25s
    except ImportError as error:
        raise UnsupportedError(
            "BM25 needs the package bm25s, which is not installed: pip install "
            "'flarecore[bm25]'") from error
    return bm25s


def analysed(
    analyser: Analyser, passages: Sequence[Passage], title_in_text: bool,
    progress: Progress | None = None
) -> list[Sequence[str]]:
    """The terms of some passages.

    Raises
    ------
    RetrievalError
        The analyser raised (the cause is chained) or returned something else than terms.
    """
    found = []
    for number, passage in enumerate(passages, start=1):
        found.append(checked_terms(
            analyser, analyser.passage_terms, searchable_text(passage, title_in_text)))
        is_step = number % _PASSAGES_PER_STEP == 0 or number == len(passages)
        if progress is not None and is_step:
            progress("analyse", number, len(passages))
    return found


def checked_terms(analyser: Analyser, function: Any, text: str) -> Sequence[str]:
    """What a method of an analyser returned, once it is known to be terms."""
    try:
        terms = function(text)
    except FlarecoreError:
        raise
    except Exception as error:
        raise RetrievalError(f"analyser {analyser.name!r} failed: {error}") from error
    if isinstance(terms, (str, bytes)) or not isinstance(terms, Sequence) or not all(
            isinstance(term, str) and term for term in terms):
        raise RetrievalError(
            f"analyser {analyser.name!r} must return a list of non-empty strings, got "
            f"{terms!r:.100}")
    return terms


def top_rows(
    scores: npt.NDArray[np.float64], k: int, allowed: IndexArray | None
) -> RankedRows:
    """The best `k` of the rows with a score above 0, best first; equal scores by row number.

    Parameters
    ----------
    scores : (n,) float64
    k : int
    allowed : (m,) int64, optional
        The rows to choose from, ascending; all if None.
    """
    rows = np.flatnonzero(scores > 0) if allowed is None else allowed[scores[allowed] > 0]
    found = scores[rows]
    if k < len(rows):
        keep = found >= np.partition(found, len(rows) - k)[len(rows) - k]
        rows, found = rows[keep], found[keep]
    order = np.argsort(-found, kind="stable")[:k]
    return rows[order], found[order]
