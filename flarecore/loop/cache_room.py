"""Answers that wait for room in a full KV cache.

An answer's cached contexts are only caches: it knows their token ids. So one whose operation finds
no free block gives back everything it holds, waits, and goes on from where it was; what others did
not need meanwhile is still cached. Who waits holds nothing, so nobody waits for ever: the answers
that are left hold all blocks between them, and the last one has them for itself.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from flarecore.errors import OutOfBlocksError
from flarecore.loop.effects import Pause, Steps
from flarecore.loop.timing import Deadline

__all__ = ["CacheRoom"]

T = TypeVar("T")

_PAUSE_S = 0.005  # a decode step or two


class _Queue:
    """The answers of one engine that hold blocks, and those that wait, oldest first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holding: weakref.WeakSet[CacheRoom] = weakref.WeakSet()
        self.waiting: deque[int] = deque()
        self.num_entered = 0


_queues: weakref.WeakKeyDictionary[Any, _Queue] = weakref.WeakKeyDictionary()
_queues_lock = threading.Lock()


def _queue_of(engine: Any) -> _Queue:
    with _queues_lock:
        return _queues.setdefault(engine, _Queue())


class CacheRoom:
    """One answer's place among those that share an engine's KV cache.

    Parameters
    ----------
    engine : EngineLike
        One whose cache can be full has ``stats()``.
    give_back : callable
        Closes everything that this answer holds.
    """

    def __init__(self, engine: Any, give_back: Callable[[], object]) -> None:
        self._engine = engine
        self._queue = _queue_of(engine)
        self._give_back = give_back

    def enter(self) -> None:
        """This answer holds blocks from now on."""
        queue = self._queue
        with queue.lock:
            if self not in queue.holding:
                queue.holding.add(self)
                queue.num_entered += 1

    def leave(self) -> None:
        """It holds none any more; may be repeated."""
        with self._queue.lock:
            self._queue.holding.discard(self)

    def run(self, part: Callable[[], Steps[T]], deadline: Deadline) -> Steps[T]:
        """Runs a part of the loop that needs blocks, again when there is room for it.

        Parameters
        ----------
        part : callable
            Can be run again after `give_back`.
        deadline : Deadline
            Ends the wait.

        Raises
        ------
        OutOfBlocksError
            There is no room though no other answer holds any.
        DeadlineExceeded
            Nothing is left of the deadline.
        """
        if not self._holds():
            yield from self._wait(None, deadline)  # whoever waits already comes first
        while True:
            held, others, num_entered = self._snapshot()
            try:
                return (yield from part())
            except OutOfBlocksError:
                if not hasattr(self._engine, "stats"):
                    raise
                # Who came meanwhile may have had the room.
                entered = self._snapshot()[2] - num_entered - (self._holds() and not held)
                if not held and not others and not entered:
                    raise
                self._give_back()
                # With what it held itself there may be room already.
                yield from self._wait(None if held else self._num_free(), deadline)

    def _holds(self) -> bool:
        return self in self._queue.holding

    def _snapshot(self) -> tuple[bool, int, int]:
        """Whether this answer holds blocks, how many others do, how many ever did."""
        queue = self._queue
        with queue.lock:
            held = self in queue.holding
            return held, len(queue.holding) - held, queue.num_entered

    def _num_free(self) -> int:
        """Blocks that nobody holds; cached ones among them are given up when they are needed."""
        stats = self._engine.stats()
        return int(stats.num_blocks - stats.num_held_blocks)

    def _wait(self, num_too_few: int | None, deadline: Deadline) -> Steps[None]:
        """Until it is this answer's turn and more blocks are free than were `num_too_few`."""
        queue = self._queue
        with queue.lock:
            if num_too_few is None and not queue.waiting:
                return
            queue.waiting.append(id(self))
        try:
            while not self._is_next(num_too_few):
                deadline.remaining_ms()
                yield Pause(_PAUSE_S)
        finally:
            with queue.lock:
                queue.waiting.remove(id(self))

    def _is_next(self, num_too_few: int | None) -> bool:
        queue = self._queue
        with queue.lock:
            if queue.waiting[0] != id(self):
                return False
            if num_too_few is None or not queue.holding:
                return True
        return self._num_free() > num_too_few
