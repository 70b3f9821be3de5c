"""What the word before a period says: part of the sentence boundary's twin."""

from __future__ import annotations

import re

from flarecore import _C  # type: ignore[attr-defined]
from flarecore.reference.text_chars import NEWLINES, is_east, is_lower, is_word, kind

MAX_WORD = 16  # longer words are in no table
MAX_LINKED = 4  # letters of a part of "i. d. R."
STARTER, LETTER_HEAD, NUMBER_HEAD, EXCLAIMED_NAME, NUMERAL, PARTICLE = 1, 2, 4, 8, 16, 32
ORDINAL_HEAD, ORDINAL_NOUN, MONTH, MONTH_HEAD = 64, 128, 256, 512


def narrow(word: str) -> str:
    """Full-width letters and digits as ASCII; a word too long for the tables becomes empty."""
    word = "".join(chr(ord(c) - 0xFEE0) if "０" <= c <= "ｚ" else c for c in word)
    return word.replace("’", "'") if len(word) <= MAX_WORD else ""


def has_role(word: str, roles: int) -> bool:
    return bool(_C.word_roles().get(word, 0) & roles)


class Words:
    """The words of a text, and what they are before a period."""

    def __init__(self, text: str) -> None:
        self.text = text
        shape = "".join(
            "w" if is_word(c) and not is_east(c) else c if c in "&'’.-" else " " for c in text
        )
        self.words = [m.span() for m in re.finditer(r"w(?:[w&'’]|\.-?(?=w))*", shape)]

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
        text = narrow(self.text[word[0] : i])
        if char == "!":
            return "ambiguous" if has_role(text, EXCLAIMED_NAME) else "ordinary"
        if not text:
            return "ordinary"
        before, index = self.before_word(word[0])
        marker = r".|[ivx]{1,4}|[IVX]{1,4}|[A-Za-z]?[0-9]{0,3}(?:\.[0-9]{1,3})*"
        if index == 0 and len(text) <= 8 and re.fullmatch(marker, text):
            return "marker"
        if len(text) == 1 and not re.match("[0-9]", text) and has_role(before, LETTER_HEAD):
            return "ordinary"
        linked = self.linked_words(word[0])
        known = [".".join([*linked[k:], text]) for k in range(len(linked))] + [f"{before}_{text}"]
        elided = text.rpartition("'")[2] if "'" in text else ""
        for entry in [*known, text, *([elided] if len(elided) > 1 else [])]:
            if entry in _C.abbreviations():
                return str(_C.abbreviations()[entry])
        if re.fullmatch("[0-9]+", text):
            if index == 1 and has_role(before, NUMBER_HEAD):
                return "never"
            if len(text) <= 2 and re.fullmatch("[0-9]{1,2}", "".join(linked[-1:])):
                return "digit"
            return self.ordinal_class(before) if len(text) <= 3 else "ordinary"
        if len(text) == 1:
            if is_lower(text):
                return "letter"
            return "ordinary" if self.text[word[0] - 1 : word[0]] == "-" else "initial"
        parts = re.split(r"\.-?", text)
        if len(parts) > 1 and all(len(p) == 1 and p not in "0123456789" for p in parts):
            return "ambiguous" if any(map(is_lower, text)) else "initial"
        contracted = re.fullmatch(r"[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ]{2,5}", text)
        if contracted and re.search("[a-z]", text.removesuffix("s")):
            return "ambiguous"
        return self.ordinal_class(before) if re.fullmatch("[IVXLCDM]+", text) else "ordinary"

    @staticmethod
    def ordinal_class(before: str) -> str:
        return "ambiguous" if has_role(before, ORDINAL_HEAD) else "ordinal"

    def linked_words(self, begin: int) -> list[str]:
        """Up to two short words before, each with a period and white space behind it."""
        found: list[str] = []
        for first, last in reversed([w for w in self.words if w[0] < begin]):
            word, gap = narrow(self.text[first:last]), self.text[last:begin]
            spaces = all(kind(c) == "space" and c not in NEWLINES for c in gap[1:])
            if gap[:1] != "." or not spaces or "." in word or not 0 < len(word) <= MAX_LINKED:
                break
            found.insert(0, word)
            begin = first
        return found[-2:]

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
        return (narrow(self.text[slice(*earlier[-1])]) if only_space else ""), index
