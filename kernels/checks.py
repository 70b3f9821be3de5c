"""Checks that every launcher makes before it launches, and what the launchers know of Triton.

A kernel cannot raise, so everything that the host can see without a synchronisation is checked
here: type, shape, dtype, device, strides. Contents of device tensors (positions, block tables) are
not read; kernels guard against them where an out-of-range value could touch foreign memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def _probe():
    pass


# Whether the kernels of this process run in Triton's interpreter; fixed when triton decorates them.
INTERPRETED = not isinstance(_probe, triton.runtime.JITFunction)


def require(condition: bool, message: str) -> None:
    """Raise ValueError with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def check_tensor(
    name: str,
    tensor: object,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    device: torch.device | None = None,
    strided_dims: int = 0,
) -> torch.Tensor:
    """Check one tensor argument and return it.

    Parameters
    ----------
    name
        What the argument is called in messages.
    tensor
        The argument.
    shape
        Expected sizes; None accepts any size.
    dtypes
        Accepted element types.
    device
        Where it must live; None accepts any device that can launch a kernel.
    strided_dims
        How many leading dimensions may have strides of their own; the rest must be contiguous.

    Raises
    ------
    TypeError
        If it is no tensor or has another dtype.
    ValueError
        If shape, strides or device do not fit.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        wanted = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise TypeError(f"{name} must have dtype {wanted}, got {tensor.dtype}")
    if not _fits(tensor.shape, shape):
        wanted = ", ".join("any" if w is None else str(w) for w in shape)
        raise ValueError(f"{name} must have shape ({wanted}), got {tuple(tensor.shape)}")
    if not tensor.is_contiguous():
        _check_strides(name, tensor, strided_dims)
    _check_device(name, tensor, device)
    return tensor


# A pass makes a thousand of these checks, and where it is not captured the device waits for them:
# messages are put together only where something is wrong.


def _fits(actual: Sequence[int], wanted: Sequence[int | None]) -> bool:
    if len(actual) != len(wanted):
        return False
    for have, want in zip(actual, wanted, strict=True):
        if want is not None and want != have:
            return False
    return True


def _check_strides(name: str, tensor: torch.Tensor, strided_dims: int) -> None:
    expected_stride = 1
    for dim in range(tensor.dim() - 1, strided_dims - 1, -1):
        if tensor.shape[dim] > 1 and tensor.stride(dim) != expected_stride:
            raise ValueError(
                f"{name} must be contiguous from dimension {strided_dims} on, got strides "
                f"{tuple(tensor.stride())} for shape {tuple(tensor.shape)}; call .contiguous()"
            )
        expected_stride *= tensor.shape[dim]


def _check_device(name: str, tensor: torch.Tensor, device: torch.device | None) -> None:
    if device is not None and tensor.device != device:
        raise ValueError(
            f"{name} must be on {device} like the other arguments, got {tensor.device}"
        )
    if not (INTERPRETED or tensor.is_cuda):
        raise ValueError(
            f"{name} is on {tensor.device}, but kernels run on a CUDA device; move it there, or "
            "set TRITON_INTERPRET=1 before triton is imported to run the kernels in the interpreter"
        )


def next_power_of_2(n: int) -> int:
    """Smallest power of two that is at least n (n >= 1)."""
    return 1 << (n - 1).bit_length()


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up, for a >= 0 and b > 0."""
    return -(-a // b)
