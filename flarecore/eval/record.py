"""One answer of an evaluation: a JSON line, its scores and what they say about its trace."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flarecore.errors import FlarecoreError
from flarecore.eval.dataset import Question
from flarecore.eval.extract import extract_answer
from flarecore.eval.metrics import contains_answer, exact_match, f1_score, words_of
from flarecore.result import FlareResult
from flarecore.trace import PassageTrace, Trace

__all__ = ["Record", "failed_record", "make_record", "used_passages"]

_NGRAM = 3


@dataclass(frozen=True)
class Record:
    """A question as one method answered it.

    Parameters
    ----------
    event : str
        Always ``"answer"``; lets ``flarecore trace`` pass over a record without a trace.
    id, question : str
        Of the question.
    answers : tuple of str
        The known ones.
    settings_hash : str
        Of the settings of the run.
    language : {"en", "zh"}
        How it was scored.
    text, answer : str
        What was written, and the short answer in it.
    has_pattern : bool
        Whether the text says which part is the answer.
    em, f1, contained : float
        Scores in [0, 1] of the short answer (`contained`: of the text).
    evidence_use : float or None
        Share of the text's word trigrams (before the answer pattern) that a used passage holds;
        None where nothing was retrieved or the text is too short.
    gold_recall : float or None
        Share of the gold passages that were put in view; None without a search or known gold.
    evidence_has_answer : bool or None
        Whether a used passage holds a known answer; None without a search.
    wall_ms : float
        From the call to the answer.
    num_parallel : int
        Answers that were written at the same time; above 1, times are not those of one answer.
    error : str or None
        What ended the answer early; it counts as wrong.
    trace : Mapping or None
        ``Trace.to_dict()``; None where an error left none.
    """

    event: str
    id: str
    question: str
    answers: tuple[str, ...]
    settings_hash: str
    language: str
    text: str
    answer: str
    has_pattern: bool
    em: float
    f1: float
    contained: float
    evidence_use: float | None
    gold_recall: float | None
    evidence_has_answer: bool | None
    wall_ms: float
    num_parallel: int
    error: str | None
    trace: Mapping[str, Any] | None

    @functools.cached_property
    def parsed_trace(self) -> Trace | None:
        """The trace as an object.

        Raises
        ------
        ConfigError
            It is damaged or of another version.
        """
        return None if self.trace is None else Trace.from_dict(self.trace)


def make_record(
    question: Question, result: FlareResult, *, language: str, settings_hash: str, wall_ms: float,
    num_parallel: int, error: str | None = None,
) -> Record:
    """Scores an answer; with an `error`, what was written before it scores nothing."""
    text, trace, golds = result.text, result.trace, question.answers
    found = extract_answer(text, language)
    counts = error is None
    passages = used_passages(trace)
    searched = bool(trace.retrievals)
    evidence = [p.text for p in passages]
    return Record(
        event="answer", id=question.id, question=question.text, answers=golds,
        settings_hash=settings_hash, language=language, text=text, answer=found.answer,
        has_pattern=found.has_pattern,
        em=counts * exact_match(found.answer, golds, language),
        f1=counts * f1_score(found.answer, golds, language),
        contained=counts * contains_answer(text, golds, language),
        evidence_use=_evidence_use(found.lead, evidence, language) if searched else None,
        gold_recall=_gold_recall(question, passages) if searched else None,
        evidence_has_answer=any(contains_answer(e, golds, language) for e in evidence)
        if searched else None,
        wall_ms=wall_ms, num_parallel=num_parallel, error=error, trace=trace.to_dict())


def failed_record(
    question: Question, error: FlarecoreError, *, language: str, settings_hash: str,
    wall_ms: float, num_parallel: int,
) -> Record:
    """The record of a question that an error ended."""
    message = f"{type(error).__name__}: {error}"
    if error.partial is not None:
        return make_record(
            question, error.partial, language=language, settings_hash=settings_hash,
            wall_ms=wall_ms, num_parallel=num_parallel, error=message)
    return Record(
        event="answer", id=question.id, question=question.text, answers=question.answers,
        settings_hash=settings_hash, language=language, text="", answer="", has_pattern=False,
        em=0.0, f1=0.0, contained=0.0, evidence_use=None, gold_recall=None,
        evidence_has_answer=None, wall_ms=wall_ms, num_parallel=num_parallel, error=message,
        trace=None)


def used_passages(trace: Trace) -> list[PassageTrace]:
    """The passages that were put in view, each once, in order."""
    found = {p.id: p for r in trace.retrievals for p in r.passages if p.num_tokens}
    return list(found.values())


def _gold_recall(question: Question, passages: list[PassageTrace]) -> float | None:
    wanted: tuple[str, ...]
    if question.gold_ids:
        wanted, seen = question.gold_ids, {p.id for p in passages}
    else:
        wanted = tuple(t.casefold().strip() for t in question.gold_titles)
        seen = {p.title.casefold().strip() for p in passages}
    return sum(name in seen for name in wanted) / len(wanted) if wanted else None


def _evidence_use(text: str, evidence: list[str], language: str) -> float | None:
    grams = _ngrams(words_of(text, language))
    if not grams:
        return None
    known = {gram for e in evidence for gram in _ngrams(words_of(e, language))}
    return sum(gram in known for gram in grams) / len(grams)


def _ngrams(words: list[str]) -> list[tuple[str, ...]]:
    return [tuple(words[i:i + _NGRAM]) for i in range(len(words) - _NGRAM + 1)]
