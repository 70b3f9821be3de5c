"""Rotary position embedding of queries and keys, fused with storing K and V into the paged cache.

One launch after the QKV projection: rotates the queries in place (or into `q_out`), rotates the
keys and writes them with the values into their blocks. Optionally queries, keys and values get a
bias first (Qwen2), and each query and key head is RMS-normalised (Qwen3, Gemma3). Source: Su et
al., "RoFormer", 2021. The cosines and sines come from a float32 table, so every scaling of the
frequencies (linear, Llama 3, YaRN) is the caller's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .checks import FLOAT_DTYPES, ceil_div, check_tensor, next_power_of_2, require

BLOCK_TOKENS = 32  # token slots of one KV block, as csrc/common/types.h has it
TOKENS_PER_PROGRAM = 4  # the same for decode and prefill: one shape, one order of accumulation


@triton.jit
def _load_pairs(ptr, at_first, at_second, mask):
    """Both halves of each pair, (TOKENS, HALF_BLOCK) float32; `ptr` is (TOKENS, 1)."""
    first = tl.load(ptr + at_first[None, :], mask=mask, other=0.0).to(tl.float32)
    second = tl.load(ptr + at_second[None, :], mask=mask, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _add_bias(first, second, ptr, inside, at_first, at_second):
    """What the bias of one head adds to both halves; `ptr` is where the head's begins."""
    bias_first = tl.load(ptr + at_first, mask=inside, other=0.0).to(tl.float32)
    bias_second = tl.load(ptr + at_second, mask=inside, other=0.0).to(tl.float32)
    return first + bias_first[None, :], second + bias_second[None, :]


@triton.jit
def _rotate(first, second, cos, sin, norm_ptr, inside, at_first, at_second, eps,
            HEAD_DIM: tl.constexpr, HAS_NORM: tl.constexpr):  # fmt: skip
    if HAS_NORM:
        squares = tl.sum(first * first + second * second, axis=1)
        inverse_rms = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        norm_first = tl.load(norm_ptr + at_first, mask=inside, other=0.0).to(tl.float32)
        norm_second = tl.load(norm_ptr + at_second, mask=inside, other=0.0).to(tl.float32)
        first = first * inverse_rms * norm_first[None, :]
        second = second * inverse_rms * norm_second[None, :]
    # Explicit, so that every compiled variant fuses the same way.
    return tl.fma(first, cos, -(second * sin)), tl.fma(second, cos, first * sin)


@triton.jit
def _to_cache(x, ptr):
    if ptr.dtype.element_ty == tl.float16:
        # As the CPU's to_float16: what overflows becomes the largest finite value, never inf.
        x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
    return x.to(ptr.dtype.element_ty)


@triton.jit
def _store_to_cache(cache_ptr, slot, first, second, at_first, at_second, mask):
    target = cache_ptr + slot[:, None]
    tl.store(target + at_first[None, :], _to_cache(first, cache_ptr), mask=mask)
    tl.store(target + at_second[None, :], _to_cache(second, cache_ptr), mask=mask)


@triton.jit
def _rotary_positions(token, num_tokens, num_positions, positions_ptr, table_rows_ptr, layout_ptr,
                      HAS_GAP: tl.constexpr):  # fmt: skip
    """Place of each token in its sequence, the position it is rotated by, whether it is live.

    Padding rows (position < 0) and positions past the table are left alone.
    """
    position = tl.load(positions_ptr + token, mask=token < num_tokens, other=-1)
    live = (position >= 0) & (position < num_positions)
    rotary = position
    if HAS_GAP:
        layout = layout_ptr + tl.load(table_rows_ptr + token, mask=live, other=0).to(tl.int64) * 4
        num_head = tl.load(layout, mask=live, other=0)
        num_reserved = tl.load(layout + 1, mask=live, other=0)
        rotary = position + tl.where(position >= num_head, num_reserved, 0)
        live = live & (rotary < num_positions)
    return position, rotary, live


@triton.jit
def _slots(token, position, live, kv_head, table_rows_ptr, block_table_ptr, table_width,
           cache_stride, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr):  # fmt: skip
    """Elements from the cache's begin to each token's head, and whether it has a block."""
    column = position // BLOCK_TOKENS
    live = live & (column < table_width)
    table_row = tl.load(table_rows_ptr + token, mask=live, other=0).to(tl.int64)
    block = tl.load(block_table_ptr + table_row * table_width + column, mask=live, other=-1)
    slot = kv_head * BLOCK_TOKENS + position % BLOCK_TOKENS
    return block.to(tl.int64) * cache_stride + slot * HEAD_DIM, live & (block >= 0)


# Sizes of the batch are not specialised on: one compiled kernel serves them all.
@triton.jit(do_not_specialize=["num_tokens", "num_positions", "table_width"])
def _rope_store_kernel(
    q_ptr,  # (num_tokens, NUM_HEADS, HEAD_DIM)
    k_ptr, v_ptr,  # (num_tokens, num_kv_heads, HEAD_DIM)
    q_out_ptr,  # (num_tokens, NUM_HEADS, HEAD_DIM)
    k_cache_ptr, v_cache_ptr,  # (num_blocks, num_kv_heads, 32, HEAD_DIM)
    cos_ptr, sin_ptr,  # (num_positions, HEAD_DIM / 2)
    positions_ptr, table_rows_ptr,  # (num_tokens)
    block_table_ptr,  # (num_sequences, table_width)
    q_norm_ptr, k_norm_ptr,  # (HEAD_DIM)
    bias_ptr,  # (NUM_HEADS + 2 num_kv_heads, HEAD_DIM), with HAS_BIAS
    layout_ptr,  # (num_sequences, 4), with HAS_GAP
    num_tokens, num_positions, table_width, q_stride, k_stride, v_stride, q_out_stride,
    cache_stride,  # elements between two blocks
    eps,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF_BLOCK: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, INTERLEAVED: tl.constexpr,
    HAS_NORM: tl.constexpr, HAS_GAP: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """A few tokens of one head: of a query head, or of a KV head its keys and values."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    position, rotary, live = _rotary_positions(
        token, num_tokens, num_positions, positions_ptr, table_rows_ptr, layout_ptr, HAS_GAP
    )
    token = token.to(tl.int64)

    pair = tl.arange(0, HALF_BLOCK)
    inside = pair < HEAD_DIM // 2
    if INTERLEAVED:
        at_first, at_second = pair * 2, pair * 2 + 1
    else:
        at_first, at_second = pair, pair + HEAD_DIM // 2
    mask = live[:, None] & inside[None, :]
    angle = rotary.to(tl.int64)[:, None] * (HEAD_DIM // 2) + pair[None, :]
    cos = tl.load(cos_ptr + angle, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=mask, other=0.0)
    bias = bias_ptr + head * HEAD_DIM  # of the query or key head

    if head < NUM_HEADS:
        source = q_ptr + token[:, None] * q_stride + head * HEAD_DIM
        first, second = _load_pairs(source, at_first, at_second, mask)
        if HAS_BIAS:
            first, second = _add_bias(first, second, bias, inside, at_first, at_second)
        first, second = _rotate(first, second, cos, sin, q_norm_ptr, inside, at_first, at_second,
                                eps, HEAD_DIM, HAS_NORM)  # fmt: skip
        target = q_out_ptr + token[:, None] * q_out_stride + head * HEAD_DIM
        element = q_out_ptr.dtype.element_ty
        tl.store(target + at_first[None, :], first.to(element), mask=mask)
        tl.store(target + at_second[None, :], second.to(element), mask=mask)
    else:
        kv_head = head - NUM_HEADS
        slot, live = _slots(token, position, live, kv_head, table_rows_ptr, block_table_ptr,
                            table_width, cache_stride, HEAD_DIM, BLOCK_TOKENS)  # fmt: skip
        mask = live[:, None] & inside[None, :]
        source = k_ptr + token[:, None] * k_stride + kv_head * HEAD_DIM
        first, second = _load_pairs(source, at_first, at_second, mask)
        if HAS_BIAS:
            first, second = _add_bias(first, second, bias, inside, at_first, at_second)
        first, second = _rotate(first, second, cos, sin, k_norm_ptr, inside, at_first, at_second,
                                eps, HEAD_DIM, HAS_NORM)  # fmt: skip
        _store_to_cache(k_cache_ptr, slot, first, second, at_first, at_second, mask)
        source = v_ptr + token[:, None] * v_stride + kv_head * HEAD_DIM
        first, second = _load_pairs(source, at_first, at_second, mask)
        if HAS_BIAS:
            num_kv_heads = tl.num_programs(1) - NUM_HEADS
            value_bias = bias + num_kv_heads * HEAD_DIM
            first, second = _add_bias(first, second, value_bias, inside, at_first, at_second)
        _store_to_cache(v_cache_ptr, slot, first, second, at_first, at_second, mask)


def rope_store(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    table_rows: torch.Tensor,
    block_table: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    interleaved: bool = False,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-6,
    q_out: torch.Tensor | None = None,
    layout: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rotate `q` and `k` by their positions and store `k` and `v` into the cache.

    Parameters
    ----------
    q
        (num_tokens, num_heads, head_dim) float; tokens may be strided (views of one QKV matrix).
    k, v
        (num_tokens, num_kv_heads, head_dim) float; tokens may be strided.
    cos, sin
        (num_positions, head_dim / 2) float32: of position times frequency of each pair.
    positions
        (num_tokens) int32: position of each token; a token with position < 0 is padding and one
        with position >= num_positions is out of range: nothing is written for either.
    table_rows
        (num_tokens) int32: row of `block_table` of the token's sequence.
    block_table
        (num_sequences, table_width) int32: blocks of each sequence in order. Tokens beyond the
        table or with a negative block are not stored.
    k_cache, v_cache
        (num_blocks, num_kv_heads, 32, head_dim) float16, bfloat16 or float32; float16 saturates.
    interleaved
        Rotate the pairs (2 i, 2 i + 1) (GGUF's Llama order) instead of (i, i + head_dim / 2).
    q_norm, k_norm
        (head_dim) weights of an RMSNorm over each head before the rotation; both or none.
    bias
        (num_heads + 2 num_kv_heads, head_dim) added to queries, keys and values before anything
        else, in float32.
    eps
        Of that norm.
    q_out
        Like `q`, for the rotated queries; by default `q` itself.
    layout
        (num_sequences, 4) int32 of a PassageTable: tokens behind the head are rotated by later
        positions than they are stored at.

    Returns
    -------
    torch.Tensor
        The rotated queries.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit.
    """
    q_out = q if q_out is None else q_out
    _check_rope(q, k, v, cos, sin, positions, table_rows, block_table, k_cache, v_cache, q_out)
    require((q_norm is None) == (k_norm is None), "q_norm and k_norm must be given together")
    num_tokens, num_heads, head_dim = q.shape
    for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
        if weight is not None:
            check_tensor(name, weight, (head_dim,), FLOAT_DTYPES, q.device)
    if bias is not None:
        check_tensor("bias", bias, (num_heads + 2 * k.shape[1], head_dim), FLOAT_DTYPES, q.device)
    if layout is not None:
        check_tensor("layout", layout, (block_table.shape[0], 4), (torch.int32,), q.device)
    if num_tokens == 0:
        return q_out
    grid = (ceil_div(num_tokens, TOKENS_PER_PROGRAM), num_heads + k.shape[1])
    _rope_store_kernel[grid](
        q, k, v, q_out, k_cache, v_cache, cos, sin, positions, table_rows, block_table,
        q_norm if q_norm is not None else cos,
        k_norm if k_norm is not None else cos,
        bias if bias is not None else cos,
        layout if layout is not None else positions,
        num_tokens, cos.shape[0], block_table.shape[1],
        q.stride(0), k.stride(0), v.stride(0), q_out.stride(0), k_cache.stride(0), eps,
        **rope_constants(
            num_heads, head_dim, interleaved, q_norm is not None, layout is not None,
            bias is not None,
        ),
    )  # fmt: skip
    return q_out


def rope_constants(
    num_heads: int, head_dim: int, interleaved: bool, has_norm: bool, has_gap: bool = False,
    has_bias: bool = False,
) -> dict[str, int | bool]:
    """Compile-time constants and launch options."""
    return {
        "NUM_HEADS": num_heads,
        "HEAD_DIM": head_dim,
        "HALF_BLOCK": next_power_of_2(head_dim // 2),
        "TOKENS": TOKENS_PER_PROGRAM,
        "BLOCK_TOKENS": BLOCK_TOKENS,
        "INTERLEAVED": interleaved,
        "HAS_NORM": has_norm,
        "HAS_GAP": has_gap,
        "HAS_BIAS": has_bias,
        "num_warps": 2,
    }


def _check_rope(q, k, v, cos, sin, positions, table_rows, block_table, k_cache, v_cache, q_out):
    check_tensor("q", q, (None, None, None), FLOAT_DTYPES, strided_dims=1)
    num_tokens, _, head_dim = q.shape
    require(
        head_dim % 2 == 0 and 2 <= head_dim <= 512,
        f"head_dim must be even and at most 512, got {head_dim}",
    )
    check_tensor("k", k, (num_tokens, None, head_dim), FLOAT_DTYPES, q.device, strided_dims=1)
    num_kv_heads = k.shape[1]
    check_tensor("v", v, k.shape, FLOAT_DTYPES, q.device, strided_dims=1)
    check_tensor("q_out", q_out, q.shape, FLOAT_DTYPES, q.device, strided_dims=1)
    check_tensor("cos", cos, (None, head_dim // 2), (torch.float32,), q.device)
    check_tensor("sin", sin, cos.shape, (torch.float32,), q.device)
    check_tensor("positions", positions, (num_tokens,), (torch.int32,), q.device)
    check_tensor("table_rows", table_rows, (num_tokens,), (torch.int32,), q.device)
    check_tensor("block_table", block_table, (None, None), (torch.int32,), q.device)
    cache_shape = (None, num_kv_heads, BLOCK_TOKENS, head_dim)
    check_tensor("k_cache", k_cache, cache_shape, FLOAT_DTYPES, q.device, strided_dims=1)
    check_tensor("v_cache", v_cache, k_cache.shape, (k_cache.dtype,), q.device, strided_dims=1)
    require(
        k_cache.stride(0) == v_cache.stride(0),
        f"k_cache and v_cache must have the same block stride, got {k_cache.stride(0)} and "
        f"{v_cache.stride(0)}",
    )
