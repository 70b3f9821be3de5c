"""Passages encoded on their own (placement ``parallel``): their blocks, and what rows see of them.

A passage is made once and never changed. Its blocks lie in the engine's cache beside those of the
sequences; the handle that users hold counts as one reference to them, every sequence and checkpoint
that it is attached to as another. So attaching copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flarecore.gpu.mirrored import Mirrored

if TYPE_CHECKING:
    from flarecore.gpu.engine import Core

__all__ = ["BLOCK_TOKENS", "GpuPassage", "PassageBlocks", "PassageView", "blocks_for",
           "bucket_width", "fill_table", "table_fields"]

BLOCK_TOKENS = 32

# Blocks in a table of passages: few widths, so that few graphs are captured. The first one is what
# the attention kernel joins at once.
_LEAST_WIDTH = 32


def blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)


@dataclass(frozen=True, eq=False)
class PassageBlocks:
    """Keys and values of a passage behind a head: token i is in slot i % 32 of block i // 32."""

    head: tuple[int, ...]
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class PassageView:
    """What a sequence reserves and sees besides its own tokens.

    Attributes
    ----------
    blocks
        (block, index in its passage of its first token, tokens of that passage) of each block of
        the passages, in their order.
    """

    num_head: int
    num_reserved: int
    sees_from: int
    blocks: tuple[tuple[int, int, int], ...] = ()


class GpuPassage:
    """What users hold of a passage; the counterpart of ``_C.PassageKv``."""

    def __init__(self, core: Core, passage: PassageBlocks) -> None:
        self.core = core
        self.passage = passage

    def __del__(self) -> None:
        self.core.drop(self.passage)

    @property
    def head_ids(self) -> list[int]:
        return list(self.passage.head)

    @property
    def token_ids(self) -> list[int]:
        return list(self.passage.tokens)

    @property
    def size_bytes(self) -> int:
        return len(self.passage.blocks) * self.core.block_size_bytes

    @property
    def is_shared(self) -> bool:
        return self.core.is_attached(self.passage)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """(size_bytes,) a copy of its blocks, read-only; slots behind the last token are zero."""
        values = self.core.read_passage(self.passage)
        values.flags.writeable = False
        return values


def bucket_width(views: Sequence[PassageView | None]) -> int:
    """Blocks that a table for these sequences provides; 0: no sequence needs one."""
    if not any(view is not None for view in views):
        return 0
    width, most = _LEAST_WIDTH, max(len(view.blocks) for view in views if view is not None)
    while width < most:
        width *= 4
    return width


def table_fields(num_sequences: int, width: int) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Fields of a :class:`Mirrored` that holds a PassageTable of the kernels."""
    return {"layout": (np.int32, (num_sequences, 4)),
            "blocks": (np.int32, (num_sequences, width, 3))}


def fill_table(table: Mirrored, views: Sequence[PassageView | None]) -> None:
    """Writes the host side; sequences without a view see and reserve nothing."""
    layout, blocks = table.host["layout"], table.host["blocks"]
    layout[:] = 0
    for row, view in enumerate(views):
        if view is not None:
            layout[row] = (view.num_head, view.num_reserved, view.sees_from, len(view.blocks))
            if view.blocks:
                blocks[row, : len(view.blocks)] = view.blocks
