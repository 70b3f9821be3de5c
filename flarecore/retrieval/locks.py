"""A lock that many readers share and one writer has alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["ReadWriteLock"]


class ReadWriteLock:
    """Readers run together; a writer runs alone and goes before readers that come after it.

    Not reentrant: a thread that holds it in either way must not ask for it again.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()  # of the fields below
        self._changed = threading.Condition(self._mutex)
        self._num_readers = 0
        self._writing = False
        self._num_waiting_writers = 0

    def read(self) -> AbstractContextManager[None]:
        """Shared access."""
        return _Reading(self)

    def _begin_read(self) -> None:
        with self._mutex:
            while self._writing or self._num_waiting_writers:
                self._changed.wait()
            self._num_readers += 1

    def _end_read(self) -> None:
        with self._mutex:
            self._num_readers -= 1
            # A writer waits for the last reader; other readers do not wait for one.
            if self._num_waiting_writers and not self._num_readers:
                self._changed.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Exclusive access."""
        with self._mutex:
            self._num_waiting_writers += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._num_readers)
                self._writing = True
            finally:
                self._num_waiting_writers -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._mutex:
                self._writing = False
                self._changed.notify_all()


class _Reading:
    """Every search enters one: as a class, which costs it less than a generator would."""

    __slots__ = ("_lock",)

    def __init__(self, lock: ReadWriteLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock._begin_read()

    def __exit__(self, *error: object) -> None:
        self._lock._end_read()
