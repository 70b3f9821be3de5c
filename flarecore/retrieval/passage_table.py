"""The passages of an index: checked, appended, never changed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from flarecore.errors import ConfigError
from flarecore.retrieval.columns import MetadataColumns
from flarecore.retrieval.filters import CompiledFilter
from flarecore.retrieval.passage import Passage
from flarecore.retrieval.ranking import IndexArray

__all__ = ["PassageTable"]

_RESERVED_FIELDS = frozenset(["id", "title", "text", "score"])
_MAX_DEPTH = 16  # of metadata
_MAX_INT_BITS = 4096  # Python refuses to print integers of over 4300 digits


class PassageTable:
    """Passages, row by row, with what filters need.

    Appending is the caller's to serialise; a row once appended stays as it is, so readers may look
    at the rows below a count that they took, also while more are appended.
    """

    def __init__(self) -> None:
        self.passages: list[Passage] = []
        self._ids: set[str] = set()
        self._columns = MetadataColumns(self.passages)

    def __len__(self) -> int:
        return len(self.passages)

    def check_new(self, passages: Iterable[Passage]) -> list[Passage]:
        """Copies of the passages with score 0, once all of them may be appended.

        Raises
        ------
        ConfigError
            Names the passage and what is wrong: type, empty id or text, an id that is there
            already, metadata that JSON cannot hold, text that is not valid Unicode.
        """
        checked: list[Passage] = []
        seen: set[str] = set()
        for position, passage in enumerate(passages):
            if not isinstance(passage, Passage):
                raise ConfigError(
                    f"passage {position}: must be a Passage, got {type(passage).__name__}")
            checked.append(_check_passage(passage, position))
            if passage.id in seen or passage.id in self._ids:
                raise ConfigError(
                    f"passage {position}: the id {passage.id!r} is taken; ids are unique in an "
                    "index")
            seen.add(passage.id)
        return checked

    def append(self, passages: list[Passage]) -> None:
        """Adds what :meth:`check_new` returned."""
        self._ids.update(p.id for p in passages)
        self.passages.extend(passages)

    def allowed(
        self, compiled: CompiledFilter | None, num_rows: int | None = None
    ) -> IndexArray | None:
        """Row numbers below `num_rows` (default: all) that meet the filter, ascending.

        None when there is no filter.
        """
        if compiled is None:
            return None
        return np.flatnonzero(
            self._columns.mask(compiled, len(self) if num_rows is None else num_rows))

    def results(self, rows: IndexArray, scores: Iterable[float]) -> list[Passage]:
        """The passages of some rows with their scores."""
        return [self.passages[row].with_score(float(score))
                for row, score in zip(rows.tolist(), scores, strict=True)]


def _check_passage(passage: Passage, position: int) -> Passage:
    where = f"passage {position}"
    for name in ("id", "text", "title"):
        value = getattr(passage, name)
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {name} must be a string, got {type(value).__name__}")
    if not passage.id:
        raise ConfigError(f"{where}: the id must not be empty")
    where = f"passage {passage.id!r}"
    if not passage.text.strip():
        raise ConfigError(f"{where}: the text must not be empty")
    if not hasattr(passage.metadata, "items"):
        raise ConfigError(f"{where}: metadata must be a mapping, got "
                          f"{type(passage.metadata).__name__}")
    taken = _RESERVED_FIELDS.intersection(passage.metadata)
    if taken:
        raise ConfigError(f"{where}: metadata may not hold {sorted(taken)}, which are the "
                          "passage's own fields")
    for value in (passage.id, passage.title, passage.text):
        _check_unicode(value, where)
    metadata = _plain_json(passage.metadata, where, 0)
    return replace(passage, score=0.0, metadata=metadata)


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where}: holds half a surrogate pair, which UTF-8 cannot") from error


def _plain_json(value: Any, where: str, depth: int) -> Any:
    """A private copy made of dict, list, str, int, float, bool and None."""
    if isinstance(value, str):
        _check_unicode(value, where)
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > _MAX_INT_BITS:
            raise ConfigError(f"{where}: metadata holds an integer of over {_MAX_INT_BITS} bits")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"{where}: metadata holds {value}, which JSON cannot")
        return value
    if depth == _MAX_DEPTH:
        raise ConfigError(f"{where}: metadata is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, (list, tuple)):
        return [_plain_json(item, where, depth + 1) for item in value]
    if hasattr(value, "items"):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{where}: metadata keys must be strings, got {key!r}")
            _check_unicode(key, where)
        return {key: _plain_json(item, where, depth + 1) for key, item in value.items()}
    raise ConfigError(
        f"{where}: metadata holds a {type(value).__name__}; only JSON values are kept (write dates "
        "as ISO strings)")
