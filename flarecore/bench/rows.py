"""What a benchmark reports: rows, each with all that is needed to read it on its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flarecore.bench.harness import Quantiles
from flarecore.bench.machine import Machine

__all__ = ["Report", "Row"]


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes
    ----------
    benchmark, case : str
        What was measured: ``"decode"``, ``"context 64, 1 sequence"``. Rows of one case compare.
    engine : str
        Who: ``"flarecore int8"``, ``"llama.cpp Q8_0"``.
    params : mapping
        Sizes: context, sequences, rows, tokens.
    seconds : Quantiles or None
        Of one unit of work: a decode step, a prefill, a load.
    rounds : int
        How many times it was timed.
    tokens : int
        Tokens of one unit of work; 0 where tokens are not the point.
    bytes_read : int
        Bytes of weights and KV that a unit of work must read at least; 0 if not counted.
    memory_bytes_per_s : float or None
        Read speed of a buffer as large as `bytes_read`, in the same rounds.
    ratios : mapping of str to Quantiles
        Engine -> how many times as long it took as this one.
    values : mapping
        What only this benchmark has.
    """

    benchmark: str
    case: str
    engine: str
    params: Mapping[str, int | str] = field(default_factory=dict)
    seconds: Quantiles | None = None
    rounds: int = 0
    tokens: int = 0
    bytes_read: int = 0
    memory_bytes_per_s: float | None = None
    ratios: Mapping[str, Quantiles] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float | None:
        if not self.tokens or self.seconds is None:
            return None
        return self.tokens / self.seconds.median

    @property
    def bytes_per_s(self) -> float | None:
        if not self.bytes_read or self.seconds is None:
            return None
        return self.bytes_read / self.seconds.median

    @property
    def memory_share(self) -> float | None:
        """`bytes_per_s` as a share of the measured read speed."""
        if self.bytes_per_s is None or not self.memory_bytes_per_s:
            return None
        return self.bytes_per_s / self.memory_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        data = dataclasses.asdict(self)
        data["params"], data["values"] = dict(self.params), dict(self.values)
        data |= {"tokens_per_s": self.tokens_per_s, "bytes_per_s": self.bytes_per_s,
                 "memory_share": self.memory_share}
        return data


@dataclass(frozen=True)
class Report:
    """Rows of one benchmark.

    Attributes
    ----------
    benchmark, model : str
    model_format : str
        The type that most of the model's values have in its file.
    machine : Machine
    rows : sequence of Row
    proofs : sequence of str
        What was shown to be right before anything was timed.
    notes : sequence of str
        What is missing, and why.
    """

    benchmark: str
    model: str
    model_format: str
    machine: Machine
    rows: Sequence[Row]
    proofs: Sequence[str]
    notes: Sequence[str]

    def to_dicts(self) -> list[dict[str, Any]]:
        """A JSON object per row, each complete."""
        shared = {"model": self.model, "model_format": self.model_format,
                  "machine": self.machine.to_dict(), "proofs": list(self.proofs),
                  "notes": list(self.notes)}
        return [{**row.to_dict(), **shared} for row in self.rows]
