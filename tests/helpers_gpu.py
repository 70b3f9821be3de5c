"""GPU engines of tiny models: in Triton's interpreter, or on a device where there is one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import TinyLlama, tiny_llama_path
from triton_env import DEVICE, torch

from flarecore.engine import Engine
from flarecore.gpu.options import GpuOptions
from flarecore.model import Model
from flarecore.sampling import SamplingParams

GPU_DEVICE = "interpreter" if DEVICE == "cpu" else "cuda"
# Of modules that run on either.
MARKS = [] if DEVICE == "cpu" else [pytest.mark.gpu]
KV_VALUE_BYTES = 4 if DEVICE == "cpu" else 2  # float32 keys and values in the interpreter only

SAMPLED: dict[str, Any] = {"sampling": SamplingParams(temperature=1.2, seed=11), "until": "eos",
                           "ignore_eos": True}  # fmt: skip

# The interpreter takes about a millisecond for each program of a launch: as few as there can be.
SMALL = TinyLlama(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, hidden_size=32,
                  ffn_size=48, context_length=256)


def gpu_model(source: TinyLlama | Path = SMALL) -> Model:
    path = tiny_llama_path(source) if isinstance(source, TinyLlama) else source
    return Model.load(str(path), device=GPU_DEVICE)


def gpu_engine(source: TinyLlama | Path | Model = SMALL, *, compute: str = "float32",
               kv_cache_bytes: int = 1 << 21, gpu: dict[str, Any] | None = None,
               **options: Any) -> Engine:
    """An engine of its own; `gpu` are fields of GpuOptions."""
    model = source if isinstance(source, Model) else gpu_model(source)
    return Engine(model, compute=compute, kv_cache_bytes=kv_cache_bytes,
                  gpu=GpuOptions(**{"max_batch_rows": 32, **(gpu or {})}), **options)


def core_of(engine: Engine) -> Any:
    """The engine's inside: what it counts, and its decode runner."""
    return engine._native._core


def runner_of(engine: Engine) -> Any:
    return core_of(engine)._setup.stepper.runner


class RecordedGraph:
    """Stands in for a CUDA graph: a replay makes the calls that were made during the capture."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def replay(self) -> None:
        for call in self.calls:
            call()

    def pool(self) -> None:
        return None


def verification_of(engine: Engine) -> Any:
    return core_of(engine)._setup.stepper.verification


def record_graphs(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes an engine use graphs: recorded ones where there is no device."""
    captured = (runner_of(engine), "_steps"), (verification_of(engine), "_pass")
    for owner, _ in captured:
        owner.use_graphs = True
    if DEVICE != "cpu":
        return

    @contextlib.contextmanager
    def capture(graph: RecordedGraph, **options: object) -> Iterator[None]:
        with monkeypatch.context() as patch:
            for owner, name in captured:
                call = getattr(owner, name)
                patch.setattr(owner, name, lambda *args, call=call: graph.calls.append(
                    functools.partial(call, *args)))
            yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
