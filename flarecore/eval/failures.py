"""Why an answer was wrong, as far as its trace tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flarecore.eval.record import Record
from flarecore.eval.summary import MethodSummary
from flarecore.trace import SentenceTrace

__all__ = ["CLASSES", "classify", "count_failures", "examples", "needless"]

CLASSES = {
    "error": "ended by an error",
    "format": "format broken: the text does not say what its answer is",
    "memory": "from memory: the method never searches",
    "silent": "trigger silent: what was missing was not looked up",
    "missed": "retrieval missed: what was needed did not come into view",
    "ignored": "evidence ignored: what was needed was in view",
}
"""Class of a wrong answer and what it means, in the order in which they are tried."""


def classify(record: Record, method: MethodSummary) -> str | None:
    """The class of a wrong answer; None for a right one (exact match).

    What was needed is in view if all gold passages are, or, where the data set names none, if a
    passage holds a known answer.
    """
    if record.error is not None:
        return "error"
    if record.em:
        return None
    if not record.has_pattern:
        return "format"
    if method.never_searched:
        return "memory"
    complete = record.evidence_has_answer if record.gold_recall is None \
        else record.gold_recall == 1.0
    if complete:
        return "ignored"
    trace = record.parsed_trace
    fired = trace is not None and trace.stats.num_triggers > 0
    return "missed" if fired or method.never_triggered else "silent"


def count_failures(method: MethodSummary) -> dict[str, int]:
    """Wrong answers by class, every class of `CLASSES` named."""
    found = Counter(classify(record, method) for record in method.records)
    return {name: found.get(name, 0) for name in CLASSES}


def needless(method: MethodSummary) -> tuple[int, int]:
    """Looked-up sentences that came out as they had been drafted, and all looked-up sentences.

    Methods that search before they write have no draft to compare with, and so none of either.
    """
    looked_up = [s for r in method.records if r.parsed_trace is not None
                 for s in r.parsed_trace.sentences if s.outcome != "nothing" and (
                     s.regenerations or any(found.is_unchanged for found in s.retrievals))]
    return sum(map(_is_unchanged, looked_up)), len(looked_up)


def _is_unchanged(sentence: SentenceTrace) -> bool:
    if not sentence.regenerations:
        return True
    return sentence.regenerations[-1].text.strip() == sentence.draft.text.strip()


def examples(method: MethodSummary, per_class: int = 2) -> Sequence[tuple[str, Record]]:
    """The first wrong answers of each class, as (class, record), in the order of `CLASSES`."""
    found: dict[str, list[Record]] = {name: [] for name in CLASSES}
    for record in method.records:
        name = classify(record, method)
        if name is not None and len(found[name]) < per_class:
            found[name].append(record)
    return [(name, record) for name, records in found.items() for record in records]
