"""Small tensors that live on the host and on the device and cross in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["Mirrored"]

# Triton compiles another variant for pointers that are not multiples of 16 bytes.
_ALIGNMENT = 16
_TORCH_DTYPES = {
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


class Mirrored:
    """Named fields in one allocation on each side.

    Parameters
    ----------
    fields
        Name -> (numpy dtype, shape).
    device
        Where the device side lives.

    Attributes
    ----------
    host
        Name -> numpy array over (pinned) host memory.
    device
        Name -> tensor, at an address that is a multiple of 16 bytes.
    """

    def __init__(
        self, fields: Mapping[str, tuple[Any, tuple[int, ...]]], device: torch.device
    ) -> None:
        offsets, size = {}, 0
        for name, (dtype, shape) in fields.items():
            offsets[name] = size
            size += int(np.prod(shape)) * np.dtype(dtype).itemsize
            size += -size % _ALIGNMENT
        is_cuda = device.type == "cuda"
        self._host = torch.zeros(max(size, 1), dtype=torch.uint8, pin_memory=is_cuda)
        self._device = torch.zeros(max(size, 1), dtype=torch.uint8, device=device)
        self.host: dict[str, Any] = {}
        self.device: dict[str, torch.Tensor] = {}
        flat = self._host.numpy()
        for name, (dtype, shape) in fields.items():
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            part = slice(offsets[name], offsets[name] + size)
            self.host[name] = flat[part].view(dtype).reshape(shape)
            view = self._device[part].view(_TORCH_DTYPES[np.dtype(dtype)])
            self.device[name] = view.view(shape)

    def snapshot(self) -> torch.Tensor:
        """A copy of the host side, for :meth:`restore`."""
        return self._host.clone()

    def restore(self, saved: torch.Tensor) -> None:
        """Makes the host side what it was."""
        self._host.copy_(saved)

    def upload(self) -> None:
        """Host to device, in stream order; the host side may change only after a synchronise."""
        self._device.copy_(self._host, non_blocking=True)

    def download(self) -> None:
        """Device to host, in stream order; valid after a synchronise."""
        self._host.copy_(self._device, non_blocking=True)
