"""The passages of a dense index and their vectors, and how texts become vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flarecore.errors import ConfigError, FlarecoreError, RetrievalError
from flarecore.retrieval.passage import Passage, Progress, TextEncoder
from flarecore.retrieval.passage_table import PassageTable
from flarecore.retrieval.ranking import FloatArray, normalized

__all__ = ["PassageStore", "StoreOptions", "embed", "embed_passages", "int_in", "searchable_text"]


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


class PassageStore(PassageTable):
    """Passages and normalised vectors, row by row.

    Parameters
    ----------
    dim : int
        Length of a vector.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self._buffer: FloatArray = np.zeros((0, dim), dtype=np.float32)

    @property
    def vectors(self) -> FloatArray:
        """(len(self), dim) float32, a view."""
        return self._buffer[: len(self.passages)]

    def append_embedded(self, passages: list[Passage], vectors: FloatArray) -> None:
        """Adds what :meth:`check_new` returned with its (n, dim) normalised vectors."""
        begin, end = len(self), len(self) + len(passages)
        if end > len(self._buffer):
            grown = np.zeros((max(end, 2 * begin), self.dim), dtype=np.float32)
            grown[:begin] = self._buffer[:begin]
            self._buffer = grown
        self._buffer[begin:end] = vectors
        self.append(passages)


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
    parts: list[FloatArray] = []
    for begin in range(0, len(texts), batch_size):
        batch = texts[begin : begin + batch_size]
        parts.append(normalized(_encode(encoder, batch)))
        if progress is not None:
            progress("embed", begin + len(batch), len(texts))
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.zeros((0, encoder.dim), dtype=np.float32), *parts])


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
    texts = [searchable_text(p, options.title_in_text) for p in passages]
    return embed(encoder, texts, options.batch_size, progress)


def searchable_text(passage: Passage, title_in_text: bool) -> str:
    """What a passage is found by: its text, after its title and a newline if wanted."""
    return f"{passage.title}\n{passage.text}" if title_in_text and passage.title else passage.text


def int_in(name: str, value: object, low: int, high: int) -> int:
    """`value` as an int within ``[low, high]``, else a ConfigError that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ConfigError(f"{name} must be an integer, got {value!r}")
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low} and {high}, got {value}")
    return int(value)
