"""Paged attention: one tile of query rows against a run of tokens, shared by decode and prefill.

Grouped queries over a paged KV cache, flash style: scores of one tile of tokens at a time, a
running maximum and sum per query row. A tile of the query side packs rows x heads of one KV head,
so keys and values are read once for the whole group. Source: Dao et al., "FlashAttention", 2022;
Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
2023.

Order of accumulation. A row adds its tokens in tiles aligned to absolute positions, and decode
joins splits of a fixed number of tokens in ascending order. A tile or split in which a row sees
nothing leaves its sums as they are, bit for bit: its weights are exact zeros and the rescaling is
by exactly one. So a row's result depends on its own position and keys only, never on which rows
share its tile, how many there are, or how many splits the launch provides for.

Maxima are kept in units of log2, so that the exponentials are single exp2 instructions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .checks import FLOAT_DTYPES, INTERPRETED, check_tensor, require
from .rope import BLOCK_TOKENS

MAX_HEAD_DIM = 256
LOG2_E = 1.4426950408889634


@triton.jit
def _add_tile(
    q,  # (M, D) queries of the tile
    acc,  # (M, D) float32 running sum of p * v
    row_max,  # (M) float32
    row_sum,  # (M) float32
    k_ptr,  # K of this head in block 0
    v_ptr,
    slot,  # (N) elements from there to each token
    needed,  # (N) tokens that are read
    visible,  # (M, N) what each row sees of them; unused without MASKED
    scale_log2,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MASKED: tl.constexpr,  # False: every row sees every token
    UPCAST: tl.constexpr,  # float32 products (the interpreter cannot multiply bfloat16)
):
    d = tl.arange(0, BLOCK_D)
    k_mask = needed[None, :] & (d < HEAD_DIM)[:, None]
    k = tl.load(k_ptr + slot[None, :] + d[:, None], mask=k_mask, other=0.0)
    if UPCAST:
        scores = tl.dot(q.to(tl.float32), k.to(tl.float32), input_precision="ieee")
    else:
        scores = tl.dot(q, k, input_precision="ieee")
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, axis=1) * scale_log2)
    # A row that has seen nothing yet keeps -inf; subtracting 0 instead avoids inf - inf.
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    # Explicit, or the compiler would fuse it in tiles without a mask and not in others.
    p = tl.exp2(tl.fma(scores, scale_log2, -shift[:, None]))
    rescale = tl.exp2(row_max - shift)
    row_sum = tl.fma(row_sum, rescale, tl.sum(p, axis=1))
    v_mask = needed[:, None] & (d < HEAD_DIM)[None, :]
    v = tl.load(v_ptr + slot[:, None] + d[None, :], mask=v_mask, other=0.0)
    acc = acc * rescale[:, None]
    p = p.to(v.dtype)
    if UPCAST:
        acc = tl.dot(p.to(tl.float32), v.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(p, v, acc, input_precision="ieee")
    return acc, new_max, row_sum


@triton.jit
def _attend(
    q,  # (M, D) queries of the tile
    acc,  # (M, D) float32 running sum of p * v
    row_max,  # (M) float32
    row_sum,  # (M) float32
    last_visible,  # (M) last token position each row sees
    first_visible,  # (M) first one
    k_ptr,  # K of this head in block 0
    v_ptr,
    table_ptr,  # block table row of the sequence
    cache_stride,  # elements between two blocks
    scale_log2,
    token_begin,  # multiple of BLOCK_N
    token_end,
    first_needed,  # tokens outside [first_needed, last_needed] are not read
    last_needed,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    MASKED: tl.constexpr,  # False: every row sees every token of the range
    UPCAST: tl.constexpr,  # float32 products (the interpreter cannot multiply bfloat16)
):
    tl.static_assert(BLOCK_N == BLOCK_TOKENS or BLOCK_N == 2 * BLOCK_TOKENS)
    lane = tl.arange(0, BLOCK_N)
    for begin in range(token_begin, token_end, BLOCK_N):
        token = begin + lane
        needed = (token >= first_needed) & (token <= last_needed)
        # Block ids as scalars: the compiler then keeps several tiles of keys and values in flight,
        # and their addresses in few registers. Blocks outside the needed range may be freed ones.
        at = table_ptr + begin // BLOCK_TOKENS
        block = tl.load(at, mask=begin + BLOCK_TOKENS > first_needed, other=0).to(tl.int64)
        offset = block * cache_stride
        if BLOCK_N == 2 * BLOCK_TOKENS:
            second = tl.load(at + 1, mask=begin + BLOCK_TOKENS <= last_needed, other=0)
            offset = tl.where(lane < BLOCK_TOKENS, offset, second.to(tl.int64) * cache_stride)
        slot = offset + (lane % BLOCK_TOKENS) * HEAD_DIM
        visible = token[None, :] <= last_visible[:, None]
        visible = visible & (token[None, :] >= first_visible[:, None])
        acc, row_max, row_sum = _add_tile(
            q, acc, row_max, row_sum, k_ptr, v_ptr, slot, needed, visible, scale_log2,
            HEAD_DIM, BLOCK_D, MASKED, UPCAST,
        )  # fmt: skip
    return acc, row_max, row_sum


@triton.jit
def _tile_rows(row_begin, row_end, positions_ptr, kv_head, limit, window, num_head, num_reserved,
               GROUP: tl.constexpr, BLOCK_M: tl.constexpr):  # fmt: skip
    """Rows x heads of one tile: row, head, valid, position, first visible token of each.

    Then the first position that each one's window reaches: tokens behind the first `num_head` are
    `num_reserved` positions later than their place in the sequence.

    Also the tokens that any of them needs: [first_needed, last_needed], last_needed -1 for none.
    Rows that are not valid and padding (position < 0) need none.
    """
    m = tl.arange(0, BLOCK_M)
    row = row_begin + m // GROUP
    head = kv_head * GROUP + m % GROUP
    valid = (m < BLOCK_M // GROUP * GROUP) & (row < row_end)
    position = tl.load(positions_ptr + row, mask=valid, other=-1)
    # window > 0: a row sees the last `window` positions, its own included.
    reached = position + tl.where(position >= num_head, num_reserved, 0) - window + 1
    reached = tl.maximum(tl.where(window > 0, reached, 0), 0)
    first_visible = tl.where(
        reached <= num_head, reached, tl.maximum(reached - num_reserved, num_head)
    )
    last_needed = tl.minimum(tl.max(position, axis=0), limit - 1)
    first_needed = tl.min(tl.where(position >= 0, first_visible, limit), axis=0)
    first_needed = tl.minimum(first_needed, tl.maximum(last_needed, 0))
    return (row.to(tl.int64), head, valid, position, first_visible, reached, first_needed,
            last_needed)  # fmt: skip


@triton.jit
def _no_sums(BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Sum of p * v, maximum and sum of p of rows that have seen nothing yet."""
    return (tl.zeros((BLOCK_M, BLOCK_D), tl.float32),
            tl.full((BLOCK_M,), float("-inf"), tl.float32),
            tl.zeros((BLOCK_M,), tl.float32))  # fmt: skip


@triton.jit
def _load_queries(q_ptr, row, head, q_stride, valid, k_cache_ptr, HEAD_DIM: tl.constexpr,
                  BLOCK_D: tl.constexpr):  # fmt: skip
    d = tl.arange(0, BLOCK_D)
    at = q_ptr + row[:, None] * q_stride + head[:, None] * HEAD_DIM + d[None, :]
    q = tl.load(at, mask=valid[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
    return q.to(k_cache_ptr.dtype.element_ty)


@triton.jit
def _store_rows(out_ptr, row, head, out_stride, acc, row_sum, valid, in_range,
                HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    d = tl.arange(0, BLOCK_D)
    result = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    # A row whose position the launch does not provide for must not look like a result.
    result = tl.where(in_range[:, None], result, float("nan"))
    target = out_ptr + row[:, None] * out_stride + head[:, None] * HEAD_DIM + d[None, :]
    mask = valid[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(target, result.to(out_ptr.dtype.element_ty), mask=mask)


def check_attention(
    q, k_cache, v_cache, block_table, positions, query_begin, out, scale, window, max_query_rows,
    passages
):  # fmt: skip
    """Check the arguments that decode and prefill share; see their docstrings."""
    check_tensor("q", q, (None, None, None), FLOAT_DTYPES, strided_dims=1)
    num_rows, num_heads, head_dim = q.shape
    require(
        1 <= head_dim <= MAX_HEAD_DIM,
        f"head_dim must be 1 to {MAX_HEAD_DIM}, got {head_dim}",
    )
    cache_shape = (None, None, BLOCK_TOKENS, head_dim)
    check_tensor("k_cache", k_cache, cache_shape, FLOAT_DTYPES, q.device, strided_dims=1)
    # Products of float32 would leave the tensor cores and spill: no path worth having on a device.
    require(
        INTERPRETED or k_cache.dtype != torch.float32,
        "a float32 cache works in the interpreter only; use float16 or bfloat16 on a device",
    )
    check_tensor("v_cache", v_cache, k_cache.shape, (k_cache.dtype,), q.device, strided_dims=1)
    require(
        k_cache.stride(0) == v_cache.stride(0),
        f"k_cache and v_cache must have the same block stride, got {k_cache.stride(0)} and "
        f"{v_cache.stride(0)}",
    )
    num_kv_heads = k_cache.shape[1]
    require(
        num_kv_heads > 0 and num_heads % num_kv_heads == 0,
        f"the query heads must be a multiple of the KV heads, got {num_heads} and {num_kv_heads}",
    )
    check_tensor("block_table", block_table, (None, None), (torch.int32,), q.device)
    check_tensor("positions", positions, (num_rows,), (torch.int32,), q.device)
    num_sequences = block_table.shape[0]
    check_tensor("query_begin", query_begin, (num_sequences + 1,), (torch.int32,), q.device)
    if passages is not None:
        passages.check(num_sequences, q.device)
    check_tensor("out", out, q.shape, FLOAT_DTYPES, q.device, strided_dims=1)
    # A maximum of scaled products is the scaled maximum of the products.
    require(scale > 0, f"scale must be > 0, got {scale}")
    require(window >= 0, f"window must be >= 0 (0: none), got {window}")
    require(max_query_rows >= 1, f"max_query_rows must be at least 1, got {max_query_rows}")
