"""The static buffers of decode runs of one batch size, which captured graphs refer to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flarecore.gpu.device import load_kernels
from flarecore.gpu.forward import Forward, Rows
from flarecore.gpu.kv_cache import blocks_for
from flarecore.gpu.mirrored import Mirrored
from flarecore.gpu.passages import PassageView, fill_table, table_fields
from flarecore.gpu.row_sampling import (
    RowSettings,
    fill_settings,
    history_fields,
    progress_fields,
    setting_fields,
    state_of,
)

__all__ = ["RowsSeen", "RunBucket", "RunEnds", "RunRequest", "RunResult", "StepVariant"]


@dataclass(frozen=True)
class StepVariant:
    """What the launches of a step depend on besides the batch size.

    `context`: tokens of context provided for; `filters` and `adjusts`: whether a row has filters, a
    repetition penalty or a bias; `width`: blocks of passages provided for, 0 without any.
    """

    context: int
    filters: bool
    adjusts: bool
    width: int = 0


@dataclass(frozen=True)
class RunEnds:
    """Where a row stops so that the host can see whether its decode is over.

    Attributes
    ----------
    at_sentence
        One token behind one that may end a sentence, or more while they settle nothing.
    is_looking_ahead
        The row begins behind such a token.
    stop
        Stop strings: behind every token that may complete one.
    below
        Behind every token with a confidence below it.
    """

    at_sentence: bool = False
    is_looking_ahead: bool = False
    stop: tuple[str, ...] = ()
    below: float = 0.0


@dataclass(frozen=True)
class RunRequest:
    """Up to `num_steps` tokens after `token` at `position`, whose own K and V are still missing.

    End-of-text tokens end it too, unless the settings ignore them. `history` are the tokens up to
    and with `token`, for the repetition penalty. `view`: what it reserves and sees besides.
    """

    token: int
    position: int
    blocks: Sequence[int]
    num_steps: int
    settings: RowSettings
    ends: RunEnds = RunEnds()
    history: Sequence[int] = ()
    view: PassageView | None = None


@dataclass(frozen=True)
class RunResult:
    """Sampled tokens and confidences, (n,) each; what ended the run is the last one.

    `is_invalid`: the last token comes from logits that are not numbers.
    """

    token_ids: list[int]
    probs: list[float]
    is_invalid: bool


@dataclass(frozen=True)
class RowsSeen:
    """How many rows have not halted, and how many of these are behind a token that may end."""

    num_running: int
    num_looking: int


class RunBucket:
    """Rows of one batch size.

    Parameters
    ----------
    num_rows
        The batch size.
    capacity
        Tokens that are recorded for each row: the most steps of a run.

    Attributes
    ----------
    graphs
        (steps, what else a step depends on) -> the graph captured over the buffers.
    """

    def __init__(self, num_rows: int, capacity: int, forward: Forward) -> None:
        self.num_rows = num_rows
        self.capacity = capacity
        device = forward.device
        self.settings = Mirrored(setting_fields(num_rows), device)
        self.progress = Mirrored(progress_fields(num_rows), device)
        self.history = Mirrored(history_fields(num_rows, capacity), device)
        self.state = state_of(self.settings, self.progress, self.history)
        width = blocks_for(forward.shape.context_length)
        self.table = Mirrored({"blocks": (np.int32, (num_rows, width))}, device)
        self.table_rows = torch.arange(num_rows, dtype=torch.int32, device=device)
        self.query_begin = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        self.passages: dict[int, Mirrored] = {}  # by width of the table
        self.graphs: dict[tuple[int, StepVariant], Any] = {}
        self._flag = load_kernels().sampling.TokenFlag
        self._scratch_block = forward.kv.scratch_block
        host = self.settings.host
        for row in range(num_rows):
            fill_settings(host, row, None)
        host["positions"][:] = -1
        host["min_prob"][:] = 1.0
        self._padding = self.settings.snapshot()

    def clear(self) -> None:
        """All rows padding."""
        self.settings.restore(self._padding)
        self.progress.host["flags"][:] = 0
        self.progress.host["num_sampled"][:] = 0
        # What a row needs behind its reserved blocks, once it has halted, is nobody's.
        self.table.host["blocks"][:] = self._scratch_block

    def fill(self, row: int, request: RunRequest, num_steps: int, stop_bit: int) -> None:
        """Puts a request into a row, which halts after `num_steps` at the latest."""
        flag, ends, host = self._flag, request.ends, self.settings.host
        halt = stop_bit
        if ends.at_sentence:
            halt |= int(flag.LOOKED)
        if ends.below > 0.0:
            halt |= int(flag.BELOW_THETA)
        fill_settings(host, row, request.settings, halt_flags=halt, below=ends.below)
        host["positions"][row] = request.position
        host["tokens"][row] = request.token
        self.progress.host["flags"][row] = int(flag.MAY_END) if ends.is_looking_ahead else 0
        # The history is full after num_steps more tokens: that halts the row.
        self.progress.host["num_sampled"][row] = self.capacity - num_steps
        self.table.host["blocks"][row, : len(request.blocks)] = request.blocks

    def upload(self) -> None:
        for part in (self.settings, self.progress, self.table):
            part.upload()

    def set_views(self, width: int, views: Sequence[PassageView | None]) -> None:
        """What the rows reserve and see; rows behind them nothing."""
        if width:
            if width not in self.passages:
                fields = table_fields(self.num_rows, width)
                self.passages[width] = Mirrored(fields, self.table_rows.device)
            fill_table(self.passages[width], views)
            self.passages[width].upload()

    def rows(self, variant: StepVariant) -> Rows:
        passages = None
        if variant.width:
            passages = load_kernels().attention.PassageTable(
                **self.passages[variant.width].device)
        return Rows(self.state.tokens, self.state.positions, self.table_rows,
                    self.table.device["blocks"], self.query_begin, 1, variant.context,
                    passages=passages)

    def look(self, num_rows: int) -> RowsSeen:
        """The first rows after the last step that has reported; the device may be at work."""
        flag = self._flag
        flags = self.progress.host["flags"][:num_rows].copy()
        halts = self.settings.host["ints"][:num_rows, 4]
        is_running = (flags & halts) == 0
        looks = (flags & int(flag.MAY_END) != 0) & (halts & int(flag.LOOKED) != 0)
        return RowsSeen(int(is_running.sum()), int((is_running & looks).sum()))

    def result(self, row: int, num_steps: int) -> RunResult:
        """What a row has recorded, once the history is on the host."""
        part = slice(self.capacity - num_steps, int(self.progress.host["num_sampled"][row]))
        host = self.history.host
        flags = host["history_flags"][row, part]
        return RunResult(host["history_tokens"][row, part].tolist(),
                         host["history_probs"][row, part].tolist(),
                         bool(len(flags)) and bool(flags[-1] & int(self._flag.INVALID)))
