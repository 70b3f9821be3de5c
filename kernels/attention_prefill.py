"""Paged attention for prefill: many query rows per sequence, whole context in one program.

attention_tile.py tells why a row's bits depend on its position and keys only, so that the chunks a
prefill is cut into do not matter. They differ in the last bits from what decode computes for the
same row (other tiles, no splits).
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
from .checks import INTERPRETED, ceil_div, next_power_of_2, require
from .rope import BLOCK_TOKENS


@triton.jit
def _tile_bounds(position, first_visible, valid, first_needed, last_needed, limit,
                 BLOCK_N: tl.constexpr):  # fmt: skip
    """First token of the first tile, then tokens [begin, end) that every row sees, in whole tiles.

    Those need no mask. Rows that are not valid may take part with any position: nothing of theirs
    is stored.
    """
    all_see_from = tl.max(tl.where(valid, first_visible, 0), axis=0)
    all_see_to = tl.min(tl.where(valid, position, limit), axis=0) + 1
    token_begin = first_needed // BLOCK_N * BLOCK_N
    begin = (all_see_from + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    end = tl.maximum(tl.minimum(all_see_to, limit) // BLOCK_N * BLOCK_N, begin)
    return token_begin, tl.minimum(begin, last_needed + 1), tl.minimum(end, last_needed + 1)


@triton.jit
def _attend_context(
    q, acc, row_max, row_sum,  # as in _attend
    position, first_visible,
    k_ptr, v_ptr,  # of this head in block 0
    table_ptr,  # block table row of the sequence
    cache_stride, scale_log2,
    first_needed, last_needed,
    token_begin, full_begin, full_end,  # as from _tile_bounds
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Adds the sequence's own tokens, with a mask only where some row does not see all."""
    acc, row_max, row_sum = _attend(
        q, acc, row_max, row_sum, position, first_visible, k_ptr, v_ptr, table_ptr, cache_stride,
        scale_log2, token_begin, full_begin, first_needed, last_needed,
        HEAD_DIM, BLOCK_D, BLOCK_N, BLOCK_TOKENS, True, UPCAST,
    )  # fmt: skip
    acc, row_max, row_sum = _attend(
        q, acc, row_max, row_sum, position, first_visible, k_ptr, v_ptr, table_ptr, cache_stride,
        scale_log2, full_begin, full_end, first_needed, last_needed,
        HEAD_DIM, BLOCK_D, BLOCK_N, BLOCK_TOKENS, False, UPCAST,
    )  # fmt: skip
    return _attend(
        q, acc, row_max, row_sum, position, first_visible, k_ptr, v_ptr, table_ptr, cache_stride,
        scale_log2, full_end, last_needed + 1, first_needed, last_needed,
        HEAD_DIM, BLOCK_D, BLOCK_N, BLOCK_TOKENS, True, UPCAST,
    )  # fmt: skip


# Sizes of the batch are not specialised on: one compiled kernel serves them all.
@triton.jit(do_not_specialize=["table_width", "tiles_per_sequence", "window", "passage_width"])
def _prefill_attention_kernel(
    q_ptr,  # (num_rows, NUM_HEADS, HEAD_DIM)
    k_cache_ptr, v_cache_ptr,  # (num_blocks, num_kv_heads, 32, HEAD_DIM)
    block_table_ptr,  # (num_sequences, table_width)
    positions_ptr,  # (num_rows)
    query_begin_ptr,  # (num_sequences + 1)
    out_ptr,  # (num_rows, NUM_HEADS, HEAD_DIM)
    layout_ptr,  # (num_sequences, 4), with PASSAGES as the next
    passage_ptr,  # (num_sequences, passage_width, 3)
    q_stride, out_stride, cache_stride, table_width, tiles_per_sequence, scale_log2, window,
    passage_width,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_TOKENS: tl.constexpr, UPCAST: tl.constexpr,
    PASSAGES: tl.constexpr,
):  # fmt: skip
    """Many query rows per sequence: one program per tile of rows and KV head, whole context."""
    sequence = tl.program_id(0) // tiles_per_sequence
    kv_head = tl.program_id(1)
    # Later rows see more tokens; their tiles start first, so that the tail of the launch is short.
    tile = tiles_per_sequence - 1 - tl.program_id(0) % tiles_per_sequence
    row_begin = tl.load(query_begin_ptr + sequence) + tile * (BLOCK_M // GROUP)
    row_end = tl.load(query_begin_ptr + sequence + 1)
    if row_begin >= row_end:
        return

    limit = table_width * BLOCK_TOKENS
    num_head, num_reserved, sees_from, num_blocks = _layout_of(
        layout_ptr, sequence, passage_width, PASSAGES
    )
    row, head, valid, position, first_visible, reached, first_needed, last_needed = _tile_rows(
        row_begin, row_end, positions_ptr, kv_head, limit, window, num_head, num_reserved, GROUP,
        BLOCK_M,
    )  # fmt: skip
    in_range = position < limit
    token_begin, full_begin, full_end = _tile_bounds(
        position, first_visible, valid, first_needed, last_needed, limit, BLOCK_N
    )
    q = _load_queries(q_ptr, row, head, q_stride, valid, k_cache_ptr, HEAD_DIM, BLOCK_D)
    k_ptr = k_cache_ptr + kv_head * (BLOCK_TOKENS * HEAD_DIM)
    v_ptr = v_cache_ptr + kv_head * (BLOCK_TOKENS * HEAD_DIM)
    table_ptr = block_table_ptr + sequence.to(tl.int64) * table_width
    acc, row_max, row_sum = _no_sums(BLOCK_M, BLOCK_D)
    if PASSAGES:
        acc, row_max, row_sum = _attend_passages(
            q, acc, row_max, row_sum, position >= sees_from,
            tl.maximum(reached - num_head, 0), k_ptr, v_ptr,
            passage_ptr + sequence.to(tl.int64) * passage_width * 3, cache_stride, scale_log2,
            0, tl.where(last_needed >= sees_from, num_blocks, 0),
            HEAD_DIM, BLOCK_D, BLOCK_N, BLOCK_TOKENS, UPCAST,
        )  # fmt: skip
    acc, row_max, row_sum = _attend_context(
        q, acc, row_max, row_sum, position, first_visible, k_ptr, v_ptr, table_ptr, cache_stride,
        scale_log2, first_needed, last_needed, token_begin, full_begin, full_end,
        HEAD_DIM, BLOCK_D, BLOCK_N, BLOCK_TOKENS, UPCAST,
    )  # fmt: skip
    _store_rows(out_ptr, row, head, out_stride, acc, row_sum, valid, in_range, HEAD_DIM, BLOCK_D)


def prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    positions: torch.Tensor,
    query_begin: torch.Tensor,
    *,
    scale: float,
    max_query_rows: int,
    window: int = 0,
    out: torch.Tensor | None = None,
    passages: PassageTable | None = None,
) -> torch.Tensor:
    """Attention of many query rows per sequence over the sequence's cached tokens.

    Arguments are those of `decode_attention`, without a workspace; except:

    Parameters
    ----------
    max_query_rows
        Most rows any sequence has: fixes the grid, not the result.

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
    constants = prefill_constants(group, head_dim, passages is not None)
    require(
        group <= constants["BLOCK_M"],
        f"at most {constants['BLOCK_M']} query heads may share a KV head, got {group}",
    )
    num_sequences = block_table.shape[0]
    if num_rows == 0 or num_sequences == 0:
        return out
    tiles_per_sequence = ceil_div(max_query_rows, constants["BLOCK_M"] // group)
    _prefill_attention_kernel[(num_sequences * tiles_per_sequence, num_kv_heads)](
        q, k_cache, v_cache, block_table, positions, query_begin, out,
        block_table if passages is None else passages.layout,
        block_table if passages is None else passages.blocks,
        q.stride(0), out.stride(0), k_cache.stride(0), block_table.shape[1],
        tiles_per_sequence, scale * LOG2_E, window,
        0 if passages is None else passages.blocks.shape[1], **constants,
    )  # fmt: skip
    return out


def prefill_constants(
    group: int, head_dim: int, passages: bool = False
) -> dict[str, int | bool]:
    """Compile-time constants and launch options of the prefill kernel; they decide a row's bits."""
    block_d = max(16, next_power_of_2(head_dim))
    return {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_D": block_d,
        "BLOCK_M": 64,
        "BLOCK_N": 64 if block_d <= 128 else 32,
        "BLOCK_TOKENS": BLOCK_TOKENS,
        "UPCAST": INTERPRETED,
        "PASSAGES": passages,
        # Eight warps keep the accumulator of wide heads within the registers (COMPILED.md).
        "num_warps": 4 if block_d <= 64 else 8,
        "num_stages": 3,
    }
