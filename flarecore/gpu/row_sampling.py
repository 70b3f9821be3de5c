"""Sampler settings of rows as the kernels take them, and sampling of rows outside of graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from flarecore.errors import ConfigError, FlarecoreError
from flarecore.gpu.adjustments import Adjuster, Adjustments, penalised
from flarecore.gpu.device import load_kernels
from flarecore.gpu.fused_sampler import FusedSampler
from flarecore.gpu.mirrored import Mirrored
from flarecore.reference.sampler import sample as reference_sample

__all__ = ["INVALID_LOGITS", "RowRequest", "RowSampler", "RowSettings", "fill_settings",
           "history_fields", "progress_fields", "setting_fields", "state_fields", "state_of"]

INVALID_LOGITS = ("the model produced NaN logits or no finite one: its weights or activations "
                  "overflow")
_SIGN = 1 << 63


@dataclass(frozen=True)
class RowSettings:
    """How one decode samples; from the fields of SamplingParams.

    Raises
    ------
    ConfigError
        A token of the bias is not in the vocabulary, or a number overflows float32.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stream: int
    repetition_penalty: float
    logit_bias: Mapping[int, float] = field(hash=False)
    pass_index: int = 0
    ignore_eos: bool = False

    @classmethod
    def of_request(cls, sampling: Mapping[str, Any], pass_index: int, ignore_eos: bool,
                   vocab_size: int) -> RowSettings:
        settings = cls(**sampling, pass_index=pass_index, ignore_eos=ignore_eos)
        for name in ("temperature", "repetition_penalty"):
            value = getattr(settings, name)
            with np.errstate(over="ignore"):
                if not np.isfinite(np.float32(value)):
                    raise ConfigError(f"{name} must be finite in float32, got {value}")
        for token_id in settings.logit_bias:
            if token_id >= vocab_size:
                raise ConfigError(f"logit_bias names token {token_id}, the vocabulary has ids 0 to "
                                  f"{vocab_size - 1}")
        return settings

    @property
    def adjusts_logits(self) -> bool:
        return self.repetition_penalty != 1.0 or bool(self.logit_bias)

    @property
    def has_filters(self) -> bool:
        is_filter = self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0
        return self.temperature > 0.0 and is_filter


Fields = dict[str, tuple[Any, tuple[int, ...]]]  # of a Mirrored


def progress_fields(num_rows: int) -> Fields:
    """What moves on in a row and tells how far it is."""
    return {"flags": (np.int32, (num_rows,)), "num_sampled": (np.int32, (num_rows,))}


def setting_fields(num_rows: int) -> Fields:
    """Settings of a row, and what moves on in it and matters on the device only."""
    rows = (num_rows,)
    return {
        "floats": (np.float32, (num_rows, 5)), "ints": (np.int64, (num_rows, 5)),
        "positions": (np.int32, rows), "tokens": (np.int32, rows), "min_prob": (np.float32, rows),
    }


def history_fields(num_rows: int, capacity: int) -> Fields:
    """What was sampled."""
    shape = (num_rows, capacity)
    return {"history_tokens": (np.int32, shape), "history_probs": (np.float32, shape),
            "history_flags": (np.uint8, shape)}


def state_fields(num_rows: int, capacity: int) -> Fields:
    """All fields of a SamplerState of the kernels."""
    return {**setting_fields(num_rows), **progress_fields(num_rows),
            **history_fields(num_rows, capacity)}


def state_of(*parts: Mirrored) -> Any:
    """The kernels' SamplerState over the device sides, which have its fields between them."""
    fields = {name: tensor for part in parts for name, tensor in part.device.items()}
    return load_kernels().sampling.SamplerState(**fields)


def fill_settings(host: Mapping[str, Any], row: int, settings: RowSettings | None, *,
                  halt_flags: int = 0, below: float = 0.0) -> None:
    """Writes a row's settings into the host side; None: greedy.

    `halt_flags` are TokenFlag bits that halt the row besides the usual ones, `below` is what
    BELOW_THETA compares confidences with.
    """
    flag = load_kernels().sampling.TokenFlag
    halt = int(flag.INVALID | flag.FULL) | halt_flags
    if settings is None:
        host["floats"][row] = (0.0, 1.0, 0.0, 0.0, below)
        host["ints"][row] = (0, 0, 0, 0, halt | int(flag.EOS))
        return
    if not settings.ignore_eos:
        halt |= int(flag.EOS)
    seed = settings.seed - 2 * _SIGN if settings.seed >= _SIGN else settings.seed
    host["floats"][row] = (settings.temperature, settings.top_p, settings.min_p, 0.0, below)
    host["ints"][row] = (seed, settings.stream, settings.pass_index,
                         min(settings.top_k, 1 << 18), halt)


@dataclass(frozen=True)
class RowRequest:
    """What to do with one row of logits.

    `position` is the row's own; the sampled token has the next one. `history` are the tokens up to
    it, for the repetition penalty. With `given`, nothing is sampled and its confidence is wanted.
    """

    position: int
    settings: RowSettings | None = None
    history: Sequence[int] = ()
    given: int | None = None

    @property
    def is_adjusted(self) -> bool:
        """Whether it is sampled from other logits than the raw ones."""
        settings = self.settings if self.given is None else None
        return settings is not None and settings.adjusts_logits


class RowSampler:
    """Samples or scores the rows of a verification pass; `adjuster` is of its most rows."""

    def __init__(self, sampler: FusedSampler, device: torch.device, adjuster: Adjuster, *,
                 use_reference: bool) -> None:
        self._sampler = sampler
        self._adjuster = adjuster
        self._device = device
        self._use_reference = use_reference

    def launch(self, logits: torch.Tensor, requests: Sequence[RowRequest]) -> Mirrored:
        """Queues the sampling of (num_rows, vocab) float32 logits; see :meth:`results`."""
        state = Mirrored(state_fields(len(requests), 1), self._device)
        state.host["min_prob"][:] = 1.0
        for row, request in enumerate(requests):
            fill_settings(state.host, row, None if request.given is not None else request.settings)
            state.host["positions"][row] = request.position
        state.upload()
        self._sampler(
            logits, state_of(state), choice_logits=self._choice_logits(logits, requests),
            filters=any(r.settings is not None and r.settings.has_filters for r in requests),
            adjustments=self._adjustments(requests))
        state.download()
        return state

    def _choice_logits(self, logits: torch.Tensor,
                       requests: Sequence[RowRequest]) -> torch.Tensor | None:
        """What to choose from where that differs from the raw logits."""
        adjusts_here = not self._sampler.adjusts
        if not any(r.given is not None or (adjusts_here and r.is_adjusted) for r in requests):
            return None
        choice = logits.clone()
        for row, request in enumerate(requests):
            if request.given is not None:
                # The sampler then gives the confidence of this token, with its own bits.
                choice[row].fill_(float("-inf"))
                choice[row, request.given] = 0.0
            elif adjusts_here and request.settings is not None and request.is_adjusted:
                _adjust(choice[row], request.settings, request.history)
        return choice

    def _adjustments(self, requests: Sequence[RowRequest]) -> Adjustments | None:
        """For the sampler that makes them itself."""
        if not self._sampler.adjusts or not any(r.is_adjusted for r in requests):
            return None
        settings = [r.settings if r.is_adjusted else None for r in requests]
        return self._adjuster.make(
            [1.0 if s is None else s.repetition_penalty for s in settings],
            [() if s is None or s.repetition_penalty == 1.0 else r.history
             for s, r in zip(settings, requests, strict=True)],
            [{} if s is None else s.logit_bias for s in settings])

    def results(self, state: Mirrored, logits: torch.Tensor,
                requests: Sequence[RowRequest]) -> list[tuple[int, float]]:
        """(token, confidence) of each row, once the stream has been synchronised.

        The token is -1 where the logits are not numbers.
        """
        invalid = int(load_kernels().sampling.TokenFlag.INVALID)
        out = []
        for row, request in enumerate(requests):
            token = int(state.host["history_tokens"][row, 0])
            prob = float(state.host["history_probs"][row, 0])
            if state.host["history_flags"][row, 0] & invalid:
                out.append((-1, 0.0))
                continue
            if self._use_reference and request.given is None and request.settings is not None:
                token, prob = _sample_on_host(logits[row], request)
            out.append((token, prob))
        return out


def _adjust(row: torch.Tensor, settings: RowSettings, history: Sequence[int]) -> None:
    """The repetition penalty, once for each token of the history, then the bias; in place."""
    if settings.repetition_penalty != 1.0 and history:
        seen = torch.tensor(sorted(set(history)), device=row.device)
        penalty = torch.tensor(settings.repetition_penalty, dtype=torch.float32, device=row.device)
        row[seen] = penalised(row[seen], penalty)
    if settings.logit_bias:
        ids = torch.tensor(list(settings.logit_bias), device=row.device)
        bias = torch.tensor(list(settings.logit_bias.values()), dtype=torch.float32,
                            device=row.device)
        row[ids] += bias


def _sample_on_host(logits: torch.Tensor, request: RowRequest) -> tuple[int, float]:
    settings = request.settings
    if settings is None:
        raise FlarecoreError("a row without settings cannot be sampled")
    sampled = reference_sample(
        logits.cpu().numpy(), temperature=settings.temperature, top_k=settings.top_k,
        top_p=settings.top_p, min_p=settings.min_p, seed=settings.seed, stream=settings.stream,
        position=request.position + 1, pass_index=settings.pass_index,
        repetition_penalty=settings.repetition_penalty, history=request.history,
        logit_bias=settings.logit_bias)
    return sampled.token_id, float(np.float32(sampled.prob))
