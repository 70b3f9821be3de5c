"""How ``Model.load(quantize=...)`` quantises weights, in numpy, one step after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.errors import ConfigError

__all__ = ["quantize_dequantize"]

Float32 = npt.NDArray[np.float32]

_GROUP = 32


def quantize_dequantize(matrix: npt.NDArray[Any], quantize: str) -> Float32:
    """The float32 values that a quantised matrix stands for.

    Parameters
    ----------
    matrix : (rows, a multiple of 32)
        Values, exact in float32.
    quantize : {"q4", "q8"}

    Returns
    -------
    ndarray of float32, shaped as `matrix`

    Raises
    ------
    ConfigError
        `quantize` is unknown.
    """
    # (32, groups): sums go over the first axis, one value after the other.
    groups = np.asarray(matrix, np.float32).reshape(-1, _GROUP).T
    if quantize == "q8":
        restored = _q8(groups)
    elif quantize == "q4":
        restored = _q4(groups)
    else:
        raise ConfigError(f"quantize must be 'q4' or 'q8', got {quantize!r}")
    return np.ascontiguousarray(restored.T).reshape(np.shape(matrix))


def _half(values: Float32) -> Float32:
    return np.clip(values, -65504, 65504).astype(np.float16).astype(np.float32)


def _inverse(scale: Float32, numerator: float = 1.0) -> Float32:
    """numerator / scale, 0 where the scale is 0."""
    positive = scale > 0
    return np.where(positive, np.float32(numerator) / np.where(positive, scale, 1), 0).astype(
        np.float32
    )


def _q8(x: Float32) -> Float32:
    scale = _half(np.abs(x).max(axis=0) / np.float32(127))
    codes = np.rint(np.clip(x * _inverse(scale), -127, 127))
    return np.asarray(codes * scale, np.float32)


def _q4(x: Float32) -> Float32:
    low = x.min(axis=0)
    span = x.max(axis=0) - low
    y = x - low
    best_scale = span / np.float32(15)
    best_min, best_error = low.copy(), np.full(low.shape, np.inf, np.float32)
    for start in range(9):
        steps = 13 + 0.5 * start
        inverse = np.where(span < np.float32(1e-8), 0, _inverse(span, steps)).astype(np.float32)
        scale, offset, _ = _fit(y, _codes(y, np.zeros_like(low), inverse))
        scale, offset, error = _fit(y, _codes(y, offset, _inverse(scale)))
        better = (scale > 0) & (error < best_error)
        best_scale = np.where(better, scale, best_scale)
        best_min = np.where(better, low + offset, best_min)
        best_error = np.where(better, error, best_error)
    plain, plain_error = _finish(x, span / np.float32(15), low)
    searched, searched_error = _finish(x, best_scale, best_min)
    return np.where(searched_error < plain_error, searched, plain)


def _codes(x: Float32, low: Float32, inverse: Float32) -> Float32:
    return np.asarray(np.rint(np.clip((x - low) * inverse, 0, 15)), np.float32)


def _sum(values: Float32) -> Float32:
    """Over the first axis in float32, in order."""
    total = np.zeros(values.shape[1], np.float32)
    for row in values:
        total = total + row
    return total


def _fit(y: Float32, codes: Float32) -> tuple[Float32, Float32, Float32]:
    """Least squares: scale, minimum, squared error."""
    total, squares, values, products = map(_sum, (codes, codes * codes, y, codes * y))
    determinant = np.float32(32) * squares - total * total
    divisor = np.where(determinant > 0, determinant, np.float32(1))
    scale = (np.float32(32) * products - total * values) / divisor
    scale = np.where(determinant > 0, scale, np.float32(0))
    offset = (values - scale * total) / np.float32(32)
    difference = y - (codes * scale + offset)
    return scale, offset, _sum(difference * difference)


def _finish(x: Float32, scale: Float32, low: Float32) -> tuple[Float32, Float32]:
    """Values and squared error with scale and minimum in float16 and the nearest codes."""
    scale, low = _half(scale), _half(low)
    restored = _codes(x, low, _inverse(scale)) * scale + low
    difference = x - restored
    return restored, _sum(difference * difference)
