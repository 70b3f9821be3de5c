"""What a sentence is unsure of, as text: the answers of explicit questions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flarecore.config import FlareConfig
from flarecore.loop.candidate import Candidate
from flarecore.rules import UNSPACED
from flarecore.text import is_punctuation_or_space, low_spans

__all__ = ["LowSpan", "low_texts"]

# A run of letters and digits with the joiners inside it (don't, U.S, 3.14, AT&T), in scripts that
# have spaces between words.
_CHAR = f"[^\\W{UNSPACED}]"
_WORD = re.compile(f"{_CHAR}+(?:(?:['’.&_@]|(?<=\\d)[,:](?=\\d)){_CHAR}+)*")


@dataclass(frozen=True)
class LowSpan:
    """A span of low tokens.

    Parameters
    ----------
    begin, end : int
        The sentence's tokens ``[begin, end)``, from the first low one to the last.
    text : str
        Their text with the words and characters they cut completed, without punctuation around it.
    """

    begin: int
    end: int
    text: str


def low_texts(candidate: Candidate, config: FlareConfig) -> list[LowSpan]:
    """The spans of tokens below β, in order, no text twice.

    Spans less than ``span_gap`` tokens apart are one; pure punctuation is none.
    """
    pieces = [b"" if special else data for data, special in zip(
        candidate.token_bytes, candidate.is_special, strict=True)]
    ends = [0]
    for data in pieces:
        ends.append(ends[-1] + len(data))
    whole = b"".join(pieces)
    sentence = whole.decode("utf-8", "ignore")
    found: list[LowSpan] = []
    seen: set[str] = set()
    for begin, end in low_spans(
            candidate.probs, config.beta, span_gap=config.span_gap,
            token_bytes=list(candidate.token_bytes), special=list(candidate.is_special),
            inclusive=config.beta_inclusive):
        first, last = _characters(whole, ends[begin], ends[end])
        text = _trimmed(_completed(sentence, first, last))
        if text and text.casefold() not in seen:
            seen.add(text.casefold())
            found.append(LowSpan(begin, end, text))
    return found


def _characters(data: bytes, begin: int, end: int) -> tuple[int, int]:
    """Bytes ``[begin, end)``, widened to whole characters, as a range of characters."""
    while begin > 0 and data[begin] & 0xC0 == 0x80:
        begin -= 1
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end += 1
    return (len(data[:begin].decode("utf-8", "ignore")), len(data[:end].decode("utf-8", "ignore")))


def _completed(text: str, begin: int, end: int) -> str:
    """The characters with the words they cut."""
    for word in _WORD.finditer(text):
        if word.start() < end and word.end() > begin:
            begin, end = min(begin, word.start()), max(end, word.end())
    return text[begin:end]


def _trimmed(text: str) -> str:
    while text and is_punctuation_or_space(text[0].encode()):
        text = text[1:]
    while text and is_punctuation_or_space(text[-1].encode()):
        text = text[:-1]
    return " ".join(text.split())
