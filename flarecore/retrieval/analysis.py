"""Text to search terms, for scripts with spaces and without.

Steps: Unicode NFKC and case folding (full width becomes half width, capitals small); runs of
scripts that put no spaces between words (Chinese, Japanese, Korean, Thai and their like) become
overlapping pairs of characters; everything else becomes words. In detail:

- a number keeps its decimal point (``3.14``) and loses its thousands commas (``1,000``);
- a compound is searchable whole and in parts: ``X-200`` and ``X200`` give ``x200``, ``x``, ``200``;
  ``U.S.`` gives ``us``, ``u``, ``s``; ``2024-01-05`` gives itself and its three numbers;
- the possessive ``'s`` is dropped; ``C++`` and ``C#`` are words; an emoji is a term of its own;
- a passage also holds the single characters of a run without spaces. A query uses them where a run
  is one character long, or where all its runs together are short;
- stop words are left out of a query unless it has nothing else ("The Who"); passages keep them.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Protocol, runtime_checkable

from flarecore.errors import ConfigError, UnsupportedError

__all__ = ["ENGLISH_STOP_WORDS", "Analyser", "FunctionAnalyser", "TextAnalyser", "as_analyser"]

_STOP_WORDS = """
    a an and are as at be been but by did do does for from had has have he her his how if in into
    is it its not of on or she so such than that the their them then there these they this those
    to was we were what when where which who whom whose why will with you your"""
ENGLISH_STOP_WORDS = frozenset(_STOP_WORDS.split())

# Han, kana, bopomofo, Hangul, Yi, Thai, Lao, Myanmar, Khmer; without their digits.
_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1100-\u11ff"
    "\u1780-\u17d3\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303b\u3041-\u3096"
    "\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u3131-\u318e\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff")
_EMOJI = "\u231a-\u23ff\u2600-\u27bf\u2b50-\u2b55\U0001f000-\U0001f3fa\U0001f400-\U0001faff"
# NFKC would glue these to what stands before them: "6½" to "61⁄2", "m²" to "m2", "X™" to "xtm".
_GLUED = re.compile("(?=[\u00aa\u00b2\u00b3\u00b9\u00ba\u00bc-\u00be\u2070-\u207f\u2120\u2122"
                    "\u2150-\u215f\u2189])")
# Invisible inside of words: soft hyphen, joiners, marks of direction and variation. U+200B parts.
_INVISIBLE = {**dict.fromkeys([0xAD, *range(0x200C, 0x2010), 0x2060, 0xFEFF,
                               *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]),
              0x200B: " ", 0x2019: "'", 0x02BC: "'"}
# At most six groups, so that a list of thousands of them is not read again from each of its items.
_THOUSANDS = r"\d{1,3}(?:,\d{3}){1,6}(?!,?\d)(?:\.\d+)?"
_PIECE = re.compile(rf"{_THOUSANDS}|\d+(?:\.\d+)*|[^\W\d_]+")
_SHORT_QUERY_CHARS = 4


@runtime_checkable
class Analyser(Protocol):
    """Anything that turns texts into terms. `name` and `options` are kept in an index."""

    @property
    def name(self) -> str:
        """Names the code."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """JSON values; equal names and options mean equal terms."""
        ...

    def passage_terms(self, text: str) -> Sequence[str]:
        """The terms of a passage, with repeats."""
        ...

    def query_terms(self, text: str) -> Sequence[str]:
        """The terms to look for, with repeats: a term that occurs twice counts twice."""
        ...


@dataclass(frozen=True)
class FunctionAnalyser:
    """A function as an analyser, the same for passages and queries.

    Parameters
    ----------
    name : str
        What the index file knows it by; give another one when the function changes.
    function : callable
        ``function(text) -> sequence of str``.
    options : Mapping of str to JSON value
    """

    name: str
    function: Callable[[str], Sequence[str]]
    options: Mapping[str, Any] = field(default_factory=dict)

    def passage_terms(self, text: str) -> Sequence[str]:
        """What the function returns."""
        return self.function(text)

    query_terms = passage_terms


@dataclass(frozen=True)
class TextAnalyser:
    """The analyser described at the top of this module.

    Parameters
    ----------
    stop_words : {"english", None}
        Leave :data:`ENGLISH_STOP_WORDS` out of queries.
    stemmer : str, optional
        A language of Snowball such as "english": words go to their stems. Needs PyStemmer
        (``pip install 'flarecore[stemming]'``).

    Raises
    ------
    ConfigError
        Unknown stop words or stemmer.
    UnsupportedError
        PyStemmer is not installed.
    """

    stop_words: str | None = "english"
    stemmer: str | None = None

    def __post_init__(self) -> None:
        if self.stop_words not in (None, "english"):
            raise ConfigError(f"stop_words must be 'english' or None, got {self.stop_words!r}")
        if self.stemmer is not None:
            _stem_function(self.stemmer)

    @property
    def name(self) -> str:
        """Raised when the terms of any text change."""
        return "flarecore-text-1"

    @property
    def options(self) -> Mapping[str, Any]:
        """The constructor's arguments."""
        return asdict(self)

    def passage_terms(self, text: str) -> list[str]:
        """Words, pairs and single characters of unspaced runs, in the order of the text."""
        words, runs = _words_and_runs(text)
        terms = self._stems(words)
        for run in runs:
            terms += _pairs(run)
            terms += run
        return terms

    def query_terms(self, text: str) -> list[str]:
        """As of a passage, but single characters only where pairs would be too few."""
        words, runs = _words_and_runs(text)
        if self.stop_words is not None:
            telling = [word for word in words if word not in ENGLISH_STOP_WORDS]
            words = telling if telling or runs else words
        terms = self._stems(words)
        is_short = sum(map(len, runs)) <= _SHORT_QUERY_CHARS
        for run in runs:
            terms += _pairs(run)
            if is_short or len(run) == 1:
                terms += run
        return terms

    def _stems(self, words: list[str]) -> list[str]:
        return words if self.stemmer is None else _stem_function(self.stemmer)(words)


def _words_and_runs(text: str) -> tuple[list[str], list[str]]:
    """Words, compounds taken apart, and the runs of scripts without spaces."""
    words: list[str] = []
    runs: list[str] = []
    for match in _scanner().finditer(_folded(text)):
        token, kind = match[0], match.lastgroup
        if kind == "run":
            runs.append(token)
        elif kind == "word" and not token.isalpha():
            words += _parts(token)
        else:
            words.append(token)
    return words, runs


def as_analyser(analyser: object) -> Analyser:
    """An analyser as it is; a function under its own name; TextAnalyser for None.

    Raises
    ------
    ConfigError
        Neither; or a function without a name, which an index could not tell from another.
    """
    if analyser is None:
        return TextAnalyser()
    if isinstance(analyser, Analyser) and not isinstance(analyser, type):
        try:
            json.dumps(dict(analyser.options), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"analyser {analyser.name!r}: an index keeps the options as JSON, which cannot "
                f"hold these: {error}") from error
        return analyser
    name = getattr(analyser, "__qualname__", "")
    if not callable(analyser) or isinstance(analyser, type):
        raise ConfigError(
            "analyser must be a function from text to terms or have name, options, passage_terms "
            f"and query_terms, got {type(analyser).__name__}")
    if not name or "<lambda>" in name:
        raise ConfigError("analyser: a function without a name needs one: FunctionAnalyser(name, "
                          "function)")
    return FunctionAnalyser(f"{analyser.__module__}.{name}", analyser)


def _folded(text: str) -> str:
    if text.isascii():
        return text.casefold()
    text = _GLUED.sub(" ", text)
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return folded.translate(_INVISIBLE)


@cache
def _scanner() -> re.Pattern[str]:
    # \w leaves out combining marks, which are half of the letters of Hindi or pointed Hebrew.
    marks = "".join(
        chr(code) for code in range(0x300, min(sys.maxunicode, 0x1FFFF))
        if not 0xFE00 <= code <= 0xFE0F and unicodedata.category(chr(code)) in ("Mn", "Mc")
        and not re.match(f"[{_UNSPACED}]", chr(code)))
    letters = rf"[^\W_{_UNSPACED}]"
    atom = rf"(?:{_THOUSANDS}|{letters}+(?:[{marks}]+{letters}*)*)"
    return re.compile(
        rf"(?P<code>(?<!\w)[a-z](?:\+\+|\#)(?!\w))|(?P<word>{atom}(?:[-\u2010_.'&]{atom})*)"
        rf"|(?P<run>[{_UNSPACED}]+)|(?P<emoji>[{_EMOJI}])")


def _parts(token: str) -> list[str]:
    """A compound, whole and in parts."""
    if token.endswith("'s"):
        token = token[:-2]
    pieces = [piece.replace(",", "") for piece in _pieces(token)]
    if len(pieces) == 1:
        return pieces
    whole = ""
    for piece in pieces:
        # "3-4" is not "34", whereas "x-200" may be written "x200".
        is_range = whole[-1:].isdigit() and piece[:1].isdigit()
        whole += f"-{piece}" if is_range else piece
    return [whole, *pieces]


def _pieces(token: str) -> list[str]:
    if token.isascii():
        return _PIECE.findall(token)
    # Marks stay with their letters: only joiners and changes between letters and digits part.
    return [piece for part in re.split(r"[-\u2010_'&]|(?<!\d)\.|\.(?!\d)", token) if part
            for piece in re.findall(rf"{_THOUSANDS}|\d+(?:\.\d+)*|[^\d]+", part)]


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)]


@cache
def _stem_function(language: str) -> Callable[[list[str]], list[str]]:
    try:
        import Stemmer
    except ImportError as error:
        raise UnsupportedError(
            f"stemmer={language!r} needs PyStemmer, which is not installed: pip install "
            "'flarecore[stemming]'") from error
    if language not in Stemmer.algorithms():
        raise ConfigError(
            f"stemmer must be one of {', '.join(Stemmer.algorithms())}, got {language!r}")

    def stem(words: list[str]) -> list[str]:
        # One for each call: a Stemmer keeps state and is not for several threads.
        stems: list[str] = Stemmer.Stemmer(language).stemWords(words)
        return stems

    return stem
