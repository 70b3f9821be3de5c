"""Repetition penalty and bias of rows, as the CUDA sampler applies them while it reads the logits.

Each row has the set of tokens that its text has so far, one bit a token, in device memory. Texts of
one verification are prefixes of each other and cross to the device once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flarecore.gpu.device_ops import DeviceOps
from flarecore.gpu.mirrored import Mirrored

__all__ = ["Adjuster", "Adjustments", "penalised"]


@dataclass(frozen=True)
class Adjustments:
    """What is done to the logits of rows before they are chosen from.

    Attributes
    ----------
    seen
        (rows, ceil(vocab / 32)) int32, a bit for each token that is penalised.
    penalties
        (rows,) float32; 1 leaves a row as it is.
    bias
        (rows, vocab) float32 that is added behind the penalty, or None.
    """

    seen: torch.Tensor
    penalties: torch.Tensor
    bias: torch.Tensor | None


class Adjuster:
    """Makes the adjustments of up to `max_rows` rows; those of one launch at a time."""

    def __init__(self, ops: DeviceOps, max_rows: int, vocab_size: int,
                 device: torch.device) -> None:
        self._ops = ops
        self._vocab_size = vocab_size
        self._device = device
        self._shape = (max_rows, -(-vocab_size // 32))
        self._seen: torch.Tensor | None = None  # when the first row is adjusted

    def make(self, penalties: Sequence[float], histories: Sequence[Sequence[int]],
             biases: Sequence[Mapping[int, float]]) -> Adjustments:
        """For rows with these penalties, tokens so far, and biases of tokens."""
        if self._seen is None:
            self._seen = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        num_rows = len(penalties)
        texts, places = _shared(histories)
        fields = Mirrored({"penalties": (np.float32, (num_rows,)),
                           "tokens": (np.int32, (max(len(texts), 1),))}, self._device)
        fields.host["penalties"][:] = penalties
        fields.host["tokens"][: len(texts)] = texts
        fields.upload()
        seen, tokens = self._seen[:num_rows], fields.device["tokens"]
        for row, (begin, size) in enumerate(places):
            self._ops.mark_seen(seen[row], tokens[begin : begin + size], self._vocab_size)
        return Adjustments(seen, fields.device["penalties"], self._bias(biases))

    def _bias(self, biases: Sequence[Mapping[int, float]]) -> torch.Tensor | None:
        if not any(biases):
            return None
        out = torch.zeros((len(biases), self._vocab_size), dtype=torch.float32,
                          device=self._device)
        for row, bias in enumerate(biases):
            ids = torch.tensor(list(bias), dtype=torch.int64, device=self._device)
            out[row, ids] = torch.tensor(list(bias.values()), dtype=torch.float32,
                                         device=self._device)
        return out


def penalised(logits: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    """Logits of tokens that a text has already, as torch applies the repetition penalty."""
    return torch.where(logits > 0, logits / penalty, logits * penalty)


def _shared(texts: Sequence[Sequence[int]]) -> tuple[list[int], list[tuple[int, int]]]:
    """One run of tokens that holds every text, and where each begins and how long it is.

    A text that the following one begins with lies inside of it.
    """
    run: list[int] = []
    places: list[tuple[int, int]] = [(0, 0)] * len(texts)
    begin = 0
    longest: list[int] = []
    for index in range(len(texts) - 1, -1, -1):
        text = list(texts[index])
        if longest[: len(text)] != text:
            begin, longest = len(run), text
            run += text
        places[index] = (begin, len(text))
    return run, places
