"""Searches of one answer: when to ask, what, and what of it is used."""

from __future__ import annotations

from collections.abc import Sequence

from flarecore.codec import json_value
from flarecore.events import RetrievalFinished, RetrievalStarted
from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.effects import RunSearch, Steps
from flarecore.loop.prompt import Placed
from flarecore.loop.query import Query, QueryMaker
from flarecore.loop.recorder import Recorder, SentenceStep, retrieval_trace
from flarecore.loop.timing import Deadline
from flarecore.retrieval.passage import check_results

__all__ = ["Searches"]


class Searches:
    """Asks the retriever for one answer.

    Parameters
    ----------
    setup : AnswerSetup
        Options and request.
    record : Recorder
        Is told of every search.
    deadline : Deadline
        Is looked at before every search.
    """

    def __init__(self, setup: AnswerSetup, record: Recorder, deadline: Deadline) -> None:
        self._setup = setup
        self._config = setup.config
        self._record = record
        self._deadline = deadline
        self._queries = QueryMaker(
            setup.engine.tokenizer, setup.config, setup.prompt.question_text, setup.scope)
        self._num_searches = 0
        self._last_index: int | None = None
        self._initial: dict[str, bool] = {}

    def searched_before(self, sentence_index: int) -> dict[str, bool]:
        """Queries that were asked at a sentence's gap before its draft, and their success."""
        return dict(self._initial) if sentence_index == 0 else {}

    def initial(self) -> Steps[Placed | None]:
        """Step 0: the question is the query."""
        query = self._queries.from_question()
        if query is None:
            return None
        placed = yield from self._search(query, None, None, 0)
        self._initial[query.text] = placed is not None
        return placed

    def budget_used_up(self, step: SentenceStep) -> str | None:
        """The option that forbids another search for this sentence."""
        config = self._config
        if config.max_retrievals is not None and self._num_searches >= config.max_retrievals:
            return "max_retrievals"
        if len(step.retrievals) >= config.max_retrievals_per_sentence:
            return "max_retrievals_per_sentence"
        last = self._last_index
        if last is not None and last != step.index \
                and step.index - last <= config.cooldown_sentences:
            return "cooldown_sentences"
        return None

    def evidence_for(
        self, step: SentenceStep, previous: Placed | None, answer: Sequence[int]
    ) -> Steps[Placed | None]:
        """Passages for a sentence; without any, `step` is told why."""
        query = self._queries.from_candidate(step.current.candidate)
        if query is None:
            step.unsupported_because = "empty_query"
            return None
        if query.text in step.searched:
            # The same query for the same gap gives what the sentence was written with, or nothing.
            step.unsupported_because = \
                "repeated_query" if step.searched[query.text] else "no_evidence"
            return None
        placed = yield from self._search(query, step, previous, len(answer))
        step.searched[query.text] = placed is not None
        self._last_index = step.index
        if placed is None:
            step.unsupported_because = "no_evidence"
        return placed

    def _search(
        self, query: Query, step: SentenceStep | None, previous: Placed | None, boundary: int
    ) -> Steps[Placed | None]:
        """Asks the retriever; `step` is None for the initial search."""
        config, clock, filter = self._config, self._record.clock, self._setup.filter
        is_initial, index = step is None, 0 if step is None else step.index
        filter_shown = json_value(filter)
        yield from self._record.emit(RetrievalStarted(
            index, is_initial, query.text, query.source, query.kept, filter_shown, config.k))
        timeout_ms = self._deadline.remaining_ms()
        self._num_searches += 1
        self._record.count(num_retrievals=1)
        clock.enter("retrieve")
        try:
            found = yield RunSearch((query.text,), config.k, filter, timeout_ms)
        finally:
            time_ms = clock.enter("other")
        (passages,) = check_results(found, 1, config.k)
        evidence = self._setup.maker.make(
            passages, previous.evidence if previous else None, self._num_searches)
        trace = retrieval_trace(query, filter_shown, passages, evidence, time_ms)
        if step is None:
            self._record.initial_retrieval = trace
        else:
            step.retrievals.append(trace)
        yield from self._record.emit(RetrievalFinished(
            index, is_initial, query.text, trace.passages, time_ms))
        return None if evidence is None else Placed(evidence, boundary)
