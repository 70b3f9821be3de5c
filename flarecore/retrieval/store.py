"""The passages of a dense index and their vectors, and how texts become vectors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from flarecore.errors import ConfigError, FlarecoreError, RetrievalError, RetrievalWarning
from flarecore.retrieval.passage import Passage, Progress, TextEncoder
from flarecore.retrieval.passage_table import PassageTable
from flarecore.retrieval.ranking import FloatArray, normalized

__all__ = [
    "MANY_UNKNOWN",
    "PassageStore",
    "StoreOptions",
    "embed",
    "embed_passages",
    "int_in",
    "searchable_text",
    "unknown_share",
]

MANY_UNKNOWN = 0.25  # of the words: from here on vectors say little about a text
_SAMPLED_TEXTS = 1000  # of the passages that are added together


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
    """(len(passages), dim) normalised vectors; raises what :func:`embed` raises.

    Gives a RetrievalWarning if the encoder does not know over a quarter of the words.
    """
    texts = [searchable_text(p, options.title_in_text) for p in passages]
    share = unknown_share(encoder, texts[:: 1 + len(texts) // _SAMPLED_TEXTS])
    if share > MANY_UNKNOWN:
        warnings.warn(
            f"the encoder {encoder.name!r} does not know {share:.0%} of the words of these "
            "passages: search by meaning will find little; use BM25 (--retriever bm25) or an "
            "encoder for their language", RetrievalWarning, stacklevel=3)
    return embed(encoder, texts, options.batch_size, progress)


def unknown_share(encoder: object, texts: list[str]) -> float:
    """See ``SentenceEncoder.unknown_share``; 0 for an encoder that cannot say."""
    share = getattr(encoder, "unknown_share", None)
    return 0.0 if share is None else float(share(texts))


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
