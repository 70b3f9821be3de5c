"""Text work for what people look at: safe text for terminals, used words, excerpts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "content_words",
    "excerpt",
    "filter_words",
    "placement_words",
    "printable",
    "system_reason",
    "used_spans",
]

# Everything that could move the cursor, change colours or the window's title, and what UTF-8 cannot
# hold.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# A number with its separators, a word, or one character of a script without spaces.
_WORD = re.compile(
    r"\d[\d.,:]*\d|\d|[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]"
    r"|(?:(?![\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])[^\W\d_])+(?:['’-][^\W\d_]+)*")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
_STOP_TEXT = """
a about after all also an and are as at be been before but by can could did do does for from had has
have he her him his how i if in into is it its itself may more most must no not of on one only or
other our out over own she should so some such than that the their them then there these they this
those to under up was we were what when where which while who why will with would you your
"""
_STOP_WORDS = frozenset(_STOP_TEXT.split())


def printable(text: str) -> str:
    """The text without control characters, which a model or a passage could misuse."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def placement_words(placement: str, is_approximate: bool) -> str:
    """A placement as people are shown it: an approximation is always called one."""
    return f"{placement} (approximation)" if is_approximate else placement


_SIGNS = {"eq": "=", "ne": "≠", "gt": ">", "gte": "≥", "lt": "<", "lte": "≤"}


def filter_words(filter: Mapping[str, Any]) -> str:
    """A metadata filter on one line."""
    parts = []
    for name, condition in filter.items():
        tests = condition if isinstance(condition, Mapping) else {
            "in" if isinstance(condition, (list, tuple)) else "eq": condition}
        parts += [f"{name} {_SIGNS.get(sign, sign.replace('_', ' '))} {value}"
                  for sign, value in tests.items()]
    return printable(", ".join(parts))


def _words(text: str) -> list[tuple[int, int, str]]:
    """(begin, end, key) of every word. Characters without spaces count in pairs."""
    found = [(m.start(), m.end(), m.group().casefold()) for m in _WORD.finditer(text)]
    words = []
    for at, (begin, end, key) in enumerate(found):
        if not _UNSPACED.match(key):
            words.append((begin, end, key))
        elif at + 1 < len(found) and found[at + 1][0] == end and _UNSPACED.match(found[at + 1][2]):
            words.append((begin, found[at + 1][1], key + found[at + 1][2]))
    return words


def system_reason(error: Exception) -> str:
    """What went wrong with a file, without its path, which the message around it names."""
    return getattr(error, "strerror", None) or str(error)


def content_words(texts: Iterable[str]) -> frozenset[str]:
    """Words that carry meaning; characters of scripts without spaces in pairs."""
    return frozenset(
        key for text in texts for _, _, key in _words(text) if key not in _STOP_WORDS)


def used_spans(text: str, words: frozenset[str]) -> list[tuple[int, int]]:
    """Half-open spans of `text` that hold one of the words; those that touch are joined."""
    spans: list[tuple[int, int]] = []
    for begin, end, key in _words(text):
        if key not in words:
            continue
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    return spans


def excerpt(text: str, words: frozenset[str], max_chars: int) -> tuple[int, int]:
    """Half-open range of at most `max_chars` characters with the most used words in it.

    Begins and ends at word boundaries; the whole text if it is short enough.
    """
    if len(text) <= max_chars:
        return 0, len(text)
    spans = used_spans(text, words)
    if not spans:
        return 0, _word_end(text, max_chars)
    best, best_count, last = spans[0], 0, 0
    for first, (begin, _) in enumerate(spans):
        while last < len(spans) and spans[last][1] - begin <= max_chars:
            last += 1  # spans[first:last] fit together; their ends ascend, so none is tried twice
        if last - first > best_count:
            best, best_count = (begin, spans[last - 1][1]), last - first
    spare = max(max_chars - (best[1] - best[0]), 0)
    begin = min(_word_begin(text, max(best[0] - spare // 2, 0)), best[0])
    return begin, _word_end(text, begin + max_chars)


def _word_begin(text: str, at: int) -> int:
    """The next position from `at` on where a word begins."""
    while 0 < at < len(text) and not (text[at - 1].isspace() or _UNSPACED.match(text[at])):
        at += 1
    return at


def _word_end(text: str, at: int) -> int:
    """The last position up to `at` where a word ends."""
    if at >= len(text):
        return len(text)
    end = at
    while end > 0 and not (text[end].isspace() or _UNSPACED.match(text[end])):
        end -= 1
    return end or at
