"""Queries that the model itself writes, on forks of the cache (paper section 3.2.2).

The context is that of the sentence and the sentence, all of it cached, so that only the request is
prefilled. All questions of a sentence are decoded at once; the engine merges their steps.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.attaching import Attached
from flarecore.loop.effects import RunOperations, Steps
from flarecore.loop.interfaces import DecodedLike
from flarecore.loop.lineage import Lineage, Lineages
from flarecore.loop.pieces import encodable
from flarecore.loop.recorder import Pass, Recorder, SentenceStep, operation_counts
from flarecore.loop.spans import LowSpan
from flarecore.loop.timing import Deadline
from flarecore.sampling import SamplingParams
from flarecore.text import is_punctuation_or_space
from flarecore.trace_parts import AskTrace

__all__ = ["Asker"]

_QUOTES = " \t\r\n\"'`*_“”„‘’«»「」『』"
_LABEL = re.compile(
    r"^(?:(?:question|q|(?:search )?query|search(?: terms)?|keywords?|问题|問題|关键词)\s*[:：]\s*"
    r"|\d{1,2}[.)]\s+|[-•]\s+)", re.IGNORECASE)


class Asker:
    """Asks the model for queries.

    Parameters
    ----------
    setup : AnswerSetup
        Engine, options and request.
    record : Recorder
        Is told what it cost.
    deadline : Deadline
        Is looked at before, and handed to the engine.
    lineages : Lineages
        Where the cached context of the sentence is.
    """

    def __init__(
        self, setup: AnswerSetup, record: Recorder, deadline: Deadline, lineages: Lineages
    ) -> None:
        self._setup = setup
        self._record = record
        self._deadline = deadline
        self._lineages = lineages

    def questions(self, step: SentenceStep, spans: Sequence[LowSpan]) -> Steps[list[str]]:
        """A question for each span; those that do not end in a question mark are left out."""
        piece = self._setup.template.question_query
        decoded = yield from self._ask(step, [self._request(step.current, piece, span.text)
                                              for span in spans])
        return self._used(step, "questions", spans, decoded)

    def keywords(self, step: SentenceStep) -> Steps[list[str]]:
        """A keyword query; none if the model wrote no word."""
        current = step.current
        whole = LowSpan(0, len(current.candidate.token_ids), current.candidate.text.strip())
        decoded = yield from self._ask(
            step, [self._request(current, self._setup.template.keyword_query, whole.text)])
        return self._used(step, "keywords", [whole], decoded)

    def _request(self, current: Pass, piece: str, span: str) -> list[int]:
        """The context of a query: the sentence in its context, and what asks for the query."""
        setup = self._setup
        values = {"span": span, "sentence": current.candidate.text.strip(),
                  "question": setup.prompt.question_text or ""}
        filled = setup.pieces.filled(
            piece, **{name: encodable(value) for name, value in values.items()})
        turn = setup.prompt.turn
        if turn is not None:
            filled = turn.before + filled + turn.after
        return [*current.view.token_ids, *current.candidate.token_ids, *filled]

    def _ask(
        self, step: SentenceStep, contexts: list[list[int]]
    ) -> Steps[list[tuple[DecodedLike, int] | None]]:
        """What the model writes after each context, and its length; None where there is no room."""
        max_tokens = self._setup.config.max_query_tokens
        limit = self._setup.context_length
        fitting = [ids for ids in contexts if len(ids) + max_tokens <= limit]
        results = iter((yield from self._lineages.room.run(
            lambda: self._decode(step, fitting, max_tokens), self._deadline)))
        return [(next(results), len(ids)) if len(ids) + max_tokens <= limit else None
                for ids in contexts]

    def _decode(
        self, step: SentenceStep, contexts: list[list[int]], max_tokens: int
    ) -> Steps[list[DecodedLike]]:
        """What the model writes after each context: all at once, in turn if that had no room."""
        current = step.current
        shared = [*current.view.token_ids, *current.candidate.token_ids]
        results: list[DecodedLike] = []
        self._record.clock.enter("query")
        try:
            had_no_room = yield from self._lineages.restore(
                shared, current.attached, self._deadline.remaining_ms())
            at_once = 1 if had_no_room else max(1, len(contexts))
            for begin in range(0, len(contexts), at_once):
                results += yield from self._decode_at_once(
                    contexts[begin:begin + at_once], current.attached, max_tokens)
        finally:
            step.query_ms += self._record.clock.enter("other")
        return results

    def _decode_at_once(
        self, contexts: list[list[int]], attached: Attached | None, max_tokens: int
    ) -> Steps[list[DecodedLike]]:
        options: dict[str, Any] = {
            "sampling": SamplingParams(), "until": "sentence", "pass_index": 0,
            "deadline_ms": self._deadline.remaining_ms()}
        lines: list[Lineage] = []
        try:
            for ids in contexts:
                lines.append(self._lineages.branch(ids, attached))
                lines[-1].align(ids, attached)
            results: list[DecodedLike] = yield RunOperations(tuple(
                functools.partial(line.decode, max_tokens=max_tokens, **options)
                for line in lines))
            return results
        finally:
            for line in lines:
                line.close()

    def _used(
        self, step: SentenceStep, purpose: str, spans: Sequence[LowSpan],
        answers: Sequence[tuple[DecodedLike, int] | None],
    ) -> list[str]:
        """The queries among what the model wrote; everything is recorded."""
        used: list[str] = []
        for span, answer in zip(spans, answers, strict=True):
            if answer is None:
                continue
            decoded, num_context = answer
            written = decoded.text_bytes.decode("utf-8", "replace")
            query = _cleaned(written)
            if purpose == "keywords":
                query = _without_repeats(query)
            is_query = not is_punctuation_or_space(query.encode()) and (
                purpose != "questions" or query.endswith(("?", "？")))
            if is_query:
                used.append(query)
            counts = operation_counts(decoded.stats, num_context)
            counts = {name: counts[name] for name in (
                "num_context", "num_reused", "num_prefilled", "num_decoded")}
            step.asked.append(AskTrace(
                purpose=purpose, pass_index=step.current.trace.pass_index, begin=span.begin,
                end=span.end, span=span.text, text=written, is_used=is_query, **counts))
            self._record.count(
                num_asked=1, **{n: v for n, v in counts.items() if n != "num_context"})
        return used


def _cleaned(text: str) -> str:
    """What was written on one line, without a label before it and quotes around it."""
    return _LABEL.sub("", " ".join(text.split()).strip(_QUOTES)).strip(_QUOTES)


def _without_repeats(keywords: str) -> str:
    """A list of keywords with each only once: small models run in circles."""
    items = (item.strip(_QUOTES) for item in re.split("[,;，；、]", keywords))
    return " ".join(dict.fromkeys(item for item in items if item))
