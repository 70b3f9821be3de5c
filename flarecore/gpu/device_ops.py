"""What is moved in device memory beside the forward pass: KV blocks, rows, sets of seen tokens.

Two ways with the same result: the launches of ``flarecore._cuda`` (csrc/cuda/kv_blocks.h, rows.h),
and torch, which runs everywhere and is what they are tested against. All of it is in stream order;
nothing looks at the host.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from flarecore.errors import UnsupportedError
from flarecore.gpu.options import GpuOptions

__all__ = ["BlockCopy", "CudaOps", "DeviceOps", "TorchOps", "choose_ops", "load_cuda",
           "stream_of"]

_CUDA = "flarecore._cuda"
_UNIT = 16  # bytes that the block copy moves at once


class BlockCopy(NamedTuple):
    """Tokens [first, first + num_tokens) of two blocks laid end to end, into the start of another.

    What is behind them in `destination` becomes zero. `following` does not matter where `source`
    holds them all. With `source` as `destination` and `first` 0 a block is truncated in place.
    """

    source: int
    following: int
    destination: int
    first: int
    num_tokens: int


class DeviceOps(Protocol):
    """See the module."""

    name: str

    def copy_blocks(self, caches: torch.Tensor, copies: Sequence[BlockCopy]) -> None:
        """Copies in all layers: `caches` is (layers, 2, blocks, heads, block tokens, head_dim).

        Destinations are distinct, and nobody's source but that of their own truncation.
        """
        ...

    def gather_rows(self, source: torch.Tensor, indices: torch.Tensor, out: torch.Tensor) -> None:
        """out[i] = source[indices[i]]; both (rows, columns), indices (n,) int32 within `source`."""
        ...

    def mark_seen(self, seen: torch.Tensor, tokens: torch.Tensor, vocab_size: int) -> None:
        """Makes `seen`, (ceil(vocab_size / 32),) int32, the set of `tokens`, (n,) int32."""
        ...


class TorchOps:
    """The slow twin: a launch or more per block."""

    name = "torch"

    def copy_blocks(self, caches: torch.Tensor, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            out = caches[:, :, copy.destination]
            source = caches[:, :, copy.source, :, copy.first : copy.first + copy.num_tokens]
            num_near = source.shape[3]
            out[:, :, :, :num_near].copy_(source)
            num_far = copy.num_tokens - num_near
            if num_far:
                out[:, :, :, num_near : copy.num_tokens].copy_(
                    caches[:, :, copy.following, :, :num_far])
            out[:, :, :, copy.num_tokens :].zero_()

    def gather_rows(self, source: torch.Tensor, indices: torch.Tensor, out: torch.Tensor) -> None:
        torch.index_select(source, 0, indices, out=out)

    def mark_seen(self, seen: torch.Tensor, tokens: torch.Tensor, vocab_size: int) -> None:
        is_seen = torch.zeros(seen.shape[0] * 32, dtype=torch.int64, device=seen.device)
        is_seen[tokens.long()] = 1
        bits = torch.arange(32, device=seen.device)
        words = (is_seen.view(-1, 32) << bits).sum(dim=1)
        seen.copy_(torch.where(words >= 1 << 31, words - (1 << 32), words))


class CudaOps:
    """One launch for all layers, rows or tokens."""

    name = "cuda"

    def __init__(self, module: Any) -> None:
        self._module = module
        self._twin = TorchOps()

    def copy_blocks(self, caches: torch.Tensor, copies: Sequence[BlockCopy]) -> None:
        _, _, num_blocks, num_heads, block_tokens, head_dim = caches.shape
        token_bytes = head_dim * caches.element_size()
        if token_bytes % _UNIT:  # heads of odd sizes only
            self._twin.copy_blocks(caches, copies)
            return
        block_bytes = caches.stride(2) * caches.element_size()
        self._module.copy_blocks(
            caches=_starts(caches), copies=[tuple(copy) for copy in copies], num_blocks=num_blocks,
            num_heads=num_heads, token_bytes=token_bytes, block_stride_bytes=block_bytes,
            block_tokens=block_tokens, stream=stream_of(caches.device))

    def gather_rows(self, source: torch.Tensor, indices: torch.Tensor, out: torch.Tensor) -> None:
        size = source.element_size()
        self._module.gather_rows(
            source=source.data_ptr(), source_stride_bytes=source.stride(0) * size,
            num_source_rows=source.shape[0], indices=indices.data_ptr(),
            num_rows=indices.shape[0], row_bytes=source.shape[1] * size, out=out.data_ptr(),
            out_stride_bytes=out.stride(0) * size, stream=stream_of(source.device))

    def mark_seen(self, seen: torch.Tensor, tokens: torch.Tensor, vocab_size: int) -> None:
        self._module.mark_seen(
            seen=seen.data_ptr(), vocab_size=vocab_size, tokens=tokens.data_ptr(),
            num_tokens=tokens.shape[0], stream=stream_of(seen.device))


def _starts(caches: torch.Tensor) -> list[int]:
    """Addresses of every layer's keys and values; by a view of each it would take far longer."""
    begin, size = caches.data_ptr(), caches.element_size()
    by_layer, by_part = (stride * size for stride in caches.stride()[:2])
    return [begin + layer * by_layer + part * by_part
            for layer in range(caches.shape[0]) for part in range(caches.shape[1])]


def stream_of(device: torch.device) -> int:
    """The current stream as ``flarecore._cuda`` takes it."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def load_cuda(device: torch.device) -> Any:
    """``flarecore._cuda``, where it can be used with tensors of this device.

    Raises
    ------
    UnsupportedError
        Says why it cannot.
    """
    if importlib.util.find_spec(_CUDA) is None:
        raise UnsupportedError(f"the module {_CUDA} is not built")
    if device.type != "cuda":
        raise UnsupportedError(f"the module {_CUDA} needs CUDA tensors")
    try:
        module: Any = importlib.import_module(_CUDA)
    except ImportError as error:
        raise UnsupportedError(f"the module {_CUDA} does not load: {error}") from None
    if module.device_count() == 0:
        raise UnsupportedError(str(module.device_status()))
    return module


def choose_ops(options: GpuOptions, device: torch.device) -> DeviceOps:
    """What the options name; ``"auto"`` takes the CUDA launches where they can be used.

    Raises
    ------
    UnsupportedError
        ``"cuda"`` was asked for and cannot be used.
    """
    if options.device_ops != "torch":
        try:
            return CudaOps(load_cuda(device))
        except UnsupportedError as error:
            if options.device_ops == "cuda":
                raise UnsupportedError(f'device_ops="cuda" is not available: {error}; use '
                                       'device_ops="torch"') from None
    return TorchOps()
