"""What the answers of a method come to: quality with intervals, cost per answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flarecore.errors import ConfigError
from flarecore.eval.bootstrap import Interval, mean_interval, paired_difference
from flarecore.eval.record import Record
from flarecore.trace import FlareStats, Trace

__all__ = ["METRICS", "PHASES", "MethodSummary", "common_records", "differences", "summarise"]

METRICS = ("em", "f1", "contained")
PHASES = ("draft", "query", "retrieve", "regenerate", "other")


@dataclass(frozen=True)
class MethodSummary:
    """One method.

    Parameters
    ----------
    label : str
        What it is called.
    settings : Mapping
        Of its run.
    records : tuple of Record
        Its answers.
    quality : Mapping of str to Interval
        By the names of `METRICS`.
    costs : Mapping of str to float or None
        Means per answer: ``retrievals``, ``sentences``, ``prefilled``, ``decoded``, ``reused``,
        ``wall_ms``, ``draft_ms`` and the other `PHASES`; over all answers: ``trigger_rate``
        (drafts that triggered by drafts), ``pattern_rate``; means over the answers that have
        them: ``passage_overlap``, ``evidence_use``, ``gold_recall``, ``evidence_has_answer``.
    num_parallel : int
        Most answers that were written at the same time.
    """

    label: str
    settings: Mapping[str, Any]
    records: tuple[Record, ...]
    quality: Mapping[str, Interval]
    costs: Mapping[str, float | None]
    num_parallel: int

    @property
    def never_searched(self) -> bool:
        """Whether no answer looked anything up."""
        return not self.costs["retrievals"]

    @property
    def never_triggered(self) -> bool:
        """Whether no draft of any answer triggered."""
        return not self.costs["trigger_rate"]


def summarise(
    label: str, settings: Mapping[str, Any], records: Sequence[Record], *, seed: int = 0
) -> MethodSummary:
    """The summary of some answers.

    Raises
    ------
    ConfigError
        There is no answer, or a trace is damaged.
    """
    if not records:
        raise ConfigError(f"{label}: there is no answer yet")
    quality = {name: _interval([getattr(r, name) for r in records], seed) for name in METRICS}
    traces = [r.parsed_trace for r in records]
    stats = [FlareStats() if t is None else t.stats for t in traces]
    costs: dict[str, float | None] = {
        name: _mean(getattr(s, field) for s in stats)
        for name, field in (
            ("retrievals", "num_retrievals"), ("sentences", "num_sentences"),
            ("prefilled", "num_prefilled"), ("decoded", "num_decoded"), ("reused", "num_reused"),
            *((f"{phase}_ms", f"{phase}_ms") for phase in PHASES))}
    num_drafts = sum(s.num_drafts for s in stats)
    costs |= {
        "wall_ms": _mean(r.wall_ms for r in records),
        "trigger_rate": sum(s.num_triggers for s in stats) / num_drafts if num_drafts else 0.0,
        "pattern_rate": _mean(float(r.has_pattern) for r in records),
        "passage_overlap": _mean_of(traces, lambda t: t and t.passage_overlap),
        "evidence_use": _mean_of(records, lambda r: r.evidence_use),
        "gold_recall": _mean_of(records, lambda r: r.gold_recall),
        "evidence_has_answer": _mean_of(records, lambda r: r.evidence_has_answer),
    }
    return MethodSummary(label, settings, tuple(records), quality, costs,
                         max(r.num_parallel for r in records))


def common_records(
    methods: Mapping[str, Sequence[Record]], ids: Iterable[str] | None = None
) -> dict[str, list[Record]]:
    """The answers to the questions that every method answered, in one order.

    Methods are compared on the same questions only; a run that was stopped shortens all.

    Parameters
    ----------
    methods : Mapping of str to sequence of Record
        By label.
    ids : iterable of str, optional
        Only these, in this order; None: those of the first method, in its order.
    """
    by_id = {label: {r.id: r for r in records} for label, records in methods.items()}
    order = list(ids) if ids is not None else [r.id for r in next(iter(methods.values()), ())]
    shared = [i for i in order if all(i in known for known in by_id.values())]
    return {label: [known[i] for i in shared] for label, known in by_id.items()}


def differences(
    method: MethodSummary, baseline: MethodSummary, *, seed: int = 0
) -> dict[str, Interval]:
    """By metric: the paired difference of a method to the baseline, with its interval.

    Raises
    ------
    ConfigError
        The two did not answer the same questions in the same order.
    """
    if [r.id for r in method.records] != [r.id for r in baseline.records]:
        raise ConfigError(f"{method.label} and {baseline.label} answered other questions")
    found = {}
    for name in METRICS:
        interval = paired_difference([getattr(r, name) for r in method.records],
                                     [getattr(r, name) for r in baseline.records], seed=seed)
        assert interval is not None, "a summary has at least one record"
        found[name] = interval
    return found


def _interval(values: list[float], seed: int) -> Interval:
    interval = mean_interval(values, seed=seed)
    assert interval is not None, "a summary has at least one record"
    return interval


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _mean_of(
    items: Iterable[Record] | Iterable[Trace | None], value: Callable[[Any], float | None]
) -> float | None:
    """Mean over the items that have the value; None if none has."""
    found = [float(v) for v in map(value, items) if v is not None]
    return sum(found) / len(found) if found else None
