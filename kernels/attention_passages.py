"""Passages that rows see besides their own sequence's tokens: what attention and RoPE take of them.

A sequence may keep positions free behind its first tokens (its head): token i is at position i in
the head, and at i + num_reserved behind it. Passages have their keys and values at positions right
behind the head, in blocks of their own that any number of sequences share; tokens from the index
`sees_from` on see them, in the order of the table, before the sequence's own tokens. Source: Ratner
et al., "Parallel Context Windows for Large Language Models", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .attention_tile import _add_tile
from .checks import check_tensor, require

LAYOUT_FIELDS = 4  # tokens of the head, reserved positions, first token that sees, blocks
BLOCK_FIELDS = 3  # block, index in its passage of the block's first token, tokens of the passage


@dataclass(frozen=True)
class PassageTable:
    """What each sequence of a launch reserves and sees.

    Attributes
    ----------
    layout
        (num_sequences, 4) int32: tokens of the head, reserved positions, index of the first token
        that sees the passages, number of their blocks.
    blocks
        (num_sequences, width, 3) int32, of each block: its number in the cache, the index in its
        passage of its first token, and the tokens of that passage. Blocks beyond the number in
        `layout` are not read; slots behind the passage's last token are not seen.
    """

    layout: torch.Tensor
    blocks: torch.Tensor

    def check(self, num_sequences: int, device: torch.device) -> None:
        """Raise unless it is for so many sequences."""
        int32 = (torch.int32,)
        check_tensor("passages.layout", self.layout, (num_sequences, LAYOUT_FIELDS), int32, device)
        shape = (num_sequences, None, BLOCK_FIELDS)
        check_tensor("passages.blocks", self.blocks, shape, int32, device)
        require(self.blocks.shape[1] >= 1, "passages.blocks must have room for a block, got none")


@triton.jit
def _layout_of(layout_ptr, sequence, passage_width, PASSAGES: tl.constexpr):
    """Head, reserved positions, first token that sees, and blocks of passages."""
    if PASSAGES:
        at = layout_ptr + sequence * 4
        num_blocks = tl.minimum(tl.load(at + 3), passage_width)
        return tl.load(at), tl.load(at + 1), tl.load(at + 2), num_blocks
    else:
        return 0, 0, 0, 0


@triton.jit
def _attend_passages(
    q,  # (M, D) queries of the tile
    acc,
    row_max,
    row_sum,
    sees,  # (M) whether a row sees the passages
    first_index,  # (M) the first token of each passage that its window reaches
    k_ptr,  # K of this head in block 0
    v_ptr,
    table_ptr,  # row of the sequence in PassageTable.blocks
    cache_stride,
    scale_log2,
    block_begin,  # even
    block_end,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Adds the passages' blocks [block_begin, block_end), BLOCK_N slots at a time."""
    lane = tl.arange(0, BLOCK_N)
    for block in tl.range(block_begin, block_end, BLOCK_N // BLOCK_TOKENS, num_stages=2):
        entry = table_ptr + block * 3
        offset = tl.load(entry).to(tl.int64) * cache_stride
        index = tl.load(entry + 1) + lane % BLOCK_TOKENS
        end = tl.load(entry + 2)
        if BLOCK_N == 2 * BLOCK_TOKENS:
            has_second = block + 1 < block_end
            second = tl.load(entry + 3, mask=has_second, other=0).to(tl.int64) * cache_stride
            second_index = tl.load(entry + 4, mask=has_second, other=0) + lane % BLOCK_TOKENS
            second_end = tl.load(entry + 5, mask=has_second, other=0)
            is_first = lane < BLOCK_TOKENS
            offset = tl.where(is_first, offset, second)
            index = tl.where(is_first, index, second_index)
            end = tl.where(is_first, end, second_end)
        needed = index < end
        visible = needed[None, :] & sees[:, None] & (index[None, :] >= first_index[:, None])
        slot = offset + (lane % BLOCK_TOKENS) * HEAD_DIM
        acc, row_max, row_sum = _add_tile(
            q, acc, row_max, row_sum, k_ptr, v_ptr, slot, needed, visible, scale_log2,
            HEAD_DIM, BLOCK_D, True, UPCAST,
        )  # fmt: skip
    return acc, row_max, row_sum
