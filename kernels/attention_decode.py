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

from .attention_passages import PassageTable, _attend_passages, _layout_of
from .attention_tile import (
    LOG2_E,
    _attend,
    _load_queries,
    _no_sums,
    _store_rows,
    _tile_rows,
    check_attention,
)
from .attention_workspace import (
    SPLIT_TOKENS,
    DecodeWorkspace,
    _arrive,
    _join_splits,
    _leave_split,
)
from .checks import INTERPRETED, ceil_div, next_power_of_2, require
from .rope import BLOCK_TOKENS

BLOCK_M = 16  # rows x heads of one tile: the smallest tensor-core tile


# Sizes of the batch are not specialised on: one compiled kernel serves them all.
_SIZES = [
    "table_width", "max_splits", "tiles_per_sequence", "window", "passage_width", "passage_grid",
]  # fmt: skip


@triton.jit
def _needed_splits(first_needed, last_needed, sees_from, num_blocks, passage_grid,
                   BLOCK_TOKENS: tl.constexpr, SPLIT: tl.constexpr,
                   PASSAGES: tl.constexpr):  # fmt: skip
    """Blocks of passages that any row sees, then the splits [0, passage_end) and [begin, end)."""
    passage_end = 0
    if PASSAGES:
        num_blocks = tl.where(last_needed >= sees_from, num_blocks, 0)
        passage_end = (num_blocks * BLOCK_TOKENS + SPLIT - 1) // SPLIT
    split_begin = passage_grid + first_needed // SPLIT
    split_end = passage_grid + tl.maximum(last_needed, 0) // SPLIT + 1
    return num_blocks, passage_end, split_begin, split_end


@triton.jit
def _attend_split(
    q,  # (M, D) queries of the tile
    split,
    passage_grid,  # the sequence's own splits begin there
    position, first_visible, reached,  # (M) as from _tile_rows
    first_needed, last_needed,
    num_head, sees_from, num_blocks,  # as from _layout_of and _needed_splits
    k_ptr, v_ptr,  # of this head in block 0
    table_ptr,  # block table row of the sequence
    passage_ptr,  # row of the sequence in PassageTable.blocks, with PASSAGES
    cache_stride, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, SPLIT: tl.constexpr, UPCAST: tl.constexpr, PASSAGES: tl.constexpr,
):  # fmt: skip
    """Sum of p * v, maximum and sum of p of each row over one split."""
    acc, row_max, row_sum = _no_sums(BLOCK_M, BLOCK_D)
    if PASSAGES:
        # One of the two loops has nothing to do.
        per_split = SPLIT // BLOCK_TOKENS
        acc, row_max, row_sum = _attend_passages(
            q, acc, row_max, row_sum, position >= sees_from,
            tl.maximum(reached - num_head, 0), k_ptr, v_ptr, passage_ptr, cache_stride, scale_log2,
            tl.minimum(split * per_split, num_blocks),
            tl.minimum((split + 1) * per_split, num_blocks),
            HEAD_DIM, BLOCK_D, BLOCK_N, BLOCK_TOKENS, UPCAST,
        )  # fmt: skip
    own_split = split - passage_grid
    return _attend(
        q, acc, row_max, row_sum, position, first_visible, k_ptr, v_ptr, table_ptr, cache_stride,
        scale_log2, tl.maximum(own_split * SPLIT, first_needed // BLOCK_N * BLOCK_N),
        tl.minimum((own_split + 1) * SPLIT, last_needed + 1),
        first_needed, last_needed, HEAD_DIM, BLOCK_D, BLOCK_N, BLOCK_TOKENS, True, UPCAST,
    )  # fmt: skip


@triton.jit
def _finish_tile(
    out_ptr, partial_ptr, stats_ptr,
    arrivals_ptr,  # of the tile
    entry,  # (M) of each row's first split in the workspace
    split, passage_end, split_begin, split_end,  # as from _needed_splits
    row, head, out_stride,
    acc, row_max, row_sum,  # of this split
    valid, in_range,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, HEAD_DIM: tl.constexpr, JOIN: tl.constexpr,
):  # fmt: skip
    """Leaves a split; the last program of the tile to arrive joins them all and stores the rows."""
    _leave_split(
        partial_ptr, stats_ptr, entry + split, acc, row_max, row_sum, valid, HEAD_DIM, BLOCK_D
    )
    if _arrive(arrivals_ptr) == passage_end + split_end - split_begin - 1:
        tl.store(arrivals_ptr, 0)
        acc, row_sum = _join_splits(
            partial_ptr, stats_ptr, entry, passage_end, split_begin, split_end, valid,
            BLOCK_M, BLOCK_D, HEAD_DIM, JOIN,
        )  # fmt: skip
        _store_rows(
            out_ptr, row, head, out_stride, acc, row_sum, valid, in_range, HEAD_DIM, BLOCK_D
        )


@triton.jit(do_not_specialize=_SIZES)
def _decode_attention_kernel(
    q_ptr,  # (num_rows, NUM_HEADS, HEAD_DIM)
    k_cache_ptr, v_cache_ptr,  # (num_blocks, num_kv_heads, 32, HEAD_DIM)
    block_table_ptr,  # (num_sequences, table_width)
    positions_ptr,  # (num_rows)
    query_begin_ptr,  # (num_sequences + 1)
    out_ptr,  # (num_rows, NUM_HEADS, HEAD_DIM)
    partial_ptr,  # (>= num_rows, NUM_HEADS, max_splits, HEAD_DIM) float32
    stats_ptr,  # (>= num_rows, NUM_HEADS, max_splits, 2) float32: maximum and sum
    arrivals_ptr,  # (>= num_rows, num_kv_heads) int32, zero between launches
    layout_ptr,  # (num_sequences, 4), with PASSAGES as the next
    passage_ptr,  # (num_sequences, passage_width, 3)
    q_stride, out_stride, cache_stride, table_width, max_splits, tiles_per_sequence, scale_log2,
    window, passage_width,
    passage_grid,  # splits that the launch provides for passages, a multiple of JOIN
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_TOKENS: tl.constexpr, SPLIT: tl.constexpr,
    JOIN: tl.constexpr, UPCAST: tl.constexpr, PASSAGES: tl.constexpr,
):  # fmt: skip
    """Few query rows per sequence: one program per tile of rows, KV head and split of the context.

    Splits of the passages come first, then those of the sequence. The last program of a tile to
    arrive joins its splits, so that one launch does it all.
    """
    sequence = tl.program_id(0) // tiles_per_sequence
    kv_head, split = tl.program_id(1), tl.program_id(2)
    row_begin = tl.load(query_begin_ptr + sequence)
    row_begin += tl.program_id(0) % tiles_per_sequence * (BLOCK_M // GROUP)
    row_end = tl.load(query_begin_ptr + sequence + 1)
    if row_begin >= row_end:
        return

    # What both the grid and the block table provide for.
    limit = tl.minimum((tl.num_programs(2) - passage_grid) * SPLIT, table_width * BLOCK_TOKENS)
    num_head, num_reserved, sees_from, num_blocks = _layout_of(
        layout_ptr, sequence, passage_width, PASSAGES
    )
    row, head, valid, position, first_visible, reached, first_needed, last_needed = _tile_rows(
        row_begin, row_end, positions_ptr, kv_head, limit, window, num_head, num_reserved, GROUP,
        BLOCK_M,
    )  # fmt: skip
    num_blocks, passage_end, split_begin, split_end = _needed_splits(
        first_needed, last_needed, sees_from, num_blocks, passage_grid, BLOCK_TOKENS, SPLIT,
        PASSAGES,
    )  # fmt: skip
    if (split >= passage_end) & ((split < split_begin) | (split >= split_end)):
        return

    q = _load_queries(q_ptr, row, head, q_stride, valid, k_cache_ptr, HEAD_DIM, BLOCK_D)
    head_offset = kv_head * (BLOCK_TOKENS * HEAD_DIM)
    acc, row_max, row_sum = _attend_split(
        q, split, passage_grid, position, first_visible, reached, first_needed, last_needed,
        num_head, sees_from, num_blocks, k_cache_ptr + head_offset, v_cache_ptr + head_offset,
        block_table_ptr + sequence.to(tl.int64) * table_width,
        passage_ptr + sequence.to(tl.int64) * passage_width * 3, cache_stride, scale_log2,
        HEAD_DIM, BLOCK_D, BLOCK_M, BLOCK_N, BLOCK_TOKENS, SPLIT, UPCAST, PASSAGES,
    )  # fmt: skip
    in_range = position < limit
    if passage_end + split_end - split_begin == 1:
        _store_rows(
            out_ptr, row, head, out_stride, acc, row_sum, valid, in_range, HEAD_DIM, BLOCK_D
        )
    else:
        _finish_tile(
            out_ptr, partial_ptr, stats_ptr,
            arrivals_ptr + row_begin * tl.num_programs(1) + kv_head,
            (row * NUM_HEADS + head) * max_splits, split, passage_end, split_begin, split_end,
            row, head, out_stride, acc, row_max, row_sum, valid, in_range,
            BLOCK_M, BLOCK_D, HEAD_DIM, JOIN,
        )  # fmt: skip


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
    passages: PassageTable | None = None,
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
        Of at least num_rows rows and `max_context` tokens, and those of `passage_context` with
        passages.
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
    passages
        What the sequences reserve and see besides their own tokens. `positions` are then places in
        the sequence, and `window` counts positions.

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
        q, k_cache, v_cache, block_table, positions, query_begin, out, scale, window,
        max_query_rows, passages,
    )  # fmt: skip
    num_kv_heads = k_cache.shape[1]
    group = num_heads // num_kv_heads
    require(group <= BLOCK_M, f"at most {BLOCK_M} query heads may share a KV head, got {group}")
    width = 0 if passages is None else passages.blocks.shape[1]
    passage_grid = passage_context(width, head_dim) // SPLIT_TOKENS
    num_splits = workspace.check(q, num_kv_heads, max_context, passage_grid)
    num_sequences = block_table.shape[0]
    if num_rows == 0 or num_sequences == 0:
        return out
    tiles_per_sequence = ceil_div(max_query_rows, BLOCK_M // group)
    _decode_attention_kernel[(num_sequences * tiles_per_sequence, num_kv_heads, num_splits)](
        q, k_cache, v_cache, block_table, positions, query_begin, out,
        workspace.partial, workspace.stats, workspace.arrivals,
        block_table if passages is None else passages.layout,
        block_table if passages is None else passages.blocks,
        q.stride(0), out.stride(0), k_cache.stride(0), block_table.shape[1],
        workspace.partial.shape[2], tiles_per_sequence, scale * LOG2_E, window, width,
        passage_grid, **decode_constants(num_heads, group, head_dim, passages is not None),
    )  # fmt: skip
    return out


def passage_context(width: int, head_dim: int) -> int:
    """Tokens of workspace that a passage table of `width` blocks takes, in whole joined groups."""
    group = SPLIT_TOKENS * int(decode_constants(1, 1, head_dim)["JOIN"])
    return ceil_div(width * BLOCK_TOKENS, group) * group


def decode_constants(
    num_heads: int, group: int, head_dim: int, passages: bool = False
) -> dict[str, int | bool]:
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
        "PASSAGES": passages,
        "num_warps": 4,
        # Half of the stages go to the block ids: this keeps two tiles of keys and values in flight.
        "num_stages": 5,
    }
