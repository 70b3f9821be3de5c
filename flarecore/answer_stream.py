"""Answers that are being written, as streams of events."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator

from flarecore.errors import ConfigError
from flarecore.events import Event
from flarecore.loop.drivers import Outcome
from flarecore.result import FlareResult

__all__ = ["AnswerStream", "AsyncAnswerStream"]


class _Answer:
    """What there is of an answer, at its end and before."""

    def __init__(self, outcome: Outcome[FlareResult], partial: Callable[[], FlareResult]) -> None:
        self._outcome = outcome
        self._partial = partial

    @property
    def result(self) -> FlareResult:
        """The finished answer.

        Raises
        ------
        ConfigError
            The answer is not finished.
        """
        if self._outcome.value is None:
            raise ConfigError(
                "the answer is not finished: there is no result before the last event")
        return self._outcome.value

    @property
    def partial(self) -> FlareResult:
        """The answer so far, at any time: accepted sentences, counts and trace.

        Before the end, and of an answer that was closed or cancelled, with the stop reason
        ``cancelled``; after it, :attr:`result`, or the ``partial`` of the error that ended it.
        """
        return self._partial()


class AnswerStream(_Answer, Iterator[Event]):
    """The events of an answer that is being written; iterate over it.

    Closing it (also by leaving a ``with`` block, or by dropping it) ends the answer: nothing of it
    is left behind in the engine. After the last event, :attr:`result` is the answer; at any time,
    :attr:`partial` is what there is of it. One thread reads and closes it; to stop an answer from
    another thread, use :meth:`flarecore.Flare.astream` and cancel its task.

    Raises
    ------
    ConfigError
        Two threads use it at the same time.
    """

    def __init__(
        self, events: Generator[Event, None, None], outcome: Outcome[FlareResult],
        partial: Callable[[], FlareResult],
    ) -> None:
        super().__init__(outcome, partial)
        self._events = events
        self._in_use = threading.Lock()

    def __next__(self) -> Event:
        with self._alone():
            return next(self._events)

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the answer; may be repeated."""
        with self._alone():
            self._events.close()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._in_use.acquire(blocking=False):
            raise ConfigError(
                "another thread is reading this stream; give each thread a stream of its own")
        try:
            yield
        finally:
            self._in_use.release()


class AsyncAnswerStream(_Answer, AsyncIterator[Event]):
    """The events of an answer that is being written; iterate with ``async for``.

    Cancelling the task that iterates, or :meth:`aclose` (also by leaving an ``async with`` block),
    ends the answer. After the last event, :attr:`result` is the answer; at any time,
    :attr:`partial` is what there is of it.

    Raises
    ------
    ConfigError
        Two tasks use it at the same time.
    """

    def __init__(
        self, events: AsyncGenerator[Event, None], outcome: Outcome[FlareResult],
        partial: Callable[[], FlareResult],
    ) -> None:
        super().__init__(outcome, partial)
        self._events = events

    async def __anext__(self) -> Event:
        self._check_alone()
        return await self._events.__anext__()

    async def __aenter__(self) -> AsyncAnswerStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the answer; may be repeated."""
        self._check_alone()
        await self._events.aclose()

    def _check_alone(self) -> None:
        if self._events.ag_running:  # type: ignore[attr-defined]
            raise ConfigError(
                "another task is reading this stream; to end the answer, cancel that task")
