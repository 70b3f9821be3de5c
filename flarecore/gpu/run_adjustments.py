"""Repetition penalty and bias of the rows of a run, as its steps move on.

The logits to choose from are the raw ones, with those of the tokens that the row's text has so far
divided by the penalty (multiplied where they are negative), and then the bias added: the same
operations as for single rows (row_sampling), so that a row has the same bits either way. What was
sampled joins the text on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from flarecore.gpu.adjustments import penalised
from flarecore.gpu.mirrored import Mirrored
from flarecore.gpu.run_bucket import RunRequest

__all__ = ["RunAdjustments"]


class RunAdjustments:
    """For runs of up to `max_rows` rows, one at a time; takes memory when it is first filled.

    A row takes 5 bytes for each token of the vocabulary.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._shape = (max_rows, vocab_size)
        self._device = device
        self._buffers: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def fill(self, requests: Sequence[RunRequest]) -> None:
        """Takes the rows' settings and texts, in stream order; rows behind them have none."""
        seen, penalties, bias = self._tensors()
        seen.zero_()
        penalties.fill_(1.0)
        bias.zero_()
        marked = [(row, token) for row, request in enumerate(requests)
                  for token in (set(request.history)
                                if request.settings.repetition_penalty != 1.0 else ())]
        added = [(row, token, value) for row, request in enumerate(requests)
                 for token, value in request.settings.logit_bias.items()]
        fields = Mirrored({
            "marked": (np.int64, (2, len(marked))), "added": (np.int64, (2, len(added))),
            "values": (np.float32, (len(added),)), "penalties": (np.float32, (len(requests),)),
        }, self._device)
        host = fields.host
        host["marked"][:] = np.array(marked, np.int64).reshape(-1, 2).T
        host["added"][:] = np.array([pair[:2] for pair in added], np.int64).reshape(-1, 2).T
        host["values"][:] = [value for _, _, value in added]
        host["penalties"][:] = [request.settings.repetition_penalty for request in requests]
        fields.upload()
        device = fields.device
        seen[device["marked"][0], device["marked"][1]] = True
        bias[device["added"][0], device["added"][1]] = device["values"]
        penalties[: len(requests), 0] = device["penalties"]

    def choice(self, logits: torch.Tensor) -> torch.Tensor:
        """(num_rows, vocab) what to choose from, of the first rows."""
        seen, penalties, bias = (part[: logits.shape[0]] for part in self._tensors())
        return torch.where(seen, penalised(logits, penalties), logits) + bias

    def add(self, tokens: torch.Tensor) -> None:
        """`tokens` (num_rows,) int32, the last one of each row, are in its text now."""
        seen, _, _ = self._tensors()
        seen[: tokens.shape[0]].scatter_(1, tokens.long()[:, None], True)

    def _tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Marks of the text, penalties, bias; graphs refer to them."""
        if self._buffers is None:
            def new(columns: int, dtype: torch.dtype) -> torch.Tensor:
                return torch.zeros((self._shape[0], columns), dtype=dtype, device=self._device)

            vocab_size = self._shape[1]
            self._buffers = (new(vocab_size, torch.bool), new(1, torch.float32),
                             new(vocab_size, torch.float32))
        return self._buffers
