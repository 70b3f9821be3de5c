"""Why a draft is looked up and where its query comes from, in a few words."""

from __future__ import annotations

from flarecore.events import DraftFinished
from flarecore.wording import printable

__all__ = ["source_note", "why_looked_up"]

# Of a masked query the draft beside it says enough.
_SOURCES = {
    "mask": "",
    "question": "  (nothing left of the draft: the question)",
    "sentence": "  (the whole draft)",
    "questions": "  (written by the model)",
    "keywords": "  (written by the model)",
    "callable": "  (made by the application)",
    "previous_sentence": "  (the sentence before)",
    "previous_window": "  (the tokens before)",
    "sub_question": "  (asked by the model)",
    "call": "  (called for by the model)",
}


def source_note(source: str) -> str:
    """What is said beside a query."""
    return _SOURCES.get(source, f"  ({source})")


def why_looked_up(draft: DraftFinished, theta: float) -> str:
    """The rule, or the lowest confidence."""
    rule = draft.rule
    if rule is not None:
        what = rule.entry if rule.kind == "callable" else rule.text
        return printable(f"{rule.name.replace('_', ' ')}: {what}")
    lowest = min(draft.probs, default=1.0)
    return f"lowest confidence {lowest:.2f} < {theta:.2f}" if lowest < theta \
        else "asks for evidence"
