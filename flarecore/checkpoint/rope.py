"""Frequencies of the rotary embedding that a checkpoint's configuration asks for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flarecore.checkpoint.json_file import Section
from flarecore.errors import ModelFileError, UnsupportedError

__all__ = ["rope_frequencies"]

# Keys that each type reads; another one would change what the type means.
_KEYS = {
    "default": frozenset[str](),
    "linear": frozenset(("factor",)),
    "llama3": frozenset(("factor", "low_freq_factor", "high_freq_factor")),
}
_LENGTH = "original_max_position_embeddings"
_COMMON = frozenset(("rope_type", "type", "rope_theta", "partial_rotary_factor", _LENGTH))


def rope_frequencies(rope: Section, head_dim: int) -> list[float]:
    """Radians per position of each pair of values of a head.

    RoPE: Su et al., arXiv 2104.09864; ``linear`` divides all frequencies (positions are
    interpolated), ``llama3`` only the low ones, with a ramp between (Llama 3.1). Rounded to float32
    at the same places as transformers, so that long positions agree with it.

    Parameters
    ----------
    rope : Section
        ``rope_theta``, ``rope_type`` (or ``type``) and what the type needs.
    head_dim : int
        Size of a head.

    Returns
    -------
    list of float, (head_dim / 2,)

    Raises
    ------
    UnsupportedError
        Another type, or a part of a head only is turned.
    ModelFileError
        A value is missing or out of range.
    """
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if not isinstance(kind, str) or kind not in _KEYS:
        raise UnsupportedError(
            f"{rope.where}: rope_type {kind!r:.40} is not supported; supported: {', '.join(_KEYS)}"
        )
    if rope.get("partial_rotary_factor") not in (None, 1):
        raise UnsupportedError(
            f"{rope.where}: partial_rotary_factor {rope.get('partial_rotary_factor')!r:.40} is not "
            f"supported: heads are turned as a whole"
        )
    for key, value in rope.values.items():
        # Files of the default type may keep a factor that nobody reads.
        read = _KEYS[kind] | (_KEYS["llama3"] if kind == "default" else frozenset())
        if key not in read | _COMMON and value is not None:
            raise UnsupportedError(
                f"{rope.where}: {key} is not supported with rope_type {kind!r}"
            )
    base = np.float32(rope.positive("rope_theta"))
    powers = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies: npt.NDArray[np.float32] = np.float32(1) / base**powers
    if kind == "linear":
        frequencies = frequencies / np.float32(rope.positive("factor"))
    elif kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    if not np.all(np.isfinite(frequencies)):
        raise ModelFileError(f"{rope.where}: these values give frequencies that are not finite")
    return [float(value) for value in frequencies]


def _llama3(frequencies: npt.NDArray[np.float32], rope: Section) -> npt.NDArray[np.float32]:
    """Long waves are divided by the factor, short ones kept, those between mixed."""
    factor = np.float32(rope.positive("factor"))
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    length = rope.integer(_LENGTH, 1, 1 << 24)
    if low >= high:
        raise ModelFileError(
            f"{rope.where}: low_freq_factor {low} must be below high_freq_factor {high}"
        )
    waves = np.float32(2 * np.pi) / frequencies
    share = (np.float32(length) / waves - np.float32(low)) / np.float32(high - low)
    mixed = (1 - share) * frequencies / factor + share * frequencies
    scaled = np.where(waves > np.float32(length / low), frequencies / factor, mixed)
    return np.where(waves < np.float32(length / high), frequencies, scaled).astype(np.float32)
