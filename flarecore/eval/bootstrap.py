"""Bootstrap intervals (Efron 1979, percentile method), seeded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flarecore.errors import ConfigError

__all__ = ["Interval", "mean_interval", "paired_difference"]

_CHUNK = 1 << 20  # draws at a time, so that memory does not grow with the number of answers


@dataclass(frozen=True)
class Interval:
    """A mean with its interval ``[low, high]``; `num_values` is what it was taken from."""

    mean: float
    low: float
    high: float
    num_values: int


def mean_interval(
    values: Sequence[float], *, num_resamples: int = 2000, level: float = 0.95, seed: int = 0,
) -> Interval | None:
    """The mean of `values` with a percentile bootstrap interval.

    The same values in the same order give the same interval. One value, or values that are all
    equal, have an interval without width: the bootstrap knows nothing beyond its sample.

    Parameters
    ----------
    values : sequence of float
        One per question.
    num_resamples, level, seed : int, float, int
        Resamples, coverage in (0, 1), and the random numbers.

    Returns
    -------
    Interval or None
        None without values.

    Raises
    ------
    ConfigError
        An option is out of range.
    """
    if num_resamples < 1 or not 0 < level < 1:
        raise ConfigError(
            f"bootstrap: num_resamples must be >= 1 and level in (0, 1), got {num_resamples}, "
            f"{level}")
    if not len(values):
        return None
    data = np.asarray(values, dtype=np.float64)
    means = _resampled_means(data, num_resamples, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(data.mean()), float(low), float(high), len(data))


def paired_difference(
    values: Sequence[float], baseline: Sequence[float], *, num_resamples: int = 2000,
    level: float = 0.95, seed: int = 0,
) -> Interval | None:
    """The mean of ``values - baseline``, question by question, with its interval.

    Resampling whole questions keeps the pairs together, so what makes a question hard for both
    methods does not widen the interval.

    Raises
    ------
    ConfigError
        The two are not of one length.
    """
    if len(values) != len(baseline):
        raise ConfigError(
            f"a paired difference needs the same questions, got {len(values)} and {len(baseline)}")
    return mean_interval([a - b for a, b in zip(values, baseline, strict=True)],
                         num_resamples=num_resamples, level=level, seed=seed)


def _resampled_means(
    data: npt.NDArray[np.float64], num_resamples: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """(num_resamples,) means of samples drawn with replacement."""
    rows = max(1, _CHUNK // len(data))
    parts = [
        data[rng.integers(0, len(data), (min(rows, num_resamples - begin), len(data)))].mean(axis=1)
        for begin in range(0, num_resamples, rows)]
    return np.concatenate(parts)
