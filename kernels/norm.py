"""RMSNorm: alone, after adding to the residual stream, and of token embeddings.

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
def _normalised(x, weight_ptr, column, inside, num_columns, eps, weight_offset):
    """RMSNorm of a row that is 0 outside of it, in float32."""
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=0) / num_columns + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32) + weight_offset
    return (x * inverse_rms) * weight


@triton.jit
def _rms_norm_kernel(
    x_ptr,  # (num_rows, num_columns)
    residual_ptr,  # (num_rows, num_columns), updated in place; unused without HAS_RESIDUAL
    post_weight_ptr,  # (num_columns); unused without HAS_POST
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
    HAS_POST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < num_columns
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_POST:
        x = _normalised(x, post_weight_ptr, column, inside, num_columns, eps, weight_offset)
        # Rounded, as if this norm had been a launch of its own. In float32 the choice keeps the
        # compiler from fusing the last product with the addition to the residual.
        x = tl.where(inside, x.to(x_ptr.dtype.element_ty).to(tl.float32), 0.0)
    if HAS_RESIDUAL:
        residual_row = residual_ptr + row * residual_stride + column
        x += tl.load(residual_row, mask=inside, other=0.0).to(tl.float32)
        # The norm sees the rounded sum, as if the addition had been an operation of its own.
        rounded = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_row, rounded, mask=inside)
        x = rounded.to(tl.float32)
    y = _normalised(x, weight_ptr, column, inside, num_columns, eps, weight_offset)
    tl.store(out_ptr + row * out_stride + column, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _embed_norm_kernel(
    token_ids_ptr,  # (num_rows)
    embedding_ptr,  # (vocab_size, num_columns)
    weight_ptr,  # (num_columns)
    residual_ptr,  # (num_rows, num_columns), written
    out_ptr,  # (num_rows, num_columns)
    embedding_stride,
    residual_stride,
    out_stride,
    vocab_size,
    num_columns,
    scale,
    eps,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < num_columns
    token = tl.load(token_ids_ptr + row).to(tl.int64)
    # A row of zeros for an id outside of the vocabulary: nothing foreign is read.
    live = inside & (token >= 0) & (token < vocab_size)
    at = embedding_ptr + token * embedding_stride + column
    x = tl.load(at, mask=live, other=0.0).to(tl.float32) * scale
    rounded = x.to(residual_ptr.dtype.element_ty)
    tl.store(residual_ptr + row * residual_stride + column, rounded, mask=inside)
    x = rounded.to(tl.float32)
    y = _normalised(x, weight_ptr, column, inside, num_columns, eps, 0.0)
    tl.store(out_ptr + row * out_stride + column, y.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    post_weight: torch.Tensor | None = None,
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
    post_weight
        Like `weight`: `x` is normalised with it, and rounded to its dtype, before it is added to
        `residual` (the post-norms of Gemma).
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
    _check_norm(weight, eps, num_columns, x.device)
    if post_weight is not None:
        check_tensor("post_weight", post_weight, (num_columns,), FLOAT_DTYPES, x.device)
        require(residual is not None, "post_weight needs a residual to add to")
    if residual is not None:
        check_tensor("residual", residual, x.shape, FLOAT_DTYPES, x.device, strided_dims=1)
    if out is None:
        out = torch.empty((num_rows, num_columns), dtype=x.dtype, device=x.device)
    check_tensor("out", out, x.shape, FLOAT_DTYPES, x.device, strided_dims=1)
    if num_rows == 0:
        return out
    _rms_norm_kernel[(num_rows,)](
        x,
        residual if residual is not None else x,
        post_weight if post_weight is not None else weight,
        weight,
        out,
        x.stride(0),
        residual.stride(0) if residual is not None else 0,
        out.stride(0),
        num_columns,
        eps,
        weight_offset,
        HAS_RESIDUAL=residual is not None,
        HAS_POST=post_weight is not None,
        **norm_constants(num_columns),
    )
    return out


def embed_norm(
    token_ids: torch.Tensor,
    embedding: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor,
    out: torch.Tensor,
    scale: float = 1.0,
) -> torch.Tensor:
    """The beginning of a forward pass: residual = embedding[token_ids] * scale, and its RMSNorm.

    Parameters
    ----------
    token_ids
        (num_rows) int32; an id outside of the vocabulary gives zeros.
    embedding
        (vocab_size, num_columns) float32, float16 or bfloat16; rows may be strided.
    weight, eps
        Of the norm, as for :func:`rms_norm`.
    residual
        (num_rows, num_columns) for the scaled embeddings, whose rounded values are normalised.
    out
        (num_rows, num_columns) for the norm.
    scale
        Multiplies the embeddings, in float32 (Gemma).

    Returns
    -------
    torch.Tensor
        `out`.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit.
    """
    check_tensor("embedding", embedding, (None, None), FLOAT_DTYPES, strided_dims=1)
    vocab_size, num_columns = embedding.shape
    device = embedding.device
    check_tensor("token_ids", token_ids, (None,), (torch.int32,), device)
    _check_norm(weight, eps, num_columns, device)
    shape = (token_ids.shape[0], num_columns)
    check_tensor("residual", residual, shape, FLOAT_DTYPES, device, strided_dims=1)
    check_tensor("out", out, shape, FLOAT_DTYPES, device, strided_dims=1)
    if shape[0] == 0:
        return out
    _embed_norm_kernel[(shape[0],)](
        token_ids, embedding, weight, residual, out,
        embedding.stride(0), residual.stride(0), out.stride(0), vocab_size, num_columns, scale, eps,
        **norm_constants(num_columns),
    )  # fmt: skip
    return out


def norm_constants(num_columns: int) -> dict[str, int]:
    """Compile-time constants and launch options; about 16 values a thread, so that a long row is
    one load per value deep.
    """
    block = next_power_of_2(num_columns)
    return {"BLOCK": block, "num_warps": min(16, max(1, block // 512))}


def _check_norm(
    weight: torch.Tensor, eps: float, num_columns: int, device: torch.device
) -> None:
    require(
        1 <= num_columns <= MAX_COLUMNS,
        f"rows must have 1 to {MAX_COLUMNS} columns, got {num_columns}",
    )
    require(eps > 0, f"eps must be > 0, got {eps}")
    check_tensor("weight", weight, (num_columns,), FLOAT_DTYPES, device)
