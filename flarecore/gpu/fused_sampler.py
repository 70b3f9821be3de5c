"""The fused sampler of an engine: the Triton kernels, or those of ``flarecore._cuda``.

Both move the same state on. An engine uses one of them for all its rows, whatever their number, so
that a row's bits do not depend on its batch.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from flarecore.errors import FlarecoreError, UnsupportedError
from flarecore.gpu.adjustments import Adjustments
from flarecore.gpu.device import load_kernels
from flarecore.gpu.device_ops import load_cuda, stream_of

__all__ = ["CudaSampler", "FusedSampler", "TritonSampler", "choose_sampler"]


class FusedSampler(Protocol):
    """Samples one token per row and moves the rows' state on, without touching the host."""

    name: str
    adjusts: bool  # takes adjustments; otherwise they are to be made in the choice logits

    def __call__(self, logits: torch.Tensor, state: Any, *, filters: bool,
                 choice_logits: torch.Tensor | None = None,
                 adjustments: Adjustments | None = None) -> None:
        """`logits` (num_rows, vocab); arguments as of kernels.sampling.sample."""
        ...


class TritonSampler:
    """kernels/sampling.py."""

    name = "triton"
    adjusts = False

    def __init__(self, token_flags: torch.Tensor, max_rows: int) -> None:
        sampling = load_kernels().sampling
        self._sample = sampling.sample
        self._token_flags = token_flags
        self._workspace = sampling.SamplerWorkspace.allocate(
            max_rows, token_flags.shape[0], token_flags.device)

    def __call__(self, logits: torch.Tensor, state: Any, *, filters: bool,
                 choice_logits: torch.Tensor | None = None,
                 adjustments: Adjustments | None = None) -> None:
        if adjustments is not None:
            raise FlarecoreError("the Triton sampler takes adjusted choice logits only")
        self._sample(logits, self._token_flags, state, self._workspace, filters=filters,
                     choice_logits=choice_logits)


class CudaSampler:
    """csrc/cuda/sampler.cu."""

    name = "cuda"
    adjusts = True

    def __init__(self, token_flags: torch.Tensor, max_rows: int) -> None:
        self._module = load_cuda(token_flags.device)
        self._token_flags = token_flags
        size = self._module.sample_workspace_size(
            max_rows=max_rows, vocab_size=token_flags.shape[0])
        self._workspace = torch.zeros(size, dtype=torch.uint8, device=token_flags.device)

    def __call__(self, logits: torch.Tensor, state: Any, *, filters: bool,
                 choice_logits: torch.Tensor | None = None,
                 adjustments: Adjustments | None = None) -> None:
        choice = {} if choice_logits is None else {
            "choice_logits": choice_logits.data_ptr(), "choice_stride": choice_logits.stride(0)}
        if adjustments is not None:
            choice |= {"seen": adjustments.seen.data_ptr(),
                       "penalties": adjustments.penalties.data_ptr()}
            if adjustments.bias is not None:
                choice |= {"bias": adjustments.bias.data_ptr(),
                           "bias_stride": adjustments.bias.stride(0)}
        names = ("floats", "ints", "positions", "tokens", "flags", "num_sampled", "min_prob",
                 "history_tokens", "history_probs", "history_flags")
        self._module.sample(
            logits=logits.data_ptr(), logits_stride=logits.stride(0),
            dtype=str(logits.dtype).removeprefix("torch."), num_rows=logits.shape[0],
            vocab_size=logits.shape[1], token_flags=self._token_flags.data_ptr(),
            **{name: getattr(state, name).data_ptr() for name in names},
            history_capacity=state.history_tokens.shape[1],
            workspace=self._workspace.data_ptr(), workspace_bytes=self._workspace.numel(),
            stream=stream_of(logits.device), filters=filters, **choice)


def choose_sampler(name: str, token_flags: torch.Tensor, max_rows: int) -> FusedSampler:
    """The sampler of that name; ``"fused"`` takes the CUDA one where it can be used.

    Raises
    ------
    UnsupportedError
        ``"cuda"`` was asked for and cannot be used.
    """
    if name in ("fused", "cuda"):
        try:
            return CudaSampler(token_flags, max_rows)
        except UnsupportedError as error:
            if name == "cuda":
                raise UnsupportedError(f'sampler="cuda" is not available: {error}; use '
                                       'sampler="triton"') from None
    return TritonSampler(token_flags, max_rows)
