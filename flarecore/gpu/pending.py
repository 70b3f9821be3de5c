"""The side of an operation that any thread may see: waiting, cancelling, the result."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from flarecore.errors import FlarecoreError

__all__ = ["Pending", "milliseconds_since"]


def milliseconds_since(begin: float) -> float:
    """Since a moment of ``time.perf_counter``."""
    return (time.perf_counter() - begin) * 1000.0


class Pending:
    """A result to come; the counterpart of what ``_C.Operation`` shows.

    The worker fills `_result` or `_error`, then calls :meth:`notify`.
    """

    def __init__(self) -> None:
        self._is_cancelled = False
        self._error: FlarecoreError | None = None
        self._result: dict[str, Any] = {}
        self._done = threading.Event()
        self._callbacks: list[Callable[[], object]] = []
        self._callback_lock = threading.Lock()

    def _fill(self, token_ids: list[int], probs: list[float], beta: float) -> None:
        """Tokens and confidences of the result."""
        values = np.asarray(probs, dtype=np.float32)
        self._result |= {
            "token_ids": tuple(token_ids), "probs": values, "mask": values < np.float32(beta),
            "min_prob": float(values.min()) if len(values) else 1.0}

    def is_done(self) -> bool:
        return self._done.is_set()

    def cancel(self) -> None:
        self._is_cancelled = True

    def wait(self, timeout_ms: float | None = None) -> bool:
        """True when done. In slices, so that Ctrl-C gets through everywhere."""
        left = timeout_ms
        while not self._done.wait(0.05 if left is None else min(0.05, max(left, 0.0) / 1000.0)):
            if left is not None:
                left -= 50.0
                if left <= 0.0:
                    return self._done.is_set()
        return True

    def result(self) -> dict[str, Any]:
        """The fields of the native result; raises the operation's error."""
        if self._error is not None:
            raise self._error
        return self._result

    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls it once done, at once if done already."""
        with self._callback_lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def notify(self) -> None:
        """Wakes waiters and runs callbacks; without the engine's lock."""
        with self._callback_lock:
            callbacks, self._callbacks = self._callbacks, []
            self._done.set()
        for callback in callbacks:
            try:
                callback()
            except Exception:  # the worker goes on
                traceback.print_exc()
