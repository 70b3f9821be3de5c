"""The short answer in a written one.

Exemplars end in "So the answer is X." (in Chinese "所以答案是X。"); what follows that is the
answer: in the first sentence that says it, up to the sentence's end. A text without it gives its
last sentence, and says so: a model that lost the format is something else than one that was wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Extracted", "extract_answer"]

_PATTERNS = {
    # "So the answer is: X", "So, the final answer is X", "the answer to the question is X".
    "en": re.compile(
        r"(?:\b(?:so|thus|hence|therefore),?\s+)?\bthe (?:final |correct )?answer"
        r"(?: to (?:the|this) question)? (?:is|was)\b\s*:?\s*", re.IGNORECASE),
    # White space counts only behind a word or a comma: long runs of it would take quadratic time.
    "zh": re.compile(r"(?:(?:所以|因此)[，,]?\s*|[，,]\s*)?答案(?:就)?(?:是|为|為)\s*[：:]?\s*"),
}
_QUOTES = " \t\"'“”‘’「」『』《》*_`"
_ENDS = ".。．!！"


@dataclass(frozen=True)
class Extracted:
    """A short answer.

    Parameters
    ----------
    answer : str
        May be empty.
    has_pattern : bool
        Whether the text said that this is the answer; if not, it is the last sentence.
    lead : str
        The text before the pattern; all of it where there is none.
    """

    answer: str
    has_pattern: bool
    lead: str


def extract_answer(text: str, language: str) -> Extracted:
    """The short answer in a text.

    Parameters
    ----------
    text : str
        What a model wrote.
    language : {"en", "zh"}
        Whose pattern is looked for first; the other one counts as well, as small models mix.

    Returns
    -------
    Extracted
        Without the full stop and the quotation marks around it.
    """
    from flarecore.text import split_sentences

    order = ("zh", "en") if language == "zh" else ("en", "zh")
    for name in order:
        for match in _PATTERNS[name].finditer(text):
            rest = text[match.end():]
            # The boundary knows "J. R. R. Tolkien" and "U.S."; a line ends the sentence as well.
            first = split_sentences(rest)[0] if rest.strip() else ""
            answer = "" if first.startswith(tuple(_ENDS)) else _trimmed(first)
            if answer:
                return Extracted(answer, True, text[:match.start()])
    sentences = [s for s in split_sentences(text) if s.strip()] if text.strip() else []
    return Extracted(_trimmed(sentences[-1]) if sentences else "", False, text)


def _trimmed(text: str) -> str:
    text = text.strip()
    while True:
        shorter = text.strip(_QUOTES)
        # A final stop goes; those inside ("U.S.") and of a single initial stay with their letters,
        # and the metrics drop punctuation anyway.
        shorter = shorter[:-1] if shorter.endswith(tuple(_ENDS)) else shorter
        if shorter == text:
            return text
        text = shorter
