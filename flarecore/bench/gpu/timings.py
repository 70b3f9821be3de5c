"""Times of the GPU engine: sampler, decode, prefill, loop, rollback and fork.

On a device by CUDA events around many launches; in the interpreter only so that the code is run.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flarecore.bench.gpu.engine_checks import run_flare
from flarecore.bench.gpu.report import Report, Settings
from flarecore.bench.gpu.sampler_timings import measure_samplers
from flarecore.bench.gpu.shapes import SHAPES, random_weights
from flarecore.bench.gpu.timers import in_graph_us, time_us
from flarecore.engine import Engine
from flarecore.gpu.adjustments import Adjuster
from flarecore.gpu.captures import Captures
from flarecore.gpu.decode_run import DecodeRunner
from flarecore.gpu.device_ops import choose_ops
from flarecore.gpu.forward import Forward, KvTensors
from flarecore.gpu.fused_sampler import choose_sampler
from flarecore.gpu.kv_cache import blocks_for
from flarecore.gpu.options import GpuOptions
from flarecore.gpu.pass_rows import Segment, make_rows
from flarecore.gpu.row_sampling import RowRequest, RowSampler, RowSettings
from flarecore.gpu.run_bucket import RunRequest
from flarecore.gpu.shape import DecoderShape
from flarecore.gpu.verification import VerificationRunner
from flarecore.model import Model

__all__ = ["measure_engine", "measure_limits", "measure_samplers", "measure_shape"]

_GREEDY = RowSettings(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=1, stream=0,
                      repetition_penalty=1.0, logit_bias={}, ignore_eos=True)
_CONTEXT = 512
_STEPS = 8  # of a replay
_REPLAYS = 4  # of a run


@dataclass(frozen=True)
class Limits:
    """What the device can do: bytes/s of a copy (read and written), multiply-adds/s of a product.
    """

    copy_bytes_per_s: float
    matmul_flops_per_s: float


def measure_limits(report: Report) -> Limits:
    """The yardsticks of the other rows."""
    settings = report.settings
    num_values = 1 << (29 if settings.is_cuda else 20)
    source = torch.zeros(num_values, dtype=torch.int16, device=settings.torch_device)
    target = torch.empty_like(source)
    size = 4096 if settings.is_cuda else 128
    dtype = torch.bfloat16 if settings.is_cuda else torch.float32
    a = torch.randn((size, size), device=settings.torch_device).to(dtype)
    out = torch.empty_like(a)

    def copy() -> float:
        return 4.0 * num_values / time_us(lambda: target.copy_(source), settings) / 1e3

    def product() -> float:
        return 2.0 * size**3 / time_us(lambda: torch.mm(a, a, out=out), settings) / 1e6

    copied = report.measure("limits", "copy, read + written", "GB/s", copy)
    computed = report.measure("limits", f"product of {size} x {size}", "TFLOP/s", product)
    return Limits((copied or 1.0) * 1e9, (computed or 1.0) * 1e12)


class _Argmax:
    """The least a sampler can do: what the fused one adds is measured against it."""

    name = "argmax"

    def __call__(self, logits: torch.Tensor, state: Any, *, filters: bool,
                 choice_logits: torch.Tensor | None = None) -> None:
        state.tokens.copy_(logits.argmax(dim=-1))
        state.positions.add_(1)


class ShapeCase:
    """A model of random weights with a cache, outside of any engine."""

    def __init__(self, shape: DecoderShape, settings: Settings, quantize: str | None = None
                 ) -> None:
        self.shape, self.settings = shape, settings
        device = torch.device(settings.torch_device)
        dtype = torch.bfloat16 if settings.is_cuda else torch.float32
        self.weights = random_weights(shape, dtype, settings.torch_device, quantize)
        num_blocks = 64 * blocks_for(_CONTEXT + _REPLAYS * _STEPS) if settings.is_cuda else 64
        self.kv = KvTensors(shape, num_blocks, dtype, device, choose_ops(GpuOptions(), device))
        self.prefill_rows = 1024 if settings.is_cuda else 32
        self.forward = Forward(shape, self.weights, self.kv, row_tile=16, max_decode_rows=64,
                               max_prefill_rows=self.prefill_rows)
        self._flags = torch.zeros(shape.vocab_size, dtype=torch.uint8, device=device)

    def step_us(self, num_rows: int, sampler: Any = None) -> float:
        """One decode step of a batch at a context of 512 tokens, in replays of eight.

        Replays are queued one behind the other, as in a run that the host need not look at: what a
        run's beginning takes the host is spread over all of them.
        """
        steps, replays = (_STEPS, _REPLAYS) if self.settings.is_cuda else (2, 1)
        num_steps = steps * replays
        runner = DecodeRunner(
            self.forward, sampler or choose_sampler("fused", self._flags, 64),
            steps_per_replay=steps, steps_per_run=num_steps, use_graphs=self.settings.is_cuda)
        context = _CONTEXT if self.settings.is_cuda else 33
        width = blocks_for(context + num_steps)
        requests = [RunRequest(5, context, range(i * width, (i + 1) * width), num_steps, _GREEDY)
                    for i in range(num_rows)]

        def run() -> None:
            decode = runner.launch(requests)
            for _ in range(replays - 1):
                decode.queue(steps)
            # The host may not touch the pinned memory again before the copy is through.
            if self.settings.is_cuda:
                torch.cuda.synchronize()

        return time_us(run, self.settings, repeats=9) / num_steps

    def _proposal(self, num_rows: int) -> Segment:
        context = _CONTEXT if self.settings.is_cuda else 32
        return context, [7] * num_rows, range(blocks_for(context + num_rows))

    def verify_us(self, num_rows: int) -> float:
        """The pass without the sampler, one of several within a graph."""
        rows = make_rows([self._proposal(num_rows)], self.forward)
        return in_graph_us(lambda: self.forward.decode(rows), self.settings, calls=4)

    def launched_verify_us(self, num_rows: int, *, use_graphs: bool) -> float:
        """From rows on the host to what is sampled of them there, as a step of the engine."""
        device = self._flags.device
        passes = VerificationRunner(self.forward, Captures(device),
                                    use_graphs=use_graphs and self.settings.is_cuda)
        sampler = RowSampler(
            choose_sampler("fused", self._flags, 64), device,
            Adjuster(self.kv.ops, 64, self.shape.vocab_size, device), use_reference=False)
        proposal = self._proposal(num_rows)
        requests = [RowRequest(proposal[0] + i, _GREEDY) for i in range(num_rows)]

        def verify() -> None:
            sampler.launch(passes.launch([proposal]), requests)
            if self.settings.is_cuda:
                torch.cuda.synchronize()

        return time_us(verify, self.settings)

    def prefill_us(self) -> float:
        num_rows = self.prefill_rows
        rows = make_rows([(0, [7] * num_rows, range(blocks_for(num_rows)))], self.forward)
        return time_us(lambda: self.forward.prefill(rows), self.settings, repeats=5)

    @property
    def step_bytes(self) -> int:
        """Read for one token at that context: weights, without an embedding that is only looked
        up, and the keys and values."""
        looked_up = 0 if self.shape.tied_head else self.weights.embedding.nbytes
        kv = 2 * self.shape.num_layers * self.shape.kv_size * _CONTEXT * 2
        return self.weights.size_bytes - looked_up + kv

    @property
    def product_flops(self) -> float:
        """Multiply-adds, times two, of one prefilled token."""
        values = sum(m.numel() for layer in self.weights.layers for m in layer.matrices)
        return 2.0 * values


def measure_shape(report: Report, name: str, limits: Limits, quantize: str | None = None) -> None:
    """Decode, verification and prefill of one shape, in bfloat16 or as `quantize` leaves it."""
    case = ShapeCase(SHAPES[name], report.settings, quantize)
    section = (name if len(name) <= 12 else name[-12:]) + (f" {quantize}" if quantize else "")
    one = report.measure(
        section, "decode step, 1 sequence", "us", lambda: case.step_us(1),
        at_most=250.0 if name == "SmolLM2-135M" and quantize is None else None)
    if one is not None:
        share = 100.0 * case.step_bytes / (one * 1e-6) / limits.copy_bytes_per_s
        report.measure(section, "  of the copy bandwidth", "%", lambda: share,
                       at_least=78.0 if name == "Llama 1B" and quantize is None else None)
    if one is not None and quantize is None:
        least = report.measure(section, "decode step with a plain argmax", "us",
                               lambda: case.step_us(1, _Argmax()))
        if least is not None:
            report.measure(section, "  what sampler, confidence and mask add", "%",
                           lambda: 100.0 * (one / least - 1.0), at_most=1.0)
    for num_rows in (8, 64) if report.settings.is_cuda else (2,):
        report.measure(section, f"decode step, {num_rows} sequences", "us",
                       functools.partial(case.step_us, num_rows))
    for num_rows in (1, 16):
        report.measure(section, f"verification of {num_rows} rows", "us",
                       functools.partial(case.verify_us, num_rows))
    # Up to what is sampled being on the host: the engine fills in the rows and replays a graph.
    # One by one (GpuOptions(graphs=False)) the device may wait for the host before every launch.
    for title, use_graphs in (("as the engine launches them", True),
                              ("launched one by one", False)):
        report.measure(section, f"  of 16 rows {title}", "us", functools.partial(
            case.launched_verify_us, 16, use_graphs=use_graphs))

    def prefill() -> tuple[float, str]:
        seconds = case.prefill_us() * 1e-6
        rate = case.product_flops * case.prefill_rows / seconds
        return (case.prefill_rows / seconds,
                f"{100.0 * rate / limits.matmul_flops_per_s:.0f}% of the measured product rate")

    report.measure(section, f"prefill of {case.prefill_rows} tokens", "tokens/s", prefill)


def measure_engine(report: Report, path: Path, name: str, num_tokens: int) -> None:
    """Through the whole engine: a sentence of the loop, rollback, fork."""
    settings = report.settings
    compute = "bfloat16" if settings.is_cuda else "float32"
    model = Model.load(str(path), device=settings.device)
    with Engine(model, compute=compute, kv_cache_bytes=1 << 26,
                gpu=GpuOptions(max_batch_rows=32)) as engine:
        def sentence() -> tuple[float, str]:
            if settings.is_cuda:  # captures the graphs; of another text, whose keys are no use
                run_flare(engine, num_tokens, "Cape Dorran")
            begin = time.perf_counter()
            result = run_flare(engine, num_tokens)
            count = max(1, len(result.trace.sentences))
            return ((time.perf_counter() - begin) * 1e3 / count,
                    f"{count} sentences, {result.stats.num_retrievals} retrievals")

        report.measure(name, "FLARE loop, a sentence", "ms", sentence)
        sequence = engine.sequence([1 + i % 200 for i in range(100 if settings.is_cuda else 9)])
        options: dict[str, Any] = {"until": "eos", "ignore_eos": True}
        saved = sequence.checkpoint()

        def mean_us(call: Callable[[], object], count: int) -> float:
            begin = time.perf_counter()
            for _ in range(count):
                call()
            return (time.perf_counter() - begin) * 1e6 / count

        def fork_and_write() -> None:
            with sequence.fork() as fork:
                fork.decode(1, **options)

        fork_and_write()  # captures what it needs
        report.measure(name, "fork and close", "us",
                       lambda: mean_us(lambda: sequence.fork().close(), 20))
        report.measure(name, "rollback", "us",
                       lambda: mean_us(lambda: sequence.rollback(saved), 20))
        report.measure(name, "fork, one token (copies a block), close", "us",
                       lambda: mean_us(fork_and_write, 20 if settings.is_cuda else 1))
        sequence.close()
