"""Paged attention for decode and verification: few query rows per sequence, one launch.

The context is cut into splits of a fixed number of tokens, so that one row uses many programs. Each
split leaves its unnormalised sum, maximum and sum of weights in a workspace; the last program of a
tile to arrive joins them in ascending order. attention_tile.py tells why a row's bits do not depend
on its batch. Source of the split: Dao et al., "Flash-Decoding for long-context inference", 2023.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .attention_tile import (
    LOG2_E,
    _attend,
    _load_queries,
    _store_rows,
    _tile_rows,
    check_attention,
)
from .attention_workspace import SPLIT_TOKENS, DecodeWorkspace
from .checks import INTERPRETED, ceil_div, next_power_of_2, require
from .rope import BLOCK_TOKENS

BLOCK_M = 16  # rows x heads of one tile: the smallest tensor-core tile


@triton.jit
def _join_splits(partial_ptr, stats_ptr, entry, split_begin, split_end, valid,
                 BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, HEAD_DIM: tl.constexpr,
                 JOIN: tl.constexpr):  # fmt: skip
    """Join the splits [split_begin, split_end) in ascending order, JOIN at a time.

    Groups of JOIN are aligned to absolute split indices and absent splits weigh exactly zero, so
    the order of a row's sum does not depend on the range either.
    """
    d = tl.arange(0, BLOCK_D)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    row_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    for group in range(split_begin // JOIN * JOIN, split_end, JOIN):
        split = group + tl.arange(0, JOIN)
        present = (split >= split_begin) & (split < split_end)
        mask = present[:, None] & valid[None, :]
        at = entry[None, :] + split[:, None]
        # .cg: other programs wrote these through L2; a stale L1 line must not answer.
        split_max = tl.load(
            stats_ptr + at * 2, mask=mask, other=float("-inf"), cache_modifier=".cg"
        )
        split_sum = tl.load(stats_ptr + at * 2 + 1, mask=mask, other=0.0, cache_modifier=".cg")
        split_acc = tl.load(
            partial_ptr + at[:, :, None] * HEAD_DIM + d[None, None, :],
            mask=mask[:, :, None] & (d < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        new_max = tl.maximum(row_max, tl.max(split_max, axis=0))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        weight = tl.exp2(split_max - shift[None, :])
        rescale = tl.exp2(row_max - shift)
        row_sum = tl.fma(row_sum, rescale, tl.sum(split_sum * weight, axis=0))
        rescale = tl.broadcast_to(rescale[:, None], (BLOCK_M, BLOCK_D))
        acc = tl.fma(acc, rescale, tl.sum(split_acc * weight[:, :, None], axis=0))
        row_max = new_max
    return acc, row_sum


# Sizes of the batch are not specialised on: one compiled kernel serves them all.
@triton.jit(do_not_specialize=["table_width", "max_splits", "tiles_per_sequence", "window"])
def _decode_attention_kernel(
    q_ptr,  # (num_rows, NUM_HEADS, HEAD_DIM)
    k_cache_ptr,  # (num_blocks, num_kv_heads, 32, HEAD_DIM)
    v_cache_ptr,  # the same
    block_table_ptr,  # (num_sequences, table_width)
    positions_ptr,  # (num_rows)
    query_begin_ptr,  # (num_sequences + 1)
    out_ptr,  # (num_rows, NUM_HEADS, HEAD_DIM)
    partial_ptr,  # (>= num_rows, NUM_HEADS, max_splits, HEAD_DIM) float32
    stats_ptr,  # (>= num_rows, NUM_HEADS, max_splits, 2) float32: maximum and sum
    arrivals_ptr,  # (>= num_rows, num_kv_heads) int32, zero between launches
    q_stride,
    out_stride,
    cache_stride,
    table_width,
    max_splits,
    tiles_per_sequence,
    scale_log2,
    window,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    SPLIT: tl.constexpr,
    JOIN: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Few query rows per sequence: one program per tile of rows, KV head and split of the context.

    The last program of a tile to arrive joins its splits, so that one launch does it all.
    """
    sequence = tl.program_id(0) // tiles_per_sequence
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row_begin = tl.load(query_begin_ptr + sequence)
    row_begin += tl.program_id(0) % tiles_per_sequence * (BLOCK_M // GROUP)
    row_end = tl.load(query_begin_ptr + sequence + 1)
    if row_begin >= row_end:
        return

    # What both the grid and the block table provide for.
    limit = tl.minimum(tl.num_programs(2) * SPLIT, table_width * BLOCK_TOKENS)
    row, head, valid, position, first_visible, first_needed, last_needed = _tile_rows(
        row_begin, row_end, positions_ptr, kv_head, limit, window, GROUP, BLOCK_M
    )
    in_range = position < limit
    split_begin = first_needed // SPLIT
    split_end = tl.maximum(last_needed, 0) // SPLIT + 1
    if (split < split_begin) | (split >= split_end):
        return

    q = _load_queries(q_ptr, row, head, q_stride, valid, k_cache_ptr, HEAD_DIM, BLOCK_D)
    head_offset = kv_head * (BLOCK_TOKENS * HEAD_DIM)
    acc, row_max, row_sum = _attend(
        q,
        tl.zeros((BLOCK_M, BLOCK_D), tl.float32),
        tl.full((BLOCK_M,), float("-inf"), tl.float32),
        tl.zeros((BLOCK_M,), tl.float32),
        position,
        first_visible,
        k_cache_ptr + head_offset,
        v_cache_ptr + head_offset,
        block_table_ptr + sequence.to(tl.int64) * table_width,
        cache_stride,
        scale_log2,
        tl.maximum(split * SPLIT, first_needed // BLOCK_N * BLOCK_N),
        tl.minimum((split + 1) * SPLIT, last_needed + 1),
        first_needed,
        last_needed,
        HEAD_DIM,
        BLOCK_D,
        BLOCK_N,
        BLOCK_TOKENS,
        True,
        UPCAST,
    )
    if split_end - split_begin == 1:
        _store_rows(
            out_ptr, row, head, out_stride, acc, row_sum, valid, in_range, HEAD_DIM, BLOCK_D
        )
        return

    d = tl.arange(0, BLOCK_D)
    entry = (row * NUM_HEADS + head) * max_splits
    d_mask = valid[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(partial_ptr + (entry + split)[:, None] * HEAD_DIM + d[None, :], acc, mask=d_mask)
    tl.store(stats_ptr + (entry + split) * 2, row_max, mask=valid)
    tl.store(stats_ptr + (entry + split) * 2 + 1, row_sum, mask=valid)
    # All threads' stores come before the one thread's release; its acquire before their loads.
    tl.debug_barrier()
    arrivals = arrivals_ptr + row_begin * tl.num_programs(1) + kv_head
    arrived = tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu")
    if arrived == split_end - split_begin - 1:
        tl.store(arrivals, 0)
        acc, row_sum = _join_splits(
            partial_ptr, stats_ptr, entry, split_begin, split_end, valid,
            BLOCK_M, BLOCK_D, HEAD_DIM, JOIN,
        )  # fmt: skip
        _store_rows(
            out_ptr, row, head, out_stride, acc, row_sum, valid, in_range, HEAD_DIM, BLOCK_D
        )


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    positions: torch.Tensor,
    query_begin: torch.Tensor,
    workspace: DecodeWorkspace,
    *,
    scale: float,
    max_context: int,
    max_query_rows: int = 1,
    window: int = 0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of a few query rows per sequence over the sequence's cached tokens.

    Parameters
    ----------
    q
        (num_rows, num_heads, head_dim) float; rows of one sequence lie together and may be strided.
        Query head h reads KV head h // (num_heads / num_kv_heads).
    k_cache, v_cache
        (num_blocks, num_kv_heads, 32, head_dim) float16 or bfloat16, in the interpreter also
        float32; blocks may be strided, alike in both.
    block_table
        (num_sequences, table_width) int32: blocks of each sequence in order; entries that no
        visible token needs are not read.
    positions
        (num_rows) int32: position of each row's own token, whose keys are already in the cache; the
        row sees positions [0, position], or the last `window` of them. A row with position < 0 is
        padding and gets zeros; one at or beyond `max_context` (rounded up to whole splits) or the
        block table gets NaN.
    query_begin
        (num_sequences + 1) int32: rows [query_begin[i], query_begin[i + 1]) belong to sequence i.
    workspace
        Of at least num_rows rows and `max_context` tokens.
    scale
        Multiplies q.k, usually head_dim ** -0.5.
    max_context
        Tokens of context that the launch provides for: fixes the grid, not the result.
    max_query_rows
        Most rows any sequence has; further rows would not be computed.
    window
        Sliding window in tokens, 0 for none.
    out
        Like `q`; by default a new tensor.

    Returns
    -------
    torch.Tensor
        `out`.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit.
    """
    num_rows, num_heads, head_dim = q.shape if q.dim() == 3 else (0, 0, 0)
    if out is None:
        out = torch.empty(tuple(q.shape), dtype=q.dtype, device=q.device)
    check_attention(
        q, k_cache, v_cache, block_table, positions, query_begin, out, scale, window, max_query_rows
    )
    num_kv_heads = k_cache.shape[1]
    group = num_heads // num_kv_heads
    require(group <= BLOCK_M, f"at most {BLOCK_M} query heads may share a KV head, got {group}")
    num_splits = workspace.check(q, num_kv_heads, max_context)
    num_sequences = block_table.shape[0]
    if num_rows == 0 or num_sequences == 0:
        return out
    tiles_per_sequence = ceil_div(max_query_rows, BLOCK_M // group)
    _decode_attention_kernel[(num_sequences * tiles_per_sequence, num_kv_heads, num_splits)](
        q, k_cache, v_cache, block_table, positions, query_begin, out,
        workspace.partial, workspace.stats, workspace.arrivals,
        q.stride(0), out.stride(0), k_cache.stride(0), block_table.shape[1],
        workspace.partial.shape[2], tiles_per_sequence, scale * LOG2_E, window,
        **decode_constants(num_heads, group, head_dim),
    )  # fmt: skip
    return out


def decode_constants(num_heads: int, group: int, head_dim: int) -> dict[str, int | bool]:
    """Compile-time constants and launch options of the decode kernel; they decide a row's bits."""
    block_d = max(16, next_power_of_2(head_dim))
    return {
        "NUM_HEADS": num_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_D": block_d,
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": 64 if block_d <= 128 else 32,
        "BLOCK_TOKENS": BLOCK_TOKENS,
        "SPLIT": SPLIT_TOKENS,
        "JOIN": 4 if block_d <= 128 else 2,
        "UPCAST": INTERPRETED,
        "num_warps": 4,
        # Half of the stages go to the block ids: this keeps two tiles of keys and values in flight.
        "num_stages": 5,
    }
