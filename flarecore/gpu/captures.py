"""CUDA graphs of an engine: captured one at a time in a process, in one pool of memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Captures", "capture_lock"]

# One capture at a time in a process, as torch demands, and no synchronisation of the device beside
# it by another engine's thread, which would break it.
capture_lock = threading.Lock()


class Captures:
    """Captures graphs that share their memory: they are replayed in the order of one stream, and
    nothing that one of them has allocated is read after it.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._pool: Any = None

    def capture(self, prepare: Callable[[], object], work: Callable[[], object]) -> Any:
        """The graph of what `work` launches.

        `prepare` comes before the capture. It makes every launch of `work` once, over padding that
        changes nothing: what is compiled or allocated for good at a first launch cannot be within a
        capture.
        """
        # Back to the stream of now even if a capture fails: torch would leave its own one in place.
        stream = torch.cuda.stream(torch.cuda.current_stream()) if self._is_cuda else (
            contextlib.nullcontext())
        with capture_lock, stream:
            prepare()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile: only this one's calls are watched.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
            self._pool = graph.pool()
        return graph
