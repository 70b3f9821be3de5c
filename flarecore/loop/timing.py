"""An answer's clock: wall time by phase, and the deadline."""

from __future__ import annotations

from collections.abc import Callable

from flarecore.errors import DeadlineExceeded

__all__ = ["Deadline", "PhaseClock"]


class PhaseClock:
    """Wall time by phase. What passes while it is paused, as it is at first, belongs to none.

    Parameters
    ----------
    clock : callable
        Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._phase = "other"
        self._since: float | None = None
        self.ms = {"draft": 0.0, "query": 0.0, "retrieve": 0.0, "regenerate": 0.0, "other": 0.0}

    def enter(self, phase: str) -> float:
        """Ends the phase that runs, begins another, and returns the ended one's milliseconds."""
        now = self._clock()
        spent = 0.0 if self._since is None else (now - self._since) * 1000.0
        self.ms[self._phase] += spent
        self._phase, self._since = phase, now
        return spent

    def pause(self) -> None:
        """Stops the time of the running phase."""
        self.enter(self._phase)
        self._since = None

    def resume(self) -> None:
        """Goes on with the phase that was paused."""
        self._since = self._clock()

    def so_far(self) -> dict[str, float]:
        """Milliseconds by phase, those of the running one up to now."""
        ms, since = dict(self.ms), self._since
        if since is not None:
            ms[self._phase] += (self._clock() - since) * 1000.0
        return ms


class Deadline:
    """How long an answer may still take.

    Parameters
    ----------
    limit_ms : float or None
        From `started` on; None is no limit.
    clock : callable
        Monotonic seconds.
    started : float
        When the answer was asked for, by that clock.
    """

    def __init__(
        self, limit_ms: float | None, clock: Callable[[], float], started: float
    ) -> None:
        self._limit_ms = limit_ms
        self._clock = clock
        self._started = started

    def remaining_ms(self) -> float | None:
        """What is left; None without a limit.

        Raises
        ------
        DeadlineExceeded
            Nothing is left.
        """
        if self._limit_ms is None:
            return None
        left_ms = self._limit_ms - (self._clock() - self._started) * 1000.0
        if left_ms <= 0.0:
            raise DeadlineExceeded(
                f"the answer was not complete after deadline_ms={self._limit_ms:g}")
        return left_ms
