"""Sentence boundary, slow and obvious: the twin of ``csrc/text/sentence_boundary.h``.

The native boundary reads bytes one by one and keeps a bounded state; this one looks at the whole
text, forwards and backwards, as often as it likes. Only the word tables are shared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from flarecore.reference.sentence_words import (
    MAX_LINKED,
    MONTH,
    MONTH_HEAD,
    NUMERAL,
    ORDINAL_NOUN,
    PARTICLE,
    STARTER,
    Words,
    has_role,
    narrow,
)
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

MAX_SYMBOLS = 8
PLAIN = ("ordinary", "ordinal", "letter")
ABBREVIATED = ("ambiguous", "initial")

CITATION = re.compile(r"\[[0-9,\-–^ ]{1,12}\]")


@dataclass
class _End:
    """A terminator run: what is known about the end behind it."""

    reads: str  # "period", "ellipsis", "question", "strong", "wide"
    word_class: str
    after_space: bool
    after_number: bool
    after_month_head: bool
    after_narrow: bool
    after_closer: bool = False
    last_closer: str = ""

    @property
    def needs_space(self) -> bool:
        return self.reads not in ("strong", "wide")

    def class_without_word(self) -> str:
        return "ambiguous" if self.reads == "ellipsis" and self.after_space else "ordinary"


class _Sentence(Words):
    """One text that starts with the sentence; finds that sentence's end."""

    def __init__(self, text: str, newline_is_boundary: bool, min_chars: int) -> None:
        super().__init__(text)
        self.newline_is_boundary = newline_is_boundary
        self.min_chars = min_chars

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

    def open(self, i: int, word: tuple[int, int] | None, word_class: str) -> _End:
        char = self.text[i]
        reads = (
            "strong" if char in STRONG
            else "question" if char in QUESTIONS
            else "ellipsis" if char in ELLIPSES
            else "wide" if char == "．"
            else "period"
        )  # fmt: skip
        digits = word is not None and re.fullmatch("[0-9.]+", narrow(self.text[word[0] : i]))
        end = _End(
            reads,
            word_class,
            after_space=i > 0 and kind(self.text[i - 1]) == "space",
            after_number=bool(digits),
            after_month_head=word is not None
            and has_role(self.before_word(word[0])[0], MONTH_HEAD),
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
            elif text[j] == "»" and (j + 1 == n or kind(text[j + 1]) == "space"):
                end.after_closer, end.last_closer = True, text[j]
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
            boundary = east and end.word_class in PLAIN and not numbered
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
                plain = before in (*PLAIN, "digit")
                return ("boundary", stop) if plain else ("none", j)
            j += 1
        if j == n:
            return "none", n
        go_on = j
        if is_lower(text[j]):
            go_on = j + 1
            if is_upper(text[go_on : go_on + 1] or " "):
                boundary = before not in ABBREVIATED
            else:
                plain = before in ("ordinary", "ordinal") and end.reads != "ellipsis"
                boundary = plain and not end.after_closer and not any(map(is_upper, text[:j]))
        elif is_digit(text[j]) and not (before == "ordinal" and text[j - 1] != "("):
            doubted = end.reads == "question" and end.after_number
            plain = before == "ordinary" and end.reads != "ellipsis"
            boundary = plain and not doubted and text[j - 1] != "("
        elif is_digit(text[j]) or (is_upper(text[j]) and before not in ("ordinary", "digit")):
            while go_on < n and is_word(text[go_on]) and not is_east(text[go_on]):
                go_on += 1
            boundary = self.ends_before(j, go_on, end)
        else:
            boundary = is_upper(text[j]) or before not in ABBREVIATED
        return ("boundary", stop) if boundary else ("none", go_on)

    def ends_before(self, begin: int, stop: int, end: _End) -> bool:
        """Whether the sentence ends although the word at [begin, stop) follows a doubtful one."""
        word, after = narrow(self.text[begin:stop]), self.text[stop : stop + 1]
        if end.word_class == "number":
            roman = re.fullmatch("[IVXLCDM]+", word)
            return len(word) != 1 and not has_role(word, NUMERAL) and not roman
        if end.word_class == "letter":
            return after != "." or not 0 < len(word) <= MAX_LINKED
        if end.word_class == "ordinal":
            spaced = bool(after) and kind(after) == "space" and after not in NEWLINES
            if has_role(word, MONTH) and spaced and not end.after_month_head:
                rest = self.text[stop:]
                char = next((c for c in rest if kind(c) != "space" or c in NEWLINES), "")
                return char != "" and not is_digit(char) and char not in NEWLINES
            date = after == "." and re.fullmatch("[0-9]{1,2}", word)
            return not (has_role(word, ORDINAL_NOUN | MONTH) or date)
        whole = after in ("", ",", "'", "’") or kind(after) == "space" or is_east(after)
        roles = STARTER | PARTICLE * (end.word_class == "ambiguous")
        return whole and has_role(word, roles)


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
