"""Verification passes: rows that are sampled or scored, of several sequences at once.

A pass has nine launches a layer, and for a small model the host would take several times longer for
them than the device. So passes are captured: rows, sequences and context are padded to one of a few
sizes (pass_rows.py), and for each size there is one graph, captured when it is first needed. A
row's bits are those of the same row launched directly, without any padding: products have a fixed
row count either way, and in no other launch does what a row sums up depend on the rows beside it.
The direct launch is the slow twin, and the only way on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flarecore.gpu.captures import Captures
from flarecore.gpu.forward import Forward, Rows
from flarecore.gpu.pass_rows import PassRows, PassSize, Segment, make_rows, padded_size
from flarecore.gpu.passages import PassageView

__all__ = ["VerificationRunner"]


@dataclass(frozen=True)
class _CapturedPass:
    """A graph and the static buffers that it refers to."""

    tables: PassRows
    logits: torch.Tensor  # (padded rows, vocab) float32
    graph: Any


class VerificationRunner:
    """Launches verification passes; one at a time, as the host's side of a size is filled anew.

    Parameters
    ----------
    captures
        Of the engine's graphs.
    use_graphs
        Capture the passes; False launches every kernel by itself.

    Attributes
    ----------
    num_captures, num_replays
        Graphs captured and replayed so far.
    """

    def __init__(self, forward: Forward, captures: Captures, *, use_graphs: bool) -> None:
        self._forward = forward
        self._captures = captures
        self.use_graphs = use_graphs
        self.num_captures = 0
        self.num_replays = 0
        self._passes: dict[PassSize, _CapturedPass] = {}

    def launch(self, segments: Sequence[Segment], num_unread: Sequence[int] = (),
               views: Sequence[PassageView | None] = ()) -> torch.Tensor:
        """Queues a pass of at most the forward pass's decode rows.

        Parameters
        ----------
        segments, num_unread, views
            As for :meth:`PassRows.fill`.

        Returns
        -------
        torch.Tensor
            (n, vocab) float32 logits of the rows that want them, valid until the next pass.
        """
        if not self.use_graphs:
            rows = make_rows(segments, self._forward, num_unread, views)
            is_read = rows.logit_rows is None or rows.logit_rows.shape[0] > 0
            return self._forward.decode(rows, with_logits=is_read)
        size = padded_size(segments, self._forward, views)
        captured = self._passes.get(size)
        if captured is None:  # before the rows are filled in: a capture runs over padding
            captured = self._passes[size] = self._capture(size)
        num_logits = captured.tables.fill(segments, num_unread, views)
        captured.graph.replay()
        self.num_replays += 1
        return captured.logits[:num_logits]

    def _capture(self, size: PassSize) -> _CapturedPass:
        tables = PassRows(size, self._forward.device)
        rows = tables.rows(size.num_rows)

        def over_padding() -> None:
            tables.fill(())
            self._pass(rows)

        graph = self._captures.capture(over_padding, lambda: self._pass(rows))
        self.num_captures += 1
        return _CapturedPass(tables, self._forward.logits(size.num_rows), graph)

    def _pass(self, rows: Rows) -> None:
        self._forward.decode(rows)
