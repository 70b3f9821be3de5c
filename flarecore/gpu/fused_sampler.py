"""The fused sampler of an engine: the Triton kernels, or those of ``flarecore._cuda``.

Both move the same state on. An engine uses one of them for all its rows, whatever their number, so
that a row's bits do not depend on its batch.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Protocol

import torch

from flarecore.errors import UnsupportedError
from flarecore.gpu.device import load_kernels

__all__ = ["CudaSampler", "FusedSampler", "TritonSampler", "choose_sampler"]

_CUDA = "flarecore._cuda"


class FusedSampler(Protocol):
    """Samples one token per row and moves the rows' state on, without touching the host."""

    name: str

    def __call__(self, logits: torch.Tensor, state: Any, *, filters: bool,
                 choice_logits: torch.Tensor | None = None) -> None:
        """`logits` (num_rows, vocab); arguments as of kernels.sampling.sample."""
        ...


class TritonSampler:
    """kernels/sampling.py."""

    name = "triton"

    def __init__(self, token_flags: torch.Tensor, max_rows: int) -> None:
        sampling = load_kernels().sampling
        self._sample = sampling.sample
        self._token_flags = token_flags
        self._workspace = sampling.SamplerWorkspace.allocate(
            max_rows, token_flags.shape[0], token_flags.device)

    def __call__(self, logits: torch.Tensor, state: Any, *, filters: bool,
                 choice_logits: torch.Tensor | None = None) -> None:
        self._sample(logits, self._token_flags, state, self._workspace, filters=filters,
                     choice_logits=choice_logits)


class CudaSampler:
    """csrc/cuda/sampler.cu."""

    name = "cuda"

    def __init__(self, token_flags: torch.Tensor, max_rows: int) -> None:
        self._module: Any = importlib.import_module(_CUDA)
        self._token_flags = token_flags
        size = self._module.sample_workspace_size(
            max_rows=max_rows, vocab_size=token_flags.shape[0])
        self._workspace = torch.zeros(size, dtype=torch.uint8, device=token_flags.device)

    def __call__(self, logits: torch.Tensor, state: Any, *, filters: bool,
                 choice_logits: torch.Tensor | None = None) -> None:
        choice = {} if choice_logits is None else {
            "choice_logits": choice_logits.data_ptr(), "choice_stride": choice_logits.stride(0)}
        names = ("floats", "ints", "positions", "tokens", "flags", "num_sampled", "min_prob",
                 "history_tokens", "history_probs", "history_flags")
        self._module.sample(
            logits=logits.data_ptr(), logits_stride=logits.stride(0),
            dtype=str(logits.dtype).removeprefix("torch."), num_rows=logits.shape[0],
            vocab_size=logits.shape[1], token_flags=self._token_flags.data_ptr(),
            **{name: getattr(state, name).data_ptr() for name in names},
            history_capacity=state.history_tokens.shape[1],
            workspace=self._workspace.data_ptr(), workspace_bytes=self._workspace.numel(),
            stream=torch.cuda.current_stream().cuda_stream, filters=filters, **choice)


def _missing_cuda(device: torch.device) -> str | None:
    """Why the CUDA sampler cannot be used; None if it can."""
    if importlib.util.find_spec(_CUDA) is None:
        return f"the module {_CUDA} is not built"
    if device.type != "cuda":
        return "it needs CUDA tensors"
    try:
        module: Any = importlib.import_module(_CUDA)
    except ImportError as error:
        return str(error)
    return None if module.device_count() > 0 else str(module.device_status())


def choose_sampler(name: str, token_flags: torch.Tensor, max_rows: int) -> FusedSampler:
    """The sampler of that name; ``"fused"`` takes the CUDA one where it can be used.

    Raises
    ------
    UnsupportedError
        ``"cuda"`` was asked for and cannot be used.
    """
    if name in ("fused", "cuda"):
        reason = _missing_cuda(token_flags.device)
        if reason is None:
            return CudaSampler(token_flags, max_rows)
        if name == "cuda":
            raise UnsupportedError(f'sampler="cuda" is not available: {reason}; use '
                                   'sampler="triton"')
    return TritonSampler(token_flags, max_rows)
