"""A neighbour that takes a core whenever it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import TracebackType

__all__ = ["Neighbour"]

# Ends by itself if its parent is gone, however that ended.
_SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1000000):
        pass
"""


class Neighbour:
    """A process that spins on one core; a context manager that ends it.

    It is made asleep. On Linux it is bound to the last core that this process may use, so that the
    scheduler cannot keep it out of the way.

    Attributes
    ----------
    where : str
        The core, in words.
    """

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SPIN], stdin=subprocess.DEVNULL)
        self.where = "a core"
        if cores:
            os.sched_setaffinity(self._process.pid, {cores[-1]})
            self.where = f"one of {len(cores)} core{'s' if len(cores) > 1 else ''}"
        self.rest()

    def spin(self) -> None:
        """Takes the core until :meth:`rest`."""
        self._process.send_signal(signal.SIGCONT)

    def rest(self) -> None:
        """Lets go of the core."""
        self._process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
