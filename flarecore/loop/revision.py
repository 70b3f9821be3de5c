"""A sentence that asks for evidence: retrieve, write it again, or accept it as it is."""

from __future__ import annotations

from collections.abc import Sequence

from flarecore.callables import call_option
from flarecore.errors import ConfigError
from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.decoding import DecodePass
from flarecore.loop.effects import Steps
from flarecore.loop.prompt import Placed
from flarecore.loop.recorder import Pass, Recorder, SentenceStep
from flarecore.loop.searching import Searches

__all__ = ["Revision"]


class Revision:
    """Revises the sentences of one answer.

    Parameters
    ----------
    setup : AnswerSetup
        Options and request.
    record : Recorder
        Is told what was done.
    decode : DecodePass
        Writes.
    searches : Searches
        Finds evidence.
    """

    def __init__(
        self, setup: AnswerSetup, record: Recorder, decode: DecodePass, searches: Searches
    ) -> None:
        self._config = setup.config
        self._record = record
        self._decode = decode
        self._searches = searches

    def run(
        self, step: SentenceStep, last: Placed | None, answer: Sequence[int], answer_text: str,
        max_tokens: int,
    ) -> Steps[tuple[str, Placed | None]]:
        """Retrieves and regenerates until the sentence is good or a budget is used up.

        Parameters
        ----------
        step : SentenceStep
            ``step.current`` is the sentence afterwards.
        last : Placed or None
            Evidence of the retrieval before.
        answer : sequence of int
            Ids accepted so far.
        answer_text : str
            Their text.
        max_tokens : int
            Most tokens of a regeneration.

        Returns
        -------
        verdict : {"accept", "omit", "stop"}
            What to do with the sentence.
        last : Placed or None
            Evidence of the last retrieval now.
        """
        while True:
            step.unsupported_because = self._searches.budget_used_up(
                step.index, len(step.retrievals))
            if step.unsupported_because is not None:
                return "accept", last
            found = yield from self._searches.evidence_for(step, last, answer)
            if found is None:
                return self._judge_unsupported(step), last
            view = self._decode.fit(found.placed, answer, max_tokens)
            if view.placed is None:
                # No room for any passage: the same as none found.
                step.unsupported_because = "no_evidence"
                return self._judge_unsupported(step), last
            last = view.placed
            # Greedy: the same context gives the same sentence again.
            if found.is_unchanged and self._config.sampling.temperature == 0.0:
                self._record.count(num_unchanged=1)
                return "accept", last
            step.current = yield from self._decode.regenerate(view, step, answer_text)
            step.regenerations.append(step.current)
            self._record.count(num_regenerations=1)
            if not step.current.trace.triggered:
                return "accept", last

    def no_evidence(self, current: Pass | None) -> str:
        """The no-evidence policy's verdict; None stands for the initial retrieval."""
        policy = self._config.no_evidence
        if callable(policy):
            policy = call_option(
                "no_evidence", policy, None if current is None else current.candidate)
        verdicts = {"accept_draft": "accept", "omit": "omit", "stop": "stop"}
        if not isinstance(policy, str) or policy not in verdicts:
            raise ConfigError(
                "no_evidence: the callable must return 'accept_draft', 'omit' or 'stop', got "
                f"{policy!r}")
        return verdicts[policy]

    def _judge_unsupported(self, step: SentenceStep) -> str:
        """What to do with a sentence that asked for evidence and has none."""
        reason = step.unsupported_because
        nothing_to_ask = reason == "empty_query" and self._config.empty_query == "question"
        if reason == "no_evidence" or nothing_to_ask:
            return self.no_evidence(step.current)
        return "accept"
