"""Times of the fused samplers against what separate operations take."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch

from flarecore.bench.gpu.report import Report, Settings
from flarecore.bench.gpu.timers import in_graph_us, time_us
from flarecore.gpu.fused_sampler import choose_sampler
from flarecore.gpu.mirrored import Mirrored
from flarecore.gpu.row_sampling import RowSettings, fill_settings, state_fields, state_of

__all__ = ["measure_samplers"]

_SAMPLED = RowSettings(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, seed=1, stream=0,
                       repetition_penalty=1.0, logit_bias={}, ignore_eos=True)


class SamplerCase:
    """Rows of logits with everything a sampler needs."""

    def __init__(self, name: str, vocab: int, num_rows: int, device: str) -> None:
        self.logits = torch.randn((num_rows, vocab), device=device) * 3.0
        flags = torch.zeros(vocab, dtype=torch.uint8, device=device)
        self.sampler = choose_sampler(name, flags, num_rows)
        self.fields = Mirrored(state_fields(num_rows, 4096), self.logits.device)
        for row in range(num_rows):
            fill_settings(self.fields.host, row, _SAMPLED)
        self.fields.upload()
        self.state = state_of(self.fields)

    def step(self) -> None:
        self.sampler(self.logits, self.state, filters=False)


def _torch_step(logits: torch.Tensor) -> torch.Tensor:
    """What it takes from separate operations: a token and its confidence."""
    tokens = torch.multinomial(torch.softmax(logits / 0.8, dim=-1), 1)
    return torch.softmax(logits, dim=-1).gather(1, tokens)


def _flashinfer_us(logits: torch.Tensor, settings: Settings) -> float:
    sampling: Any = importlib.import_module("flashinfer.sampling")

    def step() -> None:
        probs = torch.softmax(logits, dim=-1)
        tokens = sampling.sampling_from_probs(torch.softmax(logits / 0.8, dim=-1))
        probs.gather(1, tokens[:, None].long())

    return time_us(step, settings)


def measure_samplers(report: Report) -> None:
    """Temperature sampling with confidence, minimum, mask and flags, inside a graph.

    What it is compared with is called outside of one, where small batches wait for the host.
    """
    settings = report.settings
    device = settings.torch_device
    vocabularies = (32000, 49152, 128256, 262144) if settings.is_cuda else (1500,)
    batches = (1, 8, 64) if settings.is_cuda else (1, 2)
    has_flashinfer = settings.is_cuda and importlib.util.find_spec("flashinfer") is not None
    for vocab in vocabularies[-2:] if settings.is_quick else vocabularies:
        for num_rows in batches:
            title = f"{vocab} x {num_rows}"
            names = ["triton"] if not settings.is_cuda else ["fused", "triton"]
            for name in names:
                aim = 12.0 if (name, vocab, num_rows) == ("fused", 128256, 1) else None

                def fused(name: str = name, vocab: int = vocab,
                          num_rows: int = num_rows) -> tuple[float, str]:
                    case = SamplerCase(name, vocab, num_rows, device)
                    return in_graph_us(case.step, settings), case.sampler.name

                report.measure("sampler", f"{title} {name}", "us", fused, at_most=aim)
            logits = torch.randn((num_rows, vocab), device=device) * 3.0
            report.measure("sampler", f"{title} torch, separate calls", "us", functools.partial(
                time_us, functools.partial(_torch_step, logits), settings))
            if has_flashinfer:
                report.measure("sampler", f"{title} FlashInfer", "us",
                               functools.partial(_flashinfer_us, logits, settings))
    if settings.is_cuda and not has_flashinfer:
        report.show("sampler      FlashInfer is not installed: no rows for it")
