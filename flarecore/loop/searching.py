"""Searches of one answer: when to ask, what, and what of it is used."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flarecore.events import RetrievalFinished, RetrievalStarted
from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.effects import RunSearch, Steps
from flarecore.loop.evidence import Evidence
from flarecore.loop.prompt import Placed
from flarecore.loop.query import Query, QueryMaker
from flarecore.loop.recorder import Recorder, SentenceStep
from flarecore.loop.timing import Deadline
from flarecore.retrieval.passage import Passage, check_results
from flarecore.trace import PassageTrace, RetrievalTrace

__all__ = ["Found", "Searches", "interleaved"]


@dataclass(frozen=True)
class Found:
    """Evidence for a sentence.

    Parameters
    ----------
    placed : Placed
        The passages.
    is_unchanged : bool
        The sentence was written with exactly these.
    """

    placed: Placed
    is_unchanged: bool


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
    queries : QueryMaker
        Makes the queries.
    """

    def __init__(
        self, setup: AnswerSetup, record: Recorder, deadline: Deadline, queries: QueryMaker
    ) -> None:
        self._setup = setup
        self._config = setup.config
        self._record = record
        self._deadline = deadline
        self._queries = queries
        self._num_searches = 0
        self._last_index: int | None = None
        self._initial: dict[str, bool] = {}
        self._first: Evidence | None = None

    @property
    def num_searches(self) -> int:
        """Searches of the answer so far."""
        return self._num_searches

    def searched_before(self, sentence_index: int) -> dict[str, bool]:
        """Queries that were asked at a sentence's gap before its draft, and their success."""
        return dict(self._initial) if sentence_index == 0 else {}

    def initial(self) -> Steps[Placed | None]:
        """Step 0: the question is the query."""
        query = self._queries.from_question()
        if query is None:
            return None
        found = yield from self._search(
            query, index=0, boundary=0,
            keep=functools.partial(setattr, self._record, "initial_retrieval"), is_initial=True)
        self._initial = dict.fromkeys(query.texts, found is not None)
        if found is None:
            return None
        self._first = found.placed.evidence
        return found.placed

    def budget_used_up(self, sentence_index: int, num_retrievals: int) -> str | None:
        """The option that forbids another search for a sentence that has had so many."""
        config = self._config
        if config.max_retrievals is not None and self._num_searches >= config.max_retrievals:
            return "max_retrievals"
        if num_retrievals >= config.max_retrievals_per_sentence:
            return "max_retrievals_per_sentence"
        last = self._last_index
        if last is not None and last != sentence_index \
                and sentence_index - last <= config.cooldown_sentences:
            return "cooldown_sentences"
        return None

    def evidence_for(
        self, step: SentenceStep, previous: Placed | None, answer: Sequence[int]
    ) -> Steps[Found | None]:
        """Passages for a sentence; without any, `step` is told why."""
        query = yield from self._queries.from_step(step)
        if query is None:
            step.unsupported_because = "empty_query"
            return None
        texts = tuple(text for text in query.texts if text not in step.searched)
        if not texts:
            # The same query for the same gap gives what the sentence was written with, or nothing.
            had_any = any(step.searched[text] for text in query.texts)
            step.unsupported_because = "repeated_query" if had_any else "no_evidence"
            return None
        found = yield from self._search(
            dataclasses.replace(query, texts=texts), index=step.index, previous=previous,
            boundary=len(answer), keep=step.retrievals.append, seen=step.current.view.placed)
        step.searched.update(dict.fromkeys(texts, found is not None))
        self._last_index = step.index
        if found is None:
            step.unsupported_because = "no_evidence"
        return found

    def ahead(
        self, query: Query, index: int, previous: Placed | None, boundary: int,
        keep: Callable[[RetrievalTrace], None],
    ) -> Steps[Placed | None]:
        """Passages for a sentence that is not written yet.

        Parameters
        ----------
        query : Query
            What to search for.
        index : int
            The sentence.
        previous : Placed or None
            Evidence of the retrieval before.
        boundary : int
            Number of answer tokens before the sentence.
        keep : callable
            Is given the trace of the search.
        """
        self._last_index = index
        found = yield from self._search(
            query, index=index, previous=previous, boundary=boundary, keep=keep)
        return None if found is None else found.placed

    def _search(
        self, query: Query, *, index: int, boundary: int, keep: Callable[[RetrievalTrace], None],
        previous: Placed | None = None, seen: Placed | None = None, is_initial: bool = False,
    ) -> Steps[Found | None]:
        """Asks the retriever; `seen` is the evidence that the sentence was written with."""
        config, clock = self._config, self._record.clock
        filter, filter_shown = self._setup.filter, self._setup.filter_shown
        yield from self._record.emit(RetrievalStarted(
            index, is_initial, query.texts, query.source, query.kept, filter_shown, config.k))
        timeout_ms = self._deadline.remaining_ms()
        self._num_searches += 1
        self._record.count(num_retrievals=1)
        clock.enter("retrieve")
        try:
            results = yield RunSearch(query.texts, config.k, filter, timeout_ms)
        finally:
            time_ms = clock.enter("other")
        passages = interleaved(check_results(results, len(query.texts), config.k), config.k)
        evidence = self._setup.maker.make(
            passages, previous.evidence if previous else None, self._num_searches, self._first)
        # What is in view already stays where it is: nothing is gained by moving it.
        is_unchanged = evidence is not None and seen is not None \
            and evidence.token_ids == seen.evidence.token_ids
        trace = _trace(query, filter_shown, passages, evidence, is_unchanged, time_ms)
        keep(trace)
        yield from self._record.emit(RetrievalFinished(
            index, is_initial, query.texts, trace.passages, time_ms))
        if evidence is None:
            return None
        placed = seen if is_unchanged and seen is not None else Placed(evidence, boundary)
        return Found(placed, is_unchanged)


def interleaved(results: Sequence[Sequence[Passage]], k: int) -> list[Passage]:
    """The results of several queries by rank, without repeats (by id and by text), at most k.

    Those of one query stay as they are.
    """
    if len(results) == 1:
        return list(results[0])
    merged: list[Passage] = []
    seen: set[tuple[str, str]] = set()
    for rank in range(min(k, max(map(len, results), default=0))):
        for passage in (found[rank] for found in results if rank < len(found)):
            keys = {("id", passage.id), ("text", " ".join(passage.text.split()))}
            if not keys & seen:
                merged.append(passage)
                seen |= keys
    return merged[:k]


def _trace(
    query: Query, filter: Mapping[str, Any] | None, passages: list[Passage],
    evidence: Evidence | None, is_unchanged: bool, time_ms: float,
) -> RetrievalTrace:
    """The trace of a search and of what of it is used."""
    return RetrievalTrace(
        queries=query.texts, query_source=query.source, kept=query.kept, filter=filter,
        passages=tuple(
            PassageTrace(p.id, p.title, p.text, float(p.score),
                         0 if evidence is None else evidence.num_tokens_of(p))
            for p in passages),
        num_evidence_tokens=0 if evidence is None else evidence.num_tokens,
        is_unchanged=is_unchanged, time_ms=time_ms)
