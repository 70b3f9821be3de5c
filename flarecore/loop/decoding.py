"""Passes of the decoder over a sentence: fitting the context, drafting, regenerating."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flarecore.errors import ConfigError, ContextOverflowError
from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.answer_text import token_pieces
from flarecore.loop.attaching import Attaching, Taken
from flarecore.loop.candidate import Candidate
from flarecore.loop.effects import RunOperation, Steps
from flarecore.loop.interfaces import DecodedLike
from flarecore.loop.lineage import Lineages
from flarecore.loop.prompt import Placed, View
from flarecore.loop.recorder import Pass, Recorder, SentenceStep, operation_counts
from flarecore.loop.timing import Deadline
from flarecore.loop.trigger import judge, low_tokens, stop_below
from flarecore.trace import PassTrace

__all__ = ["DecodePass"]


class DecodePass:
    """Runs the passes of one answer on its lineages.

    Parameters
    ----------
    setup : AnswerSetup
        Engine, options and request.
    record : Recorder
        Is told what every pass cost.
    deadline : Deadline
        Is looked at before every pass, and handed to the engine.
    lineages : Lineages
        The answer's cached contexts.
    """

    def __init__(
        self, setup: AnswerSetup, record: Recorder, deadline: Deadline, lineages: Lineages
    ) -> None:
        self._setup = setup
        self._config = setup.config
        self._record = record
        self._deadline = deadline
        self._lineages = lineages
        self._attaching = Attaching(setup, lineages)
        self._is_parallel = setup.config.placement == "parallel"
        # With drafts that see evidence there is one context at a time, and so one lineage.
        self._one_lineage = setup.config.draft_context == "last_evidence"
        # An evidence lineage is worth keeping only where the evidence stands before the answer;
        # at a boundary the trunk has more in common with the next context.
        self._keeps_evidence = self._one_lineage or setup.config.placement == "prefix"

    def fit(self, placed: Placed | None, answer: Sequence[int], max_tokens: int) -> View:
        """The context for the next sentence, with as many passages as there is room for.

        Raises
        ------
        ContextOverflowError
            There is no room for all, and the options say to fail then.
        """
        limit = self._setup.context_length
        while True:
            ids = self._setup.prompt.layout(self._config.placement, placed, answer)
            sees_from = None
            if placed is not None and self._is_parallel:
                sees_from = self._setup.prompt.first_seeing(placed, self._config.recompute_tokens)
            if len(ids) + max_tokens <= limit:
                return View(placed, ids, max_tokens, sees_from)
            if self._config.overflow == "error":
                raise ContextOverflowError(
                    f"a context of {len(ids)} tokens and {max_tokens} to generate does not fit "
                    f"into the model's context_length of {limit}; lower max_new_tokens or "
                    "max_evidence_tokens, or use overflow='drop_oldest'")
            if placed is None or self._is_parallel:  # attached evidence takes no room
                return View(placed, ids, limit - len(ids), sees_from)
            fewer = self._setup.maker.without_oldest(placed.evidence)
            placed = None if fewer is None else Placed(fewer, placed.boundary)

    def draft(
        self, view: View, index: int, answer_text: str, *, is_tested: bool, may_stop: bool,
        pass_index: int = 0, **changes: Any,
    ) -> Steps[Pass]:
        """Writes a sentence; `may_stop` lets it stop at a low token.

        `changes` are options of the decode that differ from the answer's.
        """
        return (yield from self._run(
            view, phase="draft", pass_index=pass_index, is_tested=is_tested, may_stop=may_stop,
            index=index, answer_text=answer_text, changes=changes))

    def nothing(self, view: View, index: int) -> Steps[Pass]:
        """A pass that writes nothing and costs nothing."""
        candidate = Candidate("", (), (), (), np.zeros(0, np.float32), "no_evidence", index)
        ids = () if view.placed is None else view.placed.evidence.passage_ids
        return Pass(view, candidate, b"", PassTrace(
            text="", token_ids=(), tokens=(), probs=(), low=(), triggered=None, rule=None,
            stop_reason=candidate.stop_reason, pass_index=0, passage_ids=ids, num_context=0,
            num_reused=0, num_prefilled=0, num_decoded=0, num_proposed=0, num_accepted=0,
            num_encoded=0, time_ms=0.0))
        yield  # makes this a part of the loop like the others

    def regenerate(self, view: View, step: SentenceStep, answer_text: str) -> Steps[Pass]:
        """Writes the step's sentence again; tested only if it could be written once more."""
        proposal: tuple[int, ...] = ()
        lookup: tuple[int, ...] = ()
        if self._config.speculative and view.placed is not None:
            prompt = self._setup.prompt
            lookup = (*view.placed.evidence.token_ids, *prompt.question)
            proposal = step.current.candidate.token_ids
            if prompt.reopens_turn and self._config.placement == "boundary" \
                    and view.placed.boundary > 0:
                proposal = self._setup.joint.detach(proposal)
        is_tested = len(step.retrievals) < self._config.max_retrievals_per_sentence
        return (yield from self._run(
            view, phase="regenerate", pass_index=len(step.regenerations) + 1,
            proposal=proposal[:view.max_tokens], lookup=lookup, is_tested=is_tested,
            may_stop=is_tested, index=step.index, answer_text=answer_text))

    def complete(self, step: SentenceStep, answer_text: str) -> Steps[Pass]:
        """The step's sentence, which stopped at a low token, written to its end.

        The same pass without the stop, so that it begins with the same tokens: they are a proposal
        that is always right.
        """
        current = step.current
        proposal = current.candidate.token_ids if self._config.speculative else ()
        return (yield from self._run(
            current.view, phase="regenerate" if step.is_regenerated else "draft",
            pass_index=current.trace.pass_index, proposal=proposal[:current.view.max_tokens],
            is_tested=False, may_stop=False, index=step.index, answer_text=answer_text))

    def _run(
        self, view: View, *, phase: str, pass_index: int, is_tested: bool, may_stop: bool,
        index: int, answer_text: str, proposal: tuple[int, ...] = (), lookup: tuple[int, ...] = (),
        changes: Mapping[str, Any] | None = None,
    ) -> Steps[Pass]:
        config = self._config
        options: dict[str, Any] = {
            "sampling": config.sampling, "until": "sentence",
            "stop": (*config.stop, *self._setup.prompt.stop), "beta": config.beta,
            "pass_index": pass_index}
        if proposal or lookup:
            options |= {"proposal": proposal, "lookup": lookup}
        threshold = stop_below(config) if may_stop else None
        if threshold is not None:
            options |= {"stop_below": threshold, "stop_at_punctuation": config.trigger_punctuation}
        options |= changes or {}
        taken, decoded, time_ms = yield from self._lineages.room.run(
            lambda: self._forward(view, phase, options), self._deadline)
        candidate = self._candidate(decoded, index, answer_text)
        judged = judge(candidate, config, is_draft=pass_index == 0) if is_tested else None
        low = low_tokens(candidate, config) if judged is None else judged.low
        trace = PassTrace(
            text=candidate.text, token_ids=candidate.token_ids,
            tokens=token_pieces(candidate.token_bytes), probs=tuple(candidate.probs.tolist()),
            low=tuple(low.tolist()),
            triggered=None if judged is None else judged.triggered,
            rule=None if judged is None else judged.rule,
            stop_reason=candidate.stop_reason, pass_index=pass_index,
            passage_ids=view.placed.evidence.passage_ids if view.placed else (), time_ms=time_ms,
            num_encoded=taken.num_encoded,
            **operation_counts(decoded.stats, view.num_tokens, taken.num_prefilled))
        self._record.count_pass(trace)
        return Pass(view, candidate, decoded.text_bytes, trace, taken.attached)

    def _forward(
        self, view: View, phase: str, options: dict[str, Any]
    ) -> Steps[tuple[Taken, DecodedLike, float]]:
        """The passages attached for it, what was decoded, and the milliseconds it took."""
        on_evidence = view.placed is not None and not self._one_lineage
        self._record.clock.enter(phase)
        try:
            taken = yield from self._attaching.take(view, self._deadline.remaining_ms())
            deadline_ms = self._deadline.remaining_ms()
            lineage = self._lineages.take(
                "evidence" if on_evidence else "draft", view.token_ids, taken.attached)
            lineage.align(view.token_ids, taken.attached)
            if not on_evidence and not self._keeps_evidence:
                self._lineages.release("evidence")
            decoded: DecodedLike = yield RunOperation(
                lambda: lineage.decode(
                    max_tokens=view.max_tokens, deadline_ms=deadline_ms, **options))
        finally:
            time_ms = self._record.clock.enter("other")
        return taken, decoded, time_ms

    def _candidate(self, decoded: DecodedLike, index: int, answer_text: str) -> Candidate:
        tokenizer = self._setup.engine.tokenizer
        special = tokenizer.special_token_ids
        token_ids = tuple(int(i) for i in decoded.token_ids)
        probs = np.asarray(decoded.probs, dtype=np.float32)
        # A logarithm taken for a probability would trigger always, a shifted list anywhere.
        if probs.shape != (len(token_ids),) or not ((probs >= 0.0) & (probs <= 1.001)).all():
            raise ConfigError(
                f"the engine must give a probability in [0, 1] for each of the {len(token_ids)} "
                f"tokens, got {probs.tolist()!r:.80}")
        return Candidate(
            text=decoded.text_bytes.decode("utf-8", "replace"), token_ids=token_ids,
            token_bytes=tuple(tokenizer.token_bytes(i) for i in token_ids),
            is_special=tuple(i in special for i in token_ids),
            probs=probs, stop_reason=decoded.stop_reason,
            sentence_index=index, question=self._setup.prompt.question_text,
            scope=self._setup.scope, answer_text=answer_text)
