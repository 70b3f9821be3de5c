"""RMSNorm, alone or after adding the residual stream.

y[i] = x[i] * (weight[i] + weight_offset) / sqrt(mean(x^2) + eps), computed in float32 and rounded
once. One program does one row, and the shape of its sum depends on the row length only, so a row
gives the same bits alone and in any batch. Source: Zhang and Sennrich, "Root Mean Square Layer
Normalization", 2019, equation 4.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .checks import FLOAT_DTYPES, check_tensor, next_power_of_2, require

MAX_COLUMNS = 16384


@triton.jit
def _rms_norm_kernel(
    x_ptr,  # (num_rows, num_columns)
    residual_ptr,  # (num_rows, num_columns), updated in place; unused without HAS_RESIDUAL
    weight_ptr,  # (num_columns)
    out_ptr,  # (num_rows, num_columns)
    x_stride,
    residual_stride,
    out_stride,
    num_columns,
    eps,
    weight_offset,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < num_columns
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual_row = residual_ptr + row * residual_stride + column
        x += tl.load(residual_row, mask=inside, other=0.0).to(tl.float32)
        # The norm sees the rounded sum, as if the addition had been an operation of its own.
        rounded = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_row, rounded, mask=inside)
        x = rounded.to(tl.float32)
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=0) / num_columns + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32) + weight_offset
    y = (x * inverse_rms) * weight
    tl.store(out_ptr + row * out_stride + column, y.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    """RMSNorm of every row of `x`, or of `residual + x` written back to `residual`.

    Parameters
    ----------
    x
        (num_rows, num_columns) float32, float16 or bfloat16; rows may be strided.
    weight
        (num_columns), any of the same dtypes.
    eps
        Added to the mean square; > 0.
    residual
        (num_rows, num_columns): becomes `residual + x`, rounded to its dtype, and is what is
        normalised.
    out
        (num_rows, num_columns) for the result, may be `x`; by default a new tensor like `x`.
    weight_offset
        Added to `weight`: 1.0 for Gemma checkpoints that store weight - 1.

    Returns
    -------
    torch.Tensor
        `out`.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit.
    """
    check_tensor("x", x, (None, None), FLOAT_DTYPES, strided_dims=1)
    num_rows, num_columns = x.shape
    require(
        1 <= num_columns <= MAX_COLUMNS,
        f"rows must have 1 to {MAX_COLUMNS} columns, got {num_columns}",
    )
    require(eps > 0, f"eps must be > 0, got {eps}")
    check_tensor("weight", weight, (num_columns,), FLOAT_DTYPES, x.device)
    if residual is not None:
        check_tensor("residual", residual, x.shape, FLOAT_DTYPES, x.device, strided_dims=1)
    if out is None:
        out = torch.empty((num_rows, num_columns), dtype=x.dtype, device=x.device)
    check_tensor("out", out, x.shape, FLOAT_DTYPES, x.device, strided_dims=1)
    if num_rows == 0:
        return out
    block = next_power_of_2(num_columns)
    _rms_norm_kernel[(num_rows,)](
        x,
        residual if residual is not None else x,
        weight,
        out,
        x.stride(0),
        residual.stride(0) if residual is not None else 0,
        out.stride(0),
        num_columns,
        eps,
        weight_offset,
        BLOCK=block,
        HAS_RESIDUAL=residual is not None,
        num_warps=norm_num_warps(block),
    )
    return out


def norm_num_warps(block: int) -> int:
    """Warps per row: about 16 values a thread, so that a long row is one load per value deep."""
    return min(16, max(1, block // 512))
