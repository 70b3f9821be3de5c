"""Times of single calls, by CUDA events on a device."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from flarecore.bench.gpu.report import Settings

__all__ = ["in_graph_us", "time_us"]


def time_us(call: Callable[[], object], settings: Settings, repeats: int = 20) -> float:
    """Median microseconds of a call, after warming up."""
    if not settings.is_cuda:
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e6
    for _ in range(3):
        call()
    new_event: Any = functools.partial(torch.cuda.Event, enable_timing=True)
    events = [(new_event(), new_event()) for _ in range(repeats)]
    for begin_event, end_event in events:
        begin_event.record()
        call()
        end_event.record()
    torch.cuda.synchronize()
    return float(statistics.median(begin.elapsed_time(end) * 1e3 for begin, end in events))


def in_graph_us(call: Callable[[], object], settings: Settings, calls: int = 20) -> float:
    """Microseconds of one call among many in a captured graph."""
    if not settings.is_cuda:
        return time_us(call, settings)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    # What the call works on may still be on its way in the stream of now: counters that are zeroed
    # beneath a launch would stay wrong.
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                call()
        return time_us(graph.replay, settings) / calls
