"""int8 arithmetic of ``compute="int8"``, step by step: the twin of the quantised kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flarecore.errors import ConfigError

__all__ = ["dequantize_rows", "matmul_int8", "quantize_rows", "round_to_words"]

GROUP_SIZE = 32
STEPS = 253
NORM_STEPS, PEAK_STEPS = 32700, 8191  # of 16-bit integers, for queries and keys, for values

Float32 = npt.NDArray[np.float32]


def quantize_rows(x: Float32) -> tuple[npt.NDArray[np.int16], Float32]:
    """Quantise activations per row and group of 32.

    A group has 253 steps between its lowest and its highest value, 0 included. With 127 steps to
    either side one large value among small ones, the usual case behind a norm, would waste half of
    them. The kernels keep such integers as int8 and a shift per group.

    Parameters
    ----------
    x
        (T, K) float32, K a multiple of 32.

    Returns
    -------
    q : ndarray
        (T, K) int16 in [-253, 253]: x / scale rounded half to even, 0 in a group of zeros.
    scale : ndarray
        (T, K / 32) float32: (max(x, 0) - min(x, 0)) / 253 of the group.

    Raises
    ------
    ConfigError
        If K is not a multiple of 32.
    """
    num_rows, num_cols = x.shape
    if num_cols % GROUP_SIZE != 0:
        raise ConfigError(f"rows are quantised in groups of {GROUP_SIZE}, got {num_cols} columns")
    groups = np.asarray(x, dtype=np.float32).reshape(num_rows, -1, GROUP_SIZE)
    span = groups.max(axis=-1, initial=0) - groups.min(axis=-1, initial=0)
    scale = span / np.float32(STEPS)
    safe = np.where(scale > 0, scale, np.float32(1))
    q = np.rint(groups / safe[:, :, None]).clip(-STEPS, STEPS).astype(np.int16)
    return q.reshape(num_rows, num_cols), scale.astype(np.float32)


def round_to_words(x: Float32, *, by_norm: bool) -> npt.NDArray[np.float64]:
    """What ``kv_format="int16"`` keeps: multiples of a step of each token and head.

    Parameters
    ----------
    x
        (..., head_dim) float32.
    by_norm
        True for queries and keys: 32700 steps in the norm; False for values: 8191 in the largest
        magnitude.

    Returns
    -------
    ndarray
        (..., head_dim) float64.
    """
    exact = x.astype(np.float64)
    largest = (np.linalg.norm(exact, axis=-1, keepdims=True) if by_norm
               else np.abs(exact).max(axis=-1, keepdims=True))
    step = largest / (NORM_STEPS if by_norm else PEAK_STEPS)
    return np.asarray(np.rint(exact / np.where(step > 0, step, 1)) * step)


def dequantize_rows(q: npt.NDArray[np.int16], scale: Float32) -> npt.NDArray[np.float64]:
    """(T, K) float64 values that (T, K) integers and (T, K / 32) scales stand for."""
    return q.astype(np.float64) * np.repeat(scale.astype(np.float64), GROUP_SIZE, axis=1)


def matmul_int8(x: Float32, weight: Float32) -> npt.NDArray[np.float64]:
    """Product of quantised activations with dequantised weights, exact but for float64 rounding.

    Parameters
    ----------
    x
        (T, K) activations, quantised here.
    weight
        (N, K) weights, the values of the file.

    Returns
    -------
    ndarray
        (T, N) float64.
    """
    return np.asarray(dequantize_rows(*quantize_rows(x)) @ weight.astype(np.float64).T)
