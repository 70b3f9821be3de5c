"""The FLARE-direct loop of one answer (section 3.2 of Jiang et al. 2023).

One generator per answer, sentence by sentence; :mod:`flarecore.loop.drivers` runs it. Answers are
token ids throughout: accepted ids are never encoded again.
"""

from __future__ import annotations

from flarecore.callables import call_option
from flarecore.errors import ConfigError, DeadlineExceeded, FlarecoreError
from flarecore.events import (
    DraftFinished,
    DraftStarted,
    Finished,
    SentenceAccepted,
)
from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.answer_text import AnswerText
from flarecore.loop.asking import Asker
from flarecore.loop.decoding import DecodePass
from flarecore.loop.effects import Steps
from flarecore.loop.lineage import Lineages
from flarecore.loop.prompt import Placed, View
from flarecore.loop.query import QueryMaker
from flarecore.loop.recorder import Pass, Recorder, SentenceStep
from flarecore.loop.revision import Revision
from flarecore.loop.searching import Searches
from flarecore.loop.timing import Deadline
from flarecore.result import FlareResult

__all__ = ["AnswerLoop"]

# Reasons of a sentence's end that end the answer as well.
_FINAL = frozenset({"eos", "stop_string", "context_length"})


class AnswerLoop:
    """One answer. Run :meth:`run` once.

    Parameters
    ----------
    setup : AnswerSetup
        Engine, options and request.
    """

    def __init__(self, setup: AnswerSetup) -> None:
        self._setup = setup
        self._config = setup.config
        self._text = AnswerText((*setup.config.stop, *setup.prompt.stop))
        self._record = Recorder(
            model=setup.engine.model.name, config=setup.config.to_dict(),
            question=setup.prompt.question_text, scope=setup.scope,
            prompt_token_ids=setup.prompt.token_ids, placement=setup.config.placement,
            clock=setup.clock, method=setup.method, method_options=setup.method_options)
        deadline = Deadline(setup.config.deadline_ms, setup.clock, setup.started)
        self._lineages = Lineages(setup.engine, setup.reserved)
        self._decode = DecodePass(setup, self._record, deadline, self._lineages)
        self._queries = QueryMaker(
            setup.engine.tokenizer, setup.config, setup.prompt.question_text, setup.scope,
            Asker(setup, self._record, deadline, self._lineages))
        self._searches = Searches(setup, self._record, deadline, self._queries)
        self._revision = Revision(setup, self._record, self._decode, self._searches)
        self._answer: list[int] = []
        self._num_new = 0
        self._index = 0
        self._placed: Placed | None = None
        self._step: SentenceStep | None = None
        self._ended: FlareResult | None = None

    def run(self) -> Steps[FlareResult]:
        """The loop: yields effects, returns the result.

        Raises
        ------
        FlarecoreError
            What ended the answer early; its attribute ``partial`` holds the
            :class:`FlareResult` up to the last accepted sentence.
        """
        self._record.clock.resume()
        try:
            try:
                reason = yield from self._write()
            except DeadlineExceeded:
                reason = yield from self._end_at_deadline()
            return (yield from self._finish(reason))
        except FlarecoreError as error:
            error.partial = self._ended = self._record.result("error", self._step)
            raise
        finally:
            self._lineages.close()

    def partial(self) -> FlareResult:
        """The answer so far, as of one that is cancelled now; how it ended, if it has."""
        return self._ended or self._record.result("cancelled", self._step)

    def _write(self) -> Steps[str]:
        """Writes sentences until there is a reason to stop."""
        gate = self._record.gate = self._gate()
        wanted = self._config.initial_retrieval if gate is None else gate == "always"
        if wanted and self._config.max_retrievals != 0:
            reason = yield from self._retrieve_initially()
            if reason is not None:
                return reason
        while True:
            reason = yield from self._write_sentence()
            if reason is not None:
                return reason

    def _gate(self) -> str | None:
        """What the gate says about the question."""
        gate, question = self._config.gate, self._setup.prompt.question_text
        if callable(gate):
            gate = call_option("gate", gate, question)
        if gate not in ("never", "always", None):
            raise ConfigError(
                f"gate: the callable must return 'never', 'always' or None, got {gate!r}")
        if gate == "always" and question is None:
            raise ConfigError(
                "gate 'always' searches with the question, which token ids do not tell: pass "
                "question=...")
        return gate

    def _retrieve_initially(self) -> Steps[str | None]:
        """Step 0: the question's passages are in view of the first draft."""
        self._placed = yield from self._searches.initial()
        if self._placed is None and self._revision.no_evidence(None) == "stop":
            return "no_evidence"
        return None

    def _write_sentence(self) -> Steps[str | None]:
        """Drafts a sentence, revises it if it is not confident, and ends it."""
        config, cap = self._config, self._max_tokens()
        # The first draft sees the question's passages, as in the paper's figure 1; later ones see
        # passages only in the way of the authors' code.
        sees_last = config.draft_context == "last_evidence" or self._index == 0
        view = self._decode.fit(self._placed if sees_last else None, self._answer, cap)
        if view.max_tokens < 1:
            return "context_length"
        if sees_last:
            self._placed = view.placed
        is_open = self._record.gate != "never"
        # Where nothing may be searched any more, a draft that stopped would only be written on.
        may_stop = is_open and self._searches.budget_used_up(self._index, 0) is None
        step = yield from self._begin(view, self._decode.draft(
            view, self._index, self._text.text, is_tested=is_open, may_stop=may_stop))
        verdict = "accept"
        if step.draft.trace.triggered:
            verdict, self._placed = yield from self._revision.run(
                step, self._placed, self._answer, self._text.text, cap)
        if step.current.is_cut and verdict != "stop":
            step.current = step.completion = yield from self._decode.complete(
                step, self._text.text)
        return (yield from self._end_sentence(step, verdict))

    def _max_tokens(self) -> int:
        """Most tokens of the next sentence."""
        return min(self._config.max_draft_tokens, self._config.max_new_tokens - self._num_new)

    def _begin(self, view: View, drafting: Steps[Pass]) -> Steps[SentenceStep]:
        """Writes a draft, and tells of it."""
        passage_ids = view.placed.evidence.passage_ids if view.placed else ()
        yield from self._record.emit(DraftStarted(self._index, len(self._answer), passage_ids))
        draft = yield from drafting
        trace = draft.trace
        self._record.count(num_drafts=1, num_triggers=int(trace.triggered or False))
        step = self._step = SentenceStep(
            self._index, draft, draft, self._searches.searched_before(self._index))
        yield from self._record.emit(DraftFinished(
            self._index, trace.text, trace.token_ids, trace.tokens, trace.probs, trace.low,
            bool(trace.triggered), trace.rule, trace.stop_reason, trace.time_ms))
        return step

    def _end_sentence(self, step: SentenceStep, verdict: str) -> Steps[str | None]:
        """Accepts the sentence or leaves it out; returns the reason to end the answer, if any."""
        current = step.current
        reason = self._stop_reason(current)
        if verdict == "stop" or current.is_empty:
            final = "no_evidence" if verdict == "stop" else self._reason_of_nothing(reason)
            self._abandon(final)
            return final
        token_ids, data = self._joined(step)
        text, stop_at = ("", None) if verdict == "omit" else self._text.feed(data)
        if stop_at is not None:
            reason, token_ids = "stop_string", self._before(token_ids, stop_at)
        self._answer += token_ids
        self._num_new += len(current.candidate.token_ids)
        outcome = "regenerated" if step.is_regenerated else "draft"
        if verdict == "omit":
            outcome = "omitted"
        elif not token_ids and not text:
            outcome = "nothing"
        self._record.sentences.append(step.trace(outcome, reason, token_ids, text))
        self._step = None
        self._index += 1
        if outcome == "omitted":
            self._record.count(num_omitted=1)
        elif outcome != "nothing":
            yield from self._accept(SentenceAccepted(
                step.index, text, token_ids, outcome, step.unsupported_because,
                current.trace.passage_ids))
        return self._end_of_answer(reason)

    def _accept(self, event: SentenceAccepted) -> Steps[None]:
        self._record.accepted.append(event)
        self._record.count(num_sentences=1, num_tokens=len(event.token_ids))
        yield from self._record.emit(event)

    def _stop_reason(self, current: Pass) -> str:
        """Why the sentence ended, with the option's name for a limit."""
        reason = current.candidate.stop_reason
        if reason != "max_tokens":
            return reason
        num_new = self._num_new + len(current.candidate.token_ids)
        return "max_new_tokens" if num_new >= self._config.max_new_tokens else "max_draft_tokens"

    def _reason_of_nothing(self, reason: str) -> str:
        """Why the answer ends with an empty sentence that ended for `reason`."""
        if reason in _FINAL:
            return reason
        # The last tokens of the budget may not be enough for one character.
        left = self._config.max_new_tokens - self._num_new
        cut = reason in ("max_draft_tokens", "max_new_tokens")
        return "max_new_tokens" if cut and left < self._config.max_draft_tokens else "no_progress"

    def _end_of_answer(self, reason: str) -> str | None:
        """The reason to end the answer after a sentence that ended for `reason`."""
        limit = self._config.max_sentences
        if reason in _FINAL:
            return reason
        if self._num_new >= self._config.max_new_tokens:
            return "max_new_tokens"
        if limit is not None and self._num_sentences() >= limit:
            return "max_sentences"
        return None

    def _num_sentences(self) -> int:
        """Sentences that count for ``max_sentences``."""
        return len(self._record.accepted)

    def _joined(self, step: SentenceStep) -> tuple[tuple[int, ...], bytes]:
        """The sentence's ids and bytes as they continue the answer."""
        current = step.current
        token_ids, data = current.candidate.token_ids, current.text_bytes
        after_evidence = step.is_regenerated and self._config.placement == "boundary"
        if not after_evidence or not self._answer:
            return token_ids, data
        return self._setup.joint.attach(step.draft.text_bytes, token_ids, data)

    def _before(self, token_ids: tuple[int, ...], num_bytes: int) -> tuple[int, ...]:
        """The leading tokens that lie within so many bytes."""
        for position, token_id in enumerate(token_ids):
            num_bytes -= len(self._setup.engine.tokenizer.token_bytes(token_id))
            if num_bytes < 0:
                return token_ids[:position]
        return token_ids

    def _end_at_deadline(self) -> Steps[str]:
        """Drops the sentence at work, or accepts it, as ``deadline_policy`` says."""
        step = self._step
        keeps = self._config.deadline_policy == "accept_draft"
        if step is None or not keeps or step.current.is_cut or step.current.is_empty:
            self._abandon("deadline")
        else:
            step.unsupported_because = "deadline"
            yield from self._end_sentence(step, "accept")
        return "deadline"

    def _abandon(self, reason: str) -> None:
        """Records the sentence at work as one that the answer ended without."""
        if self._step is not None:
            self._record.sentences.append(self._step.trace("nothing", reason))
            self._step = None

    def _finish(self, reason: str) -> Steps[FlareResult]:
        """Frees the cache, releases the last text, and tells that the answer is complete."""
        self._lineages.close()
        remainder = self._text.flush()
        if remainder:
            event = SentenceAccepted(self._index, remainder, (), "remainder", None, ())
            self._record.accepted.append(event)
            yield from self._record.emit(event)
        result = self._ended = self._record.result(reason)
        yield from self._record.emit(Finished(result.text, reason, result.stats))
        return result
