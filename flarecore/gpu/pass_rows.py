"""The rows of one pass as the device takes them: exactly those, or padded to a size of a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flarecore.gpu.device import load_kernels
from flarecore.gpu.forward import Forward, Rows
from flarecore.gpu.mirrored import Mirrored
from flarecore.gpu.passages import (
    PassageView,
    blocks_for,
    bucket_width,
    fill_table,
    table_fields,
)

__all__ = ["PassRows", "PassSize", "Segment", "make_rows", "padded_size"]

# Position of the first token, token ids, blocks of the sequence.
Segment = tuple[int, Sequence[int], Sequence[int]]

# Few, so that few graphs are captured. Up to four tiles of the products nothing is multiplied for
# padding, behind them a third of the rows at most.
_ROW_COUNTS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_SEQUENCE_COUNTS = (1, 4, 16, 64, 256, 1024)


@dataclass(frozen=True)
class PassSize:
    """What the launches of a pass depend on besides the model.

    `query_rows`: most rows of a sequence; `context`: tokens of context provided for; `table_width`:
    blocks of a sequence, `passage_width`: of its passages (0: no sequence needs a table of them).
    """

    num_rows: int
    num_sequences: int
    query_rows: int
    context: int
    table_width: int
    passage_width: int


def _context(segments: Sequence[Segment], forward: Forward) -> int:
    return forward.context_bucket(max(position + len(ids) for position, ids, _ in segments))


def padded_size(segments: Sequence[Segment], forward: Forward,
                views: Sequence[PassageView | None] = ()) -> PassSize:
    """The size of a few that holds these rows. At most 12 of a context and a passage width, where
    64 rows are the most.
    """
    def at_least(value: int, counts: Sequence[int]) -> int:
        return next(count for count in counts if count >= value)

    counts = [len(ids) for _, ids, _ in segments]
    num_rows = at_least(sum(counts), _ROW_COUNTS)
    context = _context(segments, forward)
    return PassSize(num_rows, min(at_least(len(segments), _SEQUENCE_COUNTS), num_rows),
                    at_least(max(counts), _ROW_COUNTS), context, blocks_for(context),
                    bucket_width(views))


class PassRows:
    """The tables of a pass of one size, on both sides; without a meaning until they are filled."""

    def __init__(self, size: PassSize, device: torch.device) -> None:
        self._size = size
        rows, sequences = (size.num_rows,), size.num_sequences
        passages = table_fields(sequences, size.passage_width) if size.passage_width else {}
        self._fields = Mirrored({
            "token_ids": (np.int32, rows), "positions": (np.int32, rows),
            "table_rows": (np.int32, rows), "logit_rows": (np.int32, rows),
            "query_begin": (np.int32, (sequences + 1,)),
            "block_table": (np.int32, (sequences, size.table_width)), **passages}, device)

    def fill(self, segments: Sequence[Segment], num_unread: Sequence[int] = (),
             views: Sequence[PassageView | None] = ()) -> int:
        """Takes the rows to the device, in stream order; again only after a synchronise.

        What is left becomes padding: rows without a position, of no sequence, which store nothing.

        Parameters
        ----------
        num_unread
            How many rows of each segment come before those whose logits are wanted; by default
            none.
        views
            What each reserves and sees besides.

        Returns
        -------
        int
            How many logits are wanted.
        """
        host = self._fields.host
        for name in ("token_ids", "table_rows", "logit_rows"):
            host[name][:] = 0
        host["positions"][:] = -1
        host["block_table"][:] = -1
        begin, wanted = 0, 0
        for index, (position, ids, blocks) in enumerate(segments):
            end = begin + len(ids)
            host["query_begin"][index] = begin
            host["token_ids"][begin:end] = ids
            host["positions"][begin:end] = np.arange(position, position + len(ids))
            host["table_rows"][begin:end] = index
            blocks = blocks[: self._size.table_width]
            host["block_table"][index, : len(blocks)] = blocks
            first = begin + (num_unread[index] if num_unread else 0)
            host["logit_rows"][wanted : wanted + end - first] = np.arange(first, end)
            begin, wanted = end, wanted + end - first
        host["query_begin"][len(segments) :] = begin
        if self._size.passage_width:
            fill_table(self._fields, views)
        self._fields.upload()
        return wanted

    def rows(self, num_logits: int | None) -> Rows:
        """For a forward pass; `num_logits` of them have wanted logits, None: all, in their order.
        """
        size, device = self._size, self._fields.device
        passages: Any = None
        if size.passage_width:
            passages = load_kernels().attention.PassageTable(
                layout=device["layout"], blocks=device["blocks"])
        return Rows(device["token_ids"], device["positions"], device["table_rows"],
                    device["block_table"], device["query_begin"], size.query_rows, size.context,
                    None if num_logits is None else device["logit_rows"][:num_logits], passages)


def make_rows(segments: Sequence[Segment], forward: Forward, num_unread: Sequence[int] = (),
              views: Sequence[PassageView | None] = ()) -> Rows:
    """Exactly these rows; see :meth:`PassRows.fill`."""
    counts = [len(ids) for _, ids, _ in segments]
    tables = PassRows(
        PassSize(sum(counts), len(segments), max(counts), _context(segments, forward),
                 max(len(blocks) for _, _, blocks in segments), bucket_width(views)),
        forward.device)
    num_logits = tables.fill(segments, num_unread, views)
    return tables.rows(num_logits if num_logits < sum(counts) else None)
