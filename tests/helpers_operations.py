"""Operations that wait for a test: an engine whose worker is held still."""

import threading

from helpers import DECODE


class Hold:
    """Holds an engine's worker still, right after an operation has ended, while entered.

    Completion callbacks run on the worker, so one that waits stops everything behind it.
    """

    def __init__(self, operation):
        self.held, self.release = threading.Event(), threading.Event()
        self.came_late = False  # the operation was done before the callback was in place
        self.caller = threading.get_ident()
        operation._native.on_done(self.stop)

    def stop(self):
        if threading.get_ident() == self.caller:
            self.came_late = True
            return
        self.held.set()
        self.release.wait(10)

    def __enter__(self):
        assert self.held.wait(60), "the worker never came by"
        return self

    def __exit__(self, *exc):
        self.release.set()


def paused(engine):
    """A hold of the worker while nothing else runs."""
    while True:
        hold = Hold(engine.sequence([1, 2, 3]).decode_async(300, **DECODE))
        if not hold.came_late:
            return hold
