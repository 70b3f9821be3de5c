"""Times callables against each other: interleaved rounds, quantiles, ratios pair by pair.

A machine is never quiet for long. Every round runs every case once, in turn forwards and backwards,
so that what disturbs one disturbs all, and a ratio is the median of the ratios of the rounds, not
the ratio of two medians.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flarecore.errors import ConfigError

__all__ = ["Case", "Progress", "Quantiles", "ratios", "run_rounds"]

# progress(stage, done, total)
Progress = Callable[[str, int, int], None]
# Other libraries' threads spin for a while after their work; they get time to fall asleep.
SETTLE_SECONDS = 0.01


def nothing() -> None:
    """Prepares nothing."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Shows nothing."""


@dataclass(frozen=True)
class Quantiles:
    """Median with the 20th and 80th percentile, in the unit of what was measured."""

    median: float
    p20: float
    p80: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles:
        """Quantiles of at least one value (linear between two of them).

        Raises
        ------
        ConfigError
            There is no value.
        """
        if not len(values):
            raise ConfigError("quantiles need at least one value, got none")
        p20, median, p80 = np.percentile(np.asarray(values, dtype=np.float64), (20, 50, 80))
        return cls(float(median), float(p20), float(p80))

    def scaled(self, factor: float) -> Quantiles:
        """The same in another unit; `factor` is positive."""
        return Quantiles(self.median * factor, self.p20 * factor, self.p80 * factor)


@dataclass(frozen=True)
class Case:
    """Something to time.

    Attributes
    ----------
    name : str
        Unique among the cases that run together.
    run : callable
        What is timed. Returns None, or the seconds it took if it measures itself.
    prepare : callable
        Called before each run, outside of the time.
    """

    name: str
    run: Callable[[], float | None]
    prepare: Callable[[], None] = nothing


def time_once(case: Case, settle_s: float = SETTLE_SECONDS) -> float:
    """Seconds of one run. Garbage is collected before it and not during it."""
    case.prepare()
    gc.collect()  # quick: run_rounds has frozen what was there before
    was_enabled = gc.isenabled()
    gc.disable()
    time.sleep(settle_s)
    try:
        start = time.perf_counter()
        measured = case.run()
        elapsed = time.perf_counter() - start
    finally:
        if was_enabled:
            gc.enable()
    return elapsed if measured is None else measured


def run_rounds(
    cases: Sequence[Case], rounds: int, *, warmup: int = 1, settle_s: float = SETTLE_SECONDS,
    stage: str = "rounds", progress: Progress = no_progress,
) -> dict[str, tuple[float, ...]]:
    """Times all cases in each round, after warm-up rounds that do not count.

    Parameters
    ----------
    cases : sequence of Case
    rounds, warmup : int
        At least 1, at least 0.
    settle_s : float
        Seconds of sleep before each run.
    stage : str
        What `progress` is told.
    progress : callable
        ``progress(stage, runs done, runs in all)``.

    Returns
    -------
    dict of str to tuple of float
        Seconds per round of every case; entry i of two cases belongs to the same round.

    Raises
    ------
    ConfigError
        No case, two cases of one name, or a count out of range.
    """
    names = [case.name for case in cases]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"cases need names that differ, got {names}")
    if rounds < 1 or warmup < 0:
        raise ConfigError(f"rounds must be >= 1 and warmup >= 0, got {rounds} and {warmup}")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    total, done = (rounds + warmup) * len(cases), 0
    gc.collect()
    gc.freeze()
    try:
        for number in range(-warmup, rounds):
            # Backwards every other round: nobody always runs behind the same neighbour.
            for case in cases if number % 2 == 0 else reversed(cases):
                elapsed = time_once(case, settle_s)
                if number >= 0:
                    seconds[case.name].append(elapsed)
                done += 1
                progress(stage, done, total)
    finally:
        gc.unfreeze()
    return {name: tuple(values) for name, values in seconds.items()}


def ratios(
    seconds: Mapping[str, Sequence[float]], name: str, peer: str, factor: float = 1.0
) -> Quantiles:
    """How many times as long `peer` took as `name`, round by round.

    Parameters
    ----------
    seconds : mapping of str to sequence of float
        From :func:`run_rounds`.
    name, peer : str
        Two cases.
    factor : float
        Units of work of `name` per unit of `peer`, where they did not do the same amount.
    """
    pairs = zip(seconds[name], seconds[peer], strict=True)
    return Quantiles.of([factor * theirs / own for own, theirs in pairs])
