"""Filters over whole columns: each field's values stored once, rows as codes into them.

A column is built when a filter first names its field and follows the passages as they grow. A
comparison then runs over the distinct values only and is spread over the rows by numpy.
"""

from __future__ import annotations

import threading
import warnings
from array import array
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flarecore.errors import RetrievalWarning
from flarecore.retrieval.filters import CompiledFilter, Condition, Value, values_of
from flarecore.retrieval.passage import Passage

__all__ = ["MetadataColumns"]

BoolArray = npt.NDArray[np.bool_]

_NUM_CACHED_MASKS = 32
_MAX_NAMED = 20  # fields in a message


class _Column:
    """One field: pairs (row, code), a row once per value, and the distinct values by code."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_rows = 0
        self.rows = array("q")
        self.codes = array("q")
        self.code_of: dict[Value, int] = {}

    def extend(self, passages: Sequence[Passage], end: int) -> None:
        for row in range(self.num_rows, end):
            for value in values_of(passages[row], self.name):
                self.rows.append(row)
                self.codes.append(self.code_of.setdefault(value, len(self.code_of)))
        self.num_rows = end

    def mask(self, condition: Condition, num_rows: int) -> BoolArray:
        rows = np.array(self.rows, dtype=np.int64)
        codes = np.array(self.codes, dtype=np.int64)
        result = np.zeros(num_rows, dtype=np.bool_)
        result[rows[self._accepted(condition)[codes]]] = True
        if condition.excluded:
            result[rows[self._codes_in(condition.excluded)[codes]]] = False
        return result

    def _codes_in(self, values: frozenset[Value]) -> BoolArray:
        found = np.zeros(len(self.code_of), dtype=np.bool_)
        found[[self.code_of[v] for v in values if v in self.code_of]] = True
        return found

    def _accepted(self, condition: Condition) -> BoolArray:
        """Which distinct values meet the positive comparisons, as Condition.accepts says."""
        if condition.any_of is None:
            accepted = np.ones(len(self.code_of), dtype=np.bool_)
        else:
            accepted = self._codes_in(condition.any_of)
        for compare, (kind, bound) in condition.range_tests():
            of_kind = [(code, v[1]) for v, code in self.code_of.items() if v[0] == kind]
            codes = np.array([code for code, _ in of_kind], dtype=np.int64)
            # An object array compares ints of any size and strings exactly, in one C loop. The
            # bound is one as well: as a string of numpy's it would lose the NULs at its end.
            values = np.array([value for _, value in of_kind], dtype=object)
            passed = np.zeros(len(self.code_of), dtype=np.bool_)
            passed[codes] = np.asarray(
                compare(values, np.array(bound, dtype=object)), dtype=np.bool_)
            accepted &= passed
        return accepted


class MetadataColumns:
    """Which passages of a growing list meet a filter. Safe to call from several threads.

    Parameters
    ----------
    passages : sequence of Passage
        Borrowed; may grow at its end between calls, never change otherwise.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages
        self._columns: dict[str, _Column] = {}
        self._masks: OrderedDict[str, BoolArray] = OrderedDict()
        self._mutex = threading.Lock()

    def mask(self, compiled: CompiledFilter, num_rows: int) -> BoolArray:
        """(num_rows,) bool: whether each of the first passages meets the filter; do not change."""
        with self._mutex:
            mask = self._masks.get(compiled.key)
            # A passage never changes, so a longer mask serves a shorter list too.
            if mask is None or len(mask) < num_rows:
                mask = self._evaluate(compiled, num_rows)
                self._masks[compiled.key] = mask
                if len(self._masks) > _NUM_CACHED_MASKS:
                    self._masks.popitem(last=False)
            self._masks.move_to_end(compiled.key)
            return mask[:num_rows]

    def _evaluate(self, compiled: CompiledFilter, num_rows: int) -> BoolArray:
        result = np.ones(num_rows, dtype=np.bool_)
        for name, condition in compiled.conditions:
            column = self._columns.setdefault(name, _Column(name))
            column.extend(self._passages, num_rows)
            if num_rows and not column.code_of:
                self._warn_of_missing(name, num_rows)
            # Columns only grow, and num_rows never falls below what they hold: see mask().
            result &= column.mask(condition, max(num_rows, column.num_rows))[:num_rows]
        return result

    def _warn_of_missing(self, name: str, num_rows: int) -> None:
        """Says that a field is in no passage: a misspelt one looks like a search without luck."""
        known = sorted({key for passage in self._passages[:num_rows]
                        for key in passage.metadata if values_of(passage, key)})
        more = ", ..." if len(known) > _MAX_NAMED else ""
        fields = ", ".join(["id", "title", *known[:_MAX_NAMED]]) + more
        warnings.warn(
            f"filter: no passage has a value in the field {name!r}, so nothing matches; the fields "
            f"are {fields}", RetrievalWarning, stacklevel=2)
