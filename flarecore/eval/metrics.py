"""Exact match, F1 and containment, for English and for Chinese.

English follows SQuAD (Rajpurkar et al. 2016): lower case, no punctuation, no articles, words at
white space. In Chinese every Han character is a word and a run of other letters or digits is one,
as is practice for CMRC 2018 and DRCD; there are no articles. F1 is that of the two bags of words
(as in MLQA and DRCD; CMRC's own script takes the longest common substring instead). Both begin with
NFKC, so full-width letters and digits equal their narrow forms. Chinese script variants
(traditional, simplified) are not converted.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

__all__ = ["contains_answer", "exact_match", "f1_score", "text_language", "words_of"]

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff\u3005\u3007"
_KANA = "\u3040-\u30ff"
_CJK = re.compile(f"[{_HAN}{_KANA}]")
_PIECES = re.compile(f"[{_HAN}{_KANA}]|[^\\s{_HAN}{_KANA}]+")
_ARTICLES = frozenset({"a", "an", "the"})


def text_language(text: str) -> str:
    """``"zh"`` if the text has Han characters or kana, else ``"en"``."""
    return "zh" if _CJK.search(text) else "en"


def words_of(text: str, language: str) -> list[str]:
    """The normalised words that metrics compare.

    Parameters
    ----------
    text : str
        Any text.
    language : {"en", "zh"}
        How words are found; see the module.

    Returns
    -------
    list of str
        May be empty.
    """
    text = unicodedata.normalize("NFKC", text).lower()
    # Symbols (°, %, +, $) carry meaning only beside digits, and SQuAD drops the ASCII ones.
    kept = "".join(" " if language == "zh" and _is_punctuation(c) else
                   "" if _is_punctuation(c) else c for c in text)
    if language == "zh":
        return _PIECES.findall(kept)
    return [word for word in kept.split() if word not in _ARTICLES]


def _is_punctuation(char: str) -> bool:
    if char.isascii():
        return not char.isalnum() and not char.isspace()
    return unicodedata.category(char)[0] == "P"


def exact_match(answer: str, golds: Sequence[str], language: str) -> float:
    """1.0 if the normalised answer equals that of any of `golds`, else 0.0."""
    words = _compared(answer, language)
    return float(any(words == _compared(gold, language) for gold in golds))


def f1_score(answer: str, golds: Sequence[str], language: str) -> float:
    """The best F1 of the bags of words over `golds`, in [0, 1].

    Where either side has no word left, it is 1.0 if both have none, else 0.0.
    """
    return max((_f1(_compared(answer, language), _compared(gold, language)) for gold in golds),
               default=0.0)


def contains_answer(text: str, golds: Sequence[str], language: str) -> float:
    """1.0 if the words of any of `golds` stand in `text` one after the other, else 0.0."""
    words = _compared(text, language)
    return float(any(_has_run(words, _compared(gold, language)) for gold in golds))


def _compared(text: str, language: str) -> list[str]:
    words = words_of(text, language)
    # "The Who" keeps something to compare; an answer "A" is a grade, not an article.
    return words or [w for w in unicodedata.normalize("NFKC", text).lower().split()
                     if any(c.isalnum() for c in w)]


def _has_run(words: list[str], run: list[str]) -> bool:
    size = len(run)
    return size > 0 and any(words[i:i + size] == run for i in range(len(words) - size + 1))


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    same = sum((Counter(answer) & Counter(gold)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(answer), same / len(gold)
    return 2 * precision * recall / (precision + recall)
