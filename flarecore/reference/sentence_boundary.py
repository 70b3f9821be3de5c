"""Sentence boundary, slow and obvious: the twin of ``csrc/text/sentence_boundary.h``.

The native boundary reads bytes one by one and keeps a bounded state; this one looks at the whole
text, forwards and backwards, as often as it likes. Only the word tables are shared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from flarecore import _C  # type: ignore[attr-defined]
from flarecore.reference.text_chars import (
    CONTINUATIONS,
    EAST_OPENERS,
    EAST_QUOTES,
    ELLIPSES,
    HARD_CLOSERS,
    LOOSE_CLOSERS,
    NEWLINES,
    PAIRED,
    PARTICLES,
    QUESTIONS,
    SOFT_CLOSERS,
    STRONG,
    TERMINATORS,
    TITLE_CLOSERS,
    decode_utf8,
    is_digit,
    is_east,
    is_emoji,
    is_lower,
    is_upper,
    is_word,
    kind,
)

__all__ = ["first_sentence_end", "split_sentences"]

MAX_WORD = 16  # longer words are in no table
MAX_SYMBOLS = 8
STARTER, LETTER_HEAD, NUMBER_HEAD, EXCLAIMED_NAME, NUMERAL = 1, 2, 4, 8, 16

CITATION = re.compile(r"\[[0-9,\-–^ ]{1,12}\]")


def _narrow(word: str) -> str:
    """Full-width letters and digits as ASCII; a word too long for the tables becomes empty."""
    word = "".join(chr(ord(c) - 0xFEE0) if "０" <= c <= "ｚ" else c for c in word)
    return word.replace("’", "'") if len(word) <= MAX_WORD else ""


@dataclass
class _End:
    """A terminator run: what is known about the end behind it."""

    reads: str  # "period", "ellipsis", "question", "strong", "wide"
    word_class: str
    after_space: bool
    after_number: bool
    after_narrow: bool
    after_closer: bool = False
    last_closer: str = ""

    @property
    def needs_space(self) -> bool:
        return self.reads not in ("strong", "wide")

    def class_without_word(self) -> str:
        return "ambiguous" if self.reads == "ellipsis" and self.after_space else "ordinary"


class _Sentence:
    """One text that starts with the sentence; finds that sentence's end."""

    def __init__(self, text: str, newline_is_boundary: bool, min_chars: int) -> None:
        self.text = text
        self.newline_is_boundary = newline_is_boundary
        self.min_chars = min_chars
        shape = "".join(
            "w" if is_word(c) and not is_east(c) else c if c in "&'’." else " " for c in text
        )
        self.words = [m.span() for m in re.finditer(r"w(?:[w&'’]|\.(?=w))*", shape)]

    def end(self) -> int:
        """Index behind the last character of the first sentence."""
        i = 0
        uncounted: set[int] = set()  # characters of list markers
        while i < len(self.text):
            char = self.text[i]
            if char in NEWLINES and not self.newline_is_boundary:
                i += 1
                continue
            if char not in TERMINATORS and char not in NEWLINES:
                i += 1
                continue
            word = self.word_before(i)
            word_class = self.classify(word, i)
            if word_class == "marker":
                uncounted.update(range(word[0] if word else i, i))
            num_chars = sum(is_word(self.text[k]) for k in range(i) if k not in uncounted)
            if word_class in ("marker", "never") or num_chars < self.min_chars:
                i += 1
                continue
            verdict, at = self.look_ahead(i, self.open(i, word, word_class))
            if verdict == "boundary":
                return at
            i = at
        return len(self.text)

    def word_before(self, i: int) -> tuple[int, int] | None:
        """The word that ends right before index i (for a period also inside one, as in U.S.)."""
        for begin, end in self.words:
            if begin < i and (end == i or (begin < i < end and self.text[i] == ".")):
                return begin, i
        return None

    def classify(self, word: tuple[int, int] | None, i: int) -> str:
        char = self.text[i]
        if word is None or char not in ".．!":
            return "ordinary"
        text = _narrow(self.text[word[0] : i])
        if char == "!":
            named = _C.word_roles().get(text, 0) & EXCLAIMED_NAME
            return "ambiguous" if named else "ordinary"
        if not text:
            return "ordinary"
        before, index = self.before_word(word[0])
        marker = r".|[ivx]{1,4}|[IVX]{1,4}|[A-Za-z]?[0-9]{0,3}(?:\.[0-9]{1,3})*"
        if index == 0 and len(text) <= 8 and re.fullmatch(marker, text):
            return "marker"
        if text in _C.abbreviations():
            return str(_C.abbreviations()[text])
        roles = _C.word_roles().get(before, 0)
        if len(text) == 1 and is_upper(text):
            hyphen = self.text[word[0] - 1 : word[0]] == "-"
            return "ordinary" if hyphen or roles & LETTER_HEAD else "ambiguous"
        parts = text.split(".")
        if len(parts) > 1 and all(len(p) == 1 and p not in "0123456789" for p in parts):
            return "ambiguous"
        contracted = re.fullmatch(r"[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ]{2,5}", text)
        if contracted and re.search("[a-z]", text.removesuffix("s")):
            return "ambiguous"
        if index == 1 and roles & NUMBER_HEAD and re.fullmatch("[0-9]+", text):
            return "never"
        return "ordinary"

    def before_word(self, begin: int) -> tuple[str, int]:
        """The word before (empty unless only spaces lie between) and the index in its line."""
        line = max((i + 1 for i in range(begin) if self.text[i] in NEWLINES), default=0)
        earlier = [w for w in self.words if w[0] < begin]
        east = sum(map(is_east, self.text[line:begin]))
        index = sum(w[0] >= line for w in earlier) + east
        if not earlier:
            return "", index
        gap = self.text[earlier[-1][1] : begin]
        only_space = all(kind(c) == "space" for c in gap)
        return (_narrow(self.text[slice(*earlier[-1])]) if only_space else ""), index

    def open(self, i: int, word: tuple[int, int] | None, word_class: str) -> _End:
        char = self.text[i]
        reads = (
            "strong" if char in STRONG
            else "question" if char in QUESTIONS
            else "ellipsis" if char in ELLIPSES
            else "wide" if char == "．"
            else "period"
        )  # fmt: skip
        digits = word is not None and re.fullmatch("[0-9.]+", _narrow(self.text[word[0] : i]))
        end = _End(
            reads,
            word_class,
            after_space=i > 0 and kind(self.text[i - 1]) == "space",
            after_number=bool(digits),
            after_narrow=word is not None,
        )
        if end.reads == "ellipsis":
            end.word_class = end.class_without_word()
        return end

    def look_ahead(self, i: int, end: _End) -> tuple[str, int]:
        """``("boundary", end of the sentence)`` or ``("none", where to go on)``."""
        text, n = self.text, len(self.text)
        stop = j = i if text[i] in NEWLINES else i + 1
        while True:
            stop = j = self.absorb_run(j, end)
            if j == n:
                return "none", n
            if text[j] == "[" and stop > i:
                inside = re.compile(r"[0-9,\-–^ ]{0,12}").match(text, j + 1)
                at = inside.end() if inside else j + 1
                return ("none", at) if at == n or end.needs_space else ("boundary", stop)
            if kind(text[j]) != "space":
                return self.directly_before(j, stop, end)
            while j < n and kind(text[j]) == "space":
                j += 1
                if text[j - 1] in NEWLINES and self.newline_is_boundary:
                    stop = j
            if j == n:
                return "none", n
            if self.newline_is_boundary and text[stop - 1] in NEWLINES:
                return "boundary", stop
            if text[j] in TERMINATORS:
                self.absorb_terminator(text[j], end, spaced=True)
            elif text[j] in HARD_CLOSERS or (text[j] == "»" and "«" in text[:j].split("»")[-1]):
                end.after_closer, end.last_closer = True, text[j]
            elif text[j] in CONTINUATIONS:
                return "none", j
            elif not end.needs_space:
                return "boundary", stop
            else:
                return self.before_word_of(j, stop, end)
            j += 1

    def absorb_run(self, j: int, end: _End) -> int:
        """Index behind the terminators, closers and citations that follow directly."""
        while j < len(self.text):
            char = self.text[j]
            cited = CITATION.match(self.text, j)
            if char in TERMINATORS:
                self.absorb_terminator(char, end, spaced=False)
            elif self.closes(j, end):
                end.after_closer, end.last_closer = True, char
            elif cited:
                end.after_closer, end.last_closer = True, ""
                j = cited.end() - 1
            else:
                break
            j += 1
        return j

    def closes(self, j: int, end: _End) -> bool:
        char = self.text[j]
        loose = char in LOOSE_CLOSERS
        closer = char in HARD_CLOSERS + SOFT_CLOSERS or is_emoji(char) or "⁰" <= char <= "⁹"
        if end.needs_space:
            return closer or loose or char in PAIRED
        if char in PAIRED:
            runs = len(re.findall(re.escape(char) + "+", self.text[:j]))
            return runs % 2 == 1 or self.text[j - 1] == char
        return closer

    @staticmethod
    def absorb_terminator(char: str, end: _End, spaced: bool) -> None:
        if char in STRONG:
            end.reads = "strong"
        elif end.reads != "strong" and char in QUESTIONS:
            end.reads = "question"
        elif end.reads not in ("strong", "question"):
            if spaced or not end.after_closer or char in ELLIPSES:
                end.reads = "ellipsis"
            else:
                end.reads = "period" if char == "." else "wide"
        end.word_class = end.class_without_word()
        end.after_closer = end.after_number = end.after_narrow = False
        end.last_closer = ""

    def directly_before(self, j: int, stop: int, end: _End) -> tuple[str, int]:
        char = self.text[j]
        if end.needs_space:
            numbered = end.reads == "period" and end.after_number and not end.after_closer
            east = is_east(char) or char in EAST_OPENERS
            boundary = east and end.word_class == "ordinary" and not numbered
        else:
            decimal = end.reads == "wide" and end.after_narrow and not end.after_closer
            goes_on = (
                (decimal and is_word(char) and not is_east(char))
                or char in CONTINUATIONS
                or (end.last_closer in tuple(TITLE_CLOSERS) and is_word(char))
                or (end.last_closer in tuple(EAST_QUOTES) and char in PARTICLES)
            )
            boundary = not goes_on
        return ("boundary", stop) if boundary else ("none", j)

    def before_word_of(self, j: int, stop: int, end: _End) -> tuple[str, int]:
        """Decides by the first word at or after index j, behind white space."""
        text, n, before = self.text, len(self.text), end.word_class
        symbols = 0
        while j < n and not is_word(text[j]):
            symbols += kind(text[j]) != "space"
            newline = self.newline_is_boundary and text[j] in NEWLINES
            if newline or text[j] in TERMINATORS or symbols > MAX_SYMBOLS:
                plain = before in ("ordinary", "digit")
                return ("boundary", stop) if plain else ("none", j)
            j += 1
        if j == n:
            return "none", n
        go_on = j
        if is_lower(text[j]):
            go_on = j + 1
            if is_upper(text[go_on : go_on + 1] or " "):
                boundary = before != "ambiguous"
            else:
                plain = before == "ordinary" and end.reads != "ellipsis" and not end.after_closer
                boundary = plain and not any(map(is_upper, text[:j]))
        elif is_digit(text[j]):
            doubted = end.reads == "question" and end.after_number
            plain = before == "ordinary" and end.reads != "ellipsis"
            boundary = plain and not doubted and text[j - 1] != "("
        elif is_upper(text[j]) and before in ("number", "ambiguous"):
            while go_on < n and is_word(text[go_on]) and not is_east(text[go_on]):
                go_on += 1
            word, after = _narrow(text[j:go_on]), text[go_on : go_on + 1]
            if before == "number":
                numeral = _C.word_roles().get(word, 0) & NUMERAL
                boundary = len(word) != 1 and not numeral and not re.fullmatch("[IVXLCDM]+", word)
            else:
                whole = after in ("", ",", "'", "’") or kind(after) == "space" or is_east(after)
                boundary = whole and bool(_C.word_roles().get(word, 0) & STARTER)
        else:
            boundary = is_upper(text[j]) or before != "ambiguous"
        return ("boundary", stop) if boundary else ("none", go_on)


def first_sentence_end(text: bytes, *, newline_is_boundary: bool = True, min_chars: int = 1) -> int:
    """Byte behind the first sentence of a text that ends where its bytes end.

    Parameters
    ----------
    text : bytes
        Any bytes; invalid UTF-8 reads as U+FFFD, one a byte.
    newline_is_boundary : bool
        A newline ends a sentence.
    min_chars : int
        Letters and digits a sentence has at least.

    Returns
    -------
    int
        In [0, len(text)]; 0 for an empty text only.
    """
    chars = decode_utf8(text)
    end = _Sentence("".join(c for c, _, _ in chars), newline_is_boundary, min_chars).end()
    return chars[end - 1][2] if end > 0 else 0


def split_sentences(
    text: bytes, *, newline_is_boundary: bool = True, min_chars: int = 1
) -> list[int]:
    """End offsets in bytes of all sentences; see :func:`first_sentence_end`."""
    ends: list[int] = []
    begin = 0
    while begin < len(text):
        begin += first_sentence_end(
            text[begin:], newline_is_boundary=newline_is_boundary, min_chars=min_chars
        )
        ends.append(begin)
    return ends
