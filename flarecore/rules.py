"""Rules over a draft: what must be looked up whatever its confidence, and what never needs it."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flarecore.errors import ConfigError
from flarecore.validation import check_bool, check_strings, named_options, unknown_name

__all__ = ["UNSPACED", "DraftRule", "RuleHit", "spaced_word"]

UNSPACED = ("\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff"
            "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff")
"""Scripts that are written without spaces, as the inside of a regular expression's class."""

_WORD_CHAR = f"[^\\W{UNSPACED}]"
_SPACED = re.compile(_WORD_CHAR)


def spaced_word(char: str) -> bool:
    """Whether a character is part of a word in a script with spaces."""
    return _SPACED.match(char) is not None


@dataclass(frozen=True)
class RuleHit:
    """What of a rule was found in a draft.

    Parameters
    ----------
    kind : {"term", "pattern"}
        What kind of entry it is.
    entry : str
        The term or pattern, as configured.
    text : str
        The text of the draft that it matched.
    """

    kind: str
    entry: str
    text: str


@named_options
@dataclass(frozen=True, kw_only=True)
class DraftRule:
    """Finds terms and patterns in the text of a draft.

    Parameters
    ----------
    terms : tuple of str
        Plain text, found as whole words where words are separated by spaces; any run of white
        space in a term stands for any other.
    patterns : tuple of str
        Regular expressions of Python's :mod:`re`, searched anywhere in the draft: a product
        number is ``r"\\b[A-Z]{2}-\\d{4}\\b"``.
    ignore_case : bool
        Whether capitals do not matter.

    Raises
    ------
    ConfigError
        There is no entry, or a pattern is no regular expression or matches the empty text (and so
        every draft); the message says which.
    """

    terms: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    ignore_case: bool = True

    def __post_init__(self) -> None:
        for name in ("terms", "patterns"):
            strings = check_strings(f"DraftRule.{name}", getattr(self, name))
            object.__setattr__(self, name, strings)
        check_bool("DraftRule.ignore_case", self.ignore_case)
        if not self.terms and not self.patterns:
            raise ConfigError(
                "DraftRule needs at least one of terms and patterns; use None for no rule")
        for position, term in enumerate(self.terms):
            if not term.strip():
                raise ConfigError(f"DraftRule.terms[{position}] is only white space")
        for position, pattern in enumerate(self.patterns):
            _check_pattern(f"DraftRule.patterns[{position}]", pattern, self.ignore_case)

    def find(self, text: str) -> RuleHit | None:
        """The first entry that is found, terms before patterns; None if none is."""
        for kind, entry, expression in _compiled(self.terms, self.patterns, self.ignore_case):
            found = expression.search(text)
            if found is not None:
                return RuleHit(kind, entry, found.group())
        return None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DraftRule:
        """The rule that :meth:`to_dict` wrote.

        Raises
        ------
        ConfigError
            A name is unknown or an entry is wrong.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        if unknown := set(data) - set(known):
            raise unknown_name("DraftRule", unknown, known)
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return {"terms": list(self.terms), "patterns": list(self.patterns),
                "ignore_case": self.ignore_case}


def _check_pattern(where: str, pattern: str, ignore_case: bool) -> None:
    try:
        expression = re.compile(pattern, _flags(ignore_case))
    except re.error as error:
        place = "" if error.pos is None else f" at character {error.pos}"
        raise ConfigError(
            f"{where} is no regular expression: {error.msg}{place} in {pattern!r}; to find it as "
            "it stands, put it into terms") from None
    if expression.search("") is not None:
        raise ConfigError(f"{where} matches the empty text and so every draft: {pattern!r}")


@functools.lru_cache(maxsize=64)
def _compiled(
    terms: tuple[str, ...], patterns: tuple[str, ...], ignore_case: bool
) -> list[tuple[str, str, re.Pattern[str]]]:
    flags = _flags(ignore_case)
    return [*(("term", term, re.compile(_as_pattern(term), flags)) for term in terms),
            *(("pattern", pattern, re.compile(pattern, flags)) for pattern in patterns)]


def _as_pattern(term: str) -> str:
    """A term as an expression that stops at words' ends where words have ends."""
    words = r"\s+".join(re.escape(word) for word in term.split())
    before = f"(?<!{_WORD_CHAR})" if spaced_word(term.strip()[0]) else ""
    after = f"(?!{_WORD_CHAR})" if spaced_word(term.strip()[-1]) else ""
    return before + words + after


def _flags(ignore_case: bool) -> re.RegexFlag:
    return re.IGNORECASE if ignore_case else re.RegexFlag(0)
