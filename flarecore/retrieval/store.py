"""The passages of a dense index and their vectors: checked, appended, never changed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flarecore.errors import ConfigError, FlarecoreError, RetrievalError
from flarecore.retrieval.columns import MetadataColumns
from flarecore.retrieval.filters import CompiledFilter
from flarecore.retrieval.passage import Passage, Progress, TextEncoder
from flarecore.retrieval.ranking import FloatArray, IndexArray, normalized

__all__ = ["PassageStore", "StoreOptions", "embed", "embed_passages", "int_in"]

_RESERVED_FIELDS = frozenset(["id", "title", "text", "score"])
_MAX_DEPTH = 16  # of metadata
_MAX_INT_BITS = 4096  # Python refuses to print integers of over 4300 digits


@dataclass(frozen=True)
class StoreOptions:
    """How passages become vectors.

    Parameters
    ----------
    title_in_text : bool
        Embed "title\\ntext" instead of the text alone.
    batch_size : int
        Texts per call of the encoder; decides the grain of progress and Ctrl-C, not the result.
    """

    title_in_text: bool = True
    batch_size: int = 64

    def __post_init__(self) -> None:
        if not isinstance(self.title_in_text, bool):
            raise ConfigError(f"title_in_text must be a bool, got {self.title_in_text!r}")
        int_in("batch_size", self.batch_size, 1, 1 << 16)


class PassageStore:
    """Passages and normalised vectors, row by row.

    Appending is the caller's to serialise; rows below a count once read stay as they are, so a
    reader that took ``vectors`` and a count keeps a consistent view.

    Parameters
    ----------
    dim : int
        Length of a vector.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.passages: list[Passage] = []
        self._ids: set[str] = set()
        self._buffer: FloatArray = np.zeros((0, dim), dtype=np.float32)
        self._columns = MetadataColumns(self.passages)

    def __len__(self) -> int:
        return len(self.passages)

    @property
    def vectors(self) -> FloatArray:
        """(len(self), dim) float32, a view."""
        return self._buffer[: len(self.passages)]

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

    def append(self, passages: list[Passage], vectors: FloatArray) -> None:
        """Adds what :meth:`check_new` returned with its (n, dim) normalised vectors."""
        begin, end = len(self), len(self) + len(passages)
        if end > len(self._buffer):
            grown = np.zeros((max(end, 2 * begin), self.dim), dtype=np.float32)
            grown[:begin] = self._buffer[:begin]
            self._buffer = grown
        self._buffer[begin:end] = vectors
        self._ids.update(p.id for p in passages)
        self.passages.extend(passages)

    def allowed(self, compiled: CompiledFilter | None) -> IndexArray | None:
        """Row numbers that meet the filter, ascending; None when there is no filter."""
        if compiled is None:
            return None
        return np.flatnonzero(self._columns.mask(compiled, len(self)))

    def results(self, rows: IndexArray, scores: Iterable[float]) -> list[Passage]:
        """The passages of some rows with their scores."""
        return [self.passages[row].with_score(float(score))
                for row, score in zip(rows.tolist(), scores, strict=True)]


def embed(
    encoder: TextEncoder, texts: list[str], batch_size: int, progress: Progress | None = None
) -> FloatArray:
    """(len(texts), dim) normalised vectors.

    Raises
    ------
    RetrievalError
        The encoder raised (the cause is chained), or returned another shape or values that are
        not finite.
    """
    parts = [np.zeros((0, encoder.dim), dtype=np.float32)]
    for begin in range(0, len(texts), batch_size):
        batch = texts[begin : begin + batch_size]
        parts.append(normalized(_encode(encoder, batch)))
        if progress is not None:
            progress("embed", begin + len(batch), len(texts))
    return np.concatenate(parts)


def _encode(encoder: TextEncoder, batch: list[str]) -> FloatArray:
    try:
        vectors = np.asarray(encoder.encode(batch), dtype=np.float32)
    except FlarecoreError:
        raise
    except Exception as error:
        raise RetrievalError(f"encoder {encoder.name!r} failed: {error}") from error
    if vectors.shape != (len(batch), encoder.dim):
        raise RetrievalError(
            f"encoder {encoder.name!r} must return {(len(batch), encoder.dim)} values, got "
            f"{vectors.shape}")
    if not np.isfinite(vectors).all():
        raise RetrievalError(f"encoder {encoder.name!r} returned a value that is not finite")
    return vectors


def embed_passages(
    encoder: TextEncoder, passages: list[Passage], options: StoreOptions,
    progress: Progress | None = None
) -> FloatArray:
    """(len(passages), dim) normalised vectors; raises what :func:`embed` raises."""
    texts = [f"{p.title}\n{p.text}" if options.title_in_text and p.title else p.text
             for p in passages]
    return embed(encoder, texts, options.batch_size, progress)


def int_in(name: str, value: object, low: int, high: int) -> int:
    """`value` as an int within ``[low, high]``, else a ConfigError that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ConfigError(f"{name} must be an integer, got {value!r}")
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low} and {high}, got {value}")
    return int(value)


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
