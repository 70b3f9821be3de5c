"""Metadata filters: what they mean, checked once, tested row by row.

A filter maps field names to conditions, and a passage must meet all of them:

- ``{"year": 2024}`` equality;
- ``{"lang": ["en", "zh"]}`` any of (an empty list lets nothing through);
- ``{"date": {"gte": "2024-01-01", "lt": "2025-01-01"}}`` comparisons that hold together:
  ``eq``, ``ne``, ``gt``, ``gte``, ``lt``, ``lte``, ``in``, ``not_in``.

``id`` and ``title`` name the passage's own fields, everything else its metadata. Numbers compare
with numbers and strings with strings (so ISO dates work as strings); a value of another type never
matches and never raises. A missing field, ``null`` or an empty list meets no condition, not even
``ne``: permissions fail closed. A field that no passage of an index has a value in is told by a
``RetrievalWarning``, as it may be misspelt. Of a list in the metadata one element must meet all the
positive comparisons of a condition, and none may be excluded by ``ne`` or ``not_in``.
:mod:`flarecore.retrieval.columns` evaluates the same filters over whole columns.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flarecore.errors import ConfigError
from flarecore.retrieval.passage import Filter, Passage

__all__ = ["CompiledFilter", "Condition", "Value", "compile_filter", "values_of"]

# (kind, value) with kind "b" bool, "n" number, "s" string: keeps True apart from 1 and "1".
Value = tuple[str, Any]

_RANGES: dict[str, Callable[[Any, Any], Any]] = {
    "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
_OPERATORS = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "not_in")


@dataclass(frozen=True)
class Condition:
    """One field's conditions. `any_of` is None when any value will do."""

    any_of: frozenset[Value] | None
    excluded: frozenset[Value]
    ranges: tuple[tuple[str, Value], ...]

    def accepts(self, value: Value) -> bool:
        """Whether one value meets the positive comparisons; `excluded` is the caller's."""
        if self.any_of is not None and value not in self.any_of:
            return False
        return all(value[0] == bound[0] and bool(_RANGES[name](value[1], bound[1]))
                   for name, bound in self.ranges)

    def range_tests(self) -> list[tuple[Callable[[Any, Any], Any], Value]]:
        """The ordering comparisons as (function, bound)."""
        return [(_RANGES[name], bound) for name, bound in self.ranges]


@dataclass(frozen=True)
class CompiledFilter:
    """A checked filter; `key` is equal for equal filters and serves as a cache key."""

    conditions: tuple[tuple[str, Condition], ...]
    key: str

    def matches(self, passage: Passage) -> bool:
        """Whether one passage meets every condition."""
        for name, condition in self.conditions:
            values = values_of(passage, name)
            if not any(condition.accepts(v) for v in values):
                return False
            if any(v in condition.excluded for v in values):
                return False
        return True


def compile_filter(filter: Filter | None) -> CompiledFilter | None:
    """Checks a filter.

    Parameters
    ----------
    filter : mapping or None
        See the module's description. None and an empty mapping let everything through.

    Returns
    -------
    CompiledFilter or None
        None when there is nothing to test.

    Raises
    ------
    ConfigError
        Not a mapping, a field name that is no string, an unknown operator, or an operand that can
        never match (null, NaN, an object).
    """
    if filter is None:
        return None
    if not isinstance(filter, Mapping):
        raise ConfigError(
            f"filter: must be a mapping of field to condition, got {type(filter).__name__}")
    conditions = []
    for name, condition in filter.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"filter: a field name must be a non-empty string, got {name!r}")
        conditions.append((name, _compile_condition(name, condition)))
    if not conditions:
        return None
    key = json.dumps(sorted(
        (name, c.any_of is not None, sorted(map(repr, c.any_of or ())),
         sorted(map(repr, c.excluded)), list(map(repr, c.ranges)))
        for name, c in conditions))
    return CompiledFilter(tuple(conditions), key)


def values_of(passage: Passage, name: str) -> list[Value]:
    """The filterable values of a field: none for a missing field, one for a scalar."""
    if name == "id":
        return [("s", passage.id)]
    raw = passage.title if name == "title" else passage.metadata.get(name)
    if isinstance(raw, (list, tuple)):
        return [v for v in map(_value, raw) if v is not None]
    value = _value(raw)
    return [] if value is None else [value]


def _value(raw: Any) -> Value | None:
    if isinstance(raw, bool):
        return ("b", raw)
    if isinstance(raw, (int, float)):
        return ("n", raw)
    if isinstance(raw, str):
        return ("s", raw)
    return None


def _operand(name: str, raw: Any) -> Value:
    value = _value(raw)
    if value is None:
        raise ConfigError(
            f"filter: {name!r} must be compared with a string, number or boolean, got "
            f"{type(raw).__name__}; write dates as ISO strings")
    if value[0] == "n" and math.isnan(value[1]):
        raise ConfigError(f"filter: {name!r} is compared with NaN, which nothing equals")
    return value


def _operands(name: str, raw: Any) -> frozenset[Value]:
    if isinstance(raw, (str, bytes, Mapping)) or not hasattr(raw, "__iter__"):
        raise ConfigError(
            f"filter: {name!r} needs a list of values, got {type(raw).__name__}")
    return frozenset(_operand(name, item) for item in raw)


def _compile_condition(name: str, raw: Any) -> Condition:
    if isinstance(raw, (list, tuple, set, frozenset)):
        return Condition(_operands(name, raw), frozenset(), ())
    if not isinstance(raw, Mapping):
        return Condition(frozenset([_operand(name, raw)]), frozenset(), ())
    if not raw:
        raise ConfigError(f"filter: {name!r} has no comparison; known are {', '.join(_OPERATORS)}")
    any_of: frozenset[Value] | None = None
    excluded: frozenset[Value] = frozenset()
    ranges: list[tuple[str, Value]] = []
    for op, operand in raw.items():
        if op in ("eq", "in"):
            new = _operands(name, operand) if op == "in" else frozenset([_operand(name, operand)])
            any_of = new if any_of is None else any_of & new
        elif op in ("ne", "not_in"):
            excluded |= (_operands(name, operand) if op == "not_in"
                         else frozenset([_operand(name, operand)]))
        elif op in _RANGES:
            bound = _operand(name, operand)
            if bound[0] == "b":
                raise ConfigError(
                    f"filter: {name!r} {op} needs a number or a string, got a boolean")
            ranges.append((op, bound))
        else:
            raise ConfigError(
                f"filter: {name!r} has the unknown operator {op!r}; known are "
                f"{', '.join(_OPERATORS)}")
    return Condition(any_of, excluded, tuple(ranges))
