"""A lock that many readers share and one writer has alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ReadWriteLock"]


class ReadWriteLock:
    """Readers run together; a writer runs alone and goes before readers that come after it.

    Not reentrant: a thread that holds it in either way must not ask for it again.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._num_readers = 0
        self._writing = False
        self._num_waiting_writers = 0

    @contextmanager
    def read(self) -> Iterator[None]:
        """Shared access."""
        with self._condition:
            self._condition.wait_for(lambda: not self._writing and not self._num_waiting_writers)
            self._num_readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._num_readers -= 1
                self._condition.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Exclusive access."""
        with self._condition:
            self._num_waiting_writers += 1
            try:
                self._condition.wait_for(lambda: not self._writing and not self._num_readers)
                self._writing = True
            finally:
                self._num_waiting_writers -= 1
                self._condition.notify_all()
        try:
            yield
        finally:
            with self._condition:
                self._writing = False
                self._condition.notify_all()
