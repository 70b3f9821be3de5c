"""Keeps an answer's clock, counts and traces while it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flarecore.events import Event, SentenceAccepted
from flarecore.loop.attaching import Attached
from flarecore.loop.candidate import Candidate
from flarecore.loop.effects import EmitEvent, Steps
from flarecore.loop.interfaces import OperationStatsLike
from flarecore.loop.prompt import View
from flarecore.loop.timing import PhaseClock
from flarecore.result import FlareResult
from flarecore.trace import (
    AskTrace,
    FlareStats,
    PassTrace,
    RetrievalTrace,
    SentenceTrace,
    Trace,
    add_counts,
)

__all__ = ["Pass", "Recorder", "SentenceStep", "operation_counts"]


@dataclass(frozen=True)
class Pass:
    """A finished pass of the decoder: its context, the sentence, its exact bytes, its trace.

    `attached` are the passages that were attached to the context (placement ``parallel``).
    """

    view: View
    candidate: Candidate
    text_bytes: bytes
    trace: PassTrace
    attached: Attached | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was generated."""
        return not self.candidate.token_ids and not self.text_bytes

    @property
    def is_cut(self) -> bool:
        """Whether it stopped inside the sentence, at a low token."""
        return self.candidate.stop_reason == "low_confidence"


@dataclass
class SentenceStep:
    """The sentence being worked on.

    Parameters
    ----------
    index : int
        From 0.
    draft : Pass
        The draft.
    current : Pass
        The draft or the last regeneration, or one of them written to its end.
    searched : dict of str to bool
        Queries of this gap, and whether they gave something usable.
    """

    index: int
    draft: Pass
    current: Pass
    searched: dict[str, bool]
    retrievals: list[RetrievalTrace] = field(default_factory=list)
    regenerations: list[Pass] = field(default_factory=list)
    asked: list[AskTrace] = field(default_factory=list)
    query_ms: float = 0.0
    completion: Pass | None = None
    unsupported_because: str | None = None

    @property
    def is_regenerated(self) -> bool:
        """Whether the sentence was written again with evidence."""
        return bool(self.regenerations)

    def trace(
        self, outcome: str, stop_reason: str, token_ids: tuple[int, ...] = (), text: str = ""
    ) -> SentenceTrace:
        """The sentence's trace, once its outcome is known."""
        return SentenceTrace(
            index=self.index, draft=self.draft.trace, retrievals=tuple(self.retrievals),
            regenerations=tuple(p.trace for p in self.regenerations), asked=tuple(self.asked),
            query_ms=self.query_ms,
            completion=None if self.completion is None else self.completion.trace, outcome=outcome,
            unsupported_because=self.unsupported_because, token_ids=token_ids, text=text,
            stop_reason=stop_reason)


class Recorder:
    """Everything of an answer that is reported and decides nothing.

    Parameters
    ----------
    model, config, question, scope, prompt_token_ids, placement, method, method_options
        As in :class:`flarecore.trace.Trace`.
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self, *, model: str, config: Mapping[str, Any], question: str | None, scope: str | None,
        prompt_token_ids: tuple[int, ...], placement: str, clock: Callable[[], float],
        method: str, method_options: Mapping[str, Any],
    ) -> None:
        self._fixed: dict[str, Any] = {
            "model": model, "config": config, "question": question, "scope": scope,
            "prompt_token_ids": prompt_token_ids, "placement": placement,
            "is_approximate": placement == "parallel", "method": method,
            "method_options": method_options}
        self.clock = PhaseClock(clock)
        self.gate: str | None = None
        self.initial_retrieval: RetrievalTrace | None = None
        self.sentences: list[SentenceTrace] = []
        self.accepted: list[SentenceAccepted] = []
        self._counts = FlareStats()

    def count(self, **more: int) -> None:
        """Increases counts of :class:`FlareStats`."""
        self._counts = add_counts(self._counts, **more)

    def emit(self, event: Event) -> Steps[None]:
        """Hands an event to the consumer, whose time is not the answer's."""
        self.clock.pause()
        yield EmitEvent(event)
        self.clock.resume()

    def count_pass(self, trace: PassTrace) -> None:
        """Adds what a pass cost."""
        names = ("num_prefilled", "num_decoded", "num_reused", "num_proposed", "num_accepted",
                 "num_encoded")
        self.count(**{name: getattr(trace, name) for name in names})

    def stats(self) -> FlareStats:
        """Counts and times up to now."""
        return add_counts(
            self._counts, **{f"{phase}_ms": ms for phase, ms in self.clock.so_far().items()})

    def result(self, stop_reason: str, at_work: SentenceStep | None = None) -> FlareResult:
        """The answer so far with its trace; changes nothing, and so can be asked at any time.

        `at_work` is a sentence that is not accepted: the trace ends with it.
        """
        accepted = tuple(self.accepted)
        text = "".join(event.text for event in accepted)
        left = () if at_work is None else (at_work.trace("nothing", stop_reason),)
        trace = Trace(
            **self._fixed, gate=self.gate, initial_retrieval=self.initial_retrieval,
            sentences=(*self.sentences, *left), text=text, stop_reason=stop_reason,
            stats=self.stats())
        token_ids = tuple(token_id for event in accepted for token_id in event.token_ids)
        return FlareResult(text, accepted, token_ids, stop_reason, trace)


def operation_counts(
    stats: OperationStatsLike, num_context: int, num_prefilled_before: int = 0
) -> dict[str, int]:
    """Token counts of a pass over a context of so many tokens.

    `num_prefilled_before` tokens of it were prefilled to make it ready for the pass.
    """
    num_prefilled = stats.num_prefilled + num_prefilled_before
    return {
        "num_context": num_context,
        # What was not fed was there: in the sequence, or found by the engine's prefix cache.
        "num_reused": max(num_context - num_prefilled, 0),
        "num_prefilled": num_prefilled,
        "num_decoded": stats.num_decoded,
        "num_proposed": stats.num_proposed,
        "num_accepted": stats.num_accepted,
    }
