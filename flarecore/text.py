"""Sentence boundaries and the mask that turns a draft into a query (native code, thin wrappers).

A draft is the tentative next sentence, β the threshold of the mask.
Source of the mask: Jiang et al. 2023 (arXiv 2305.06983), section 3.2.2.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from flarecore import _C  # type: ignore[attr-defined]
from flarecore.errors import ConfigError
from flarecore.validation import check_choice, check_number

__all__ = [
    "MaskUnit",
    "SentenceBoundary",
    "is_punctuation_or_space",
    "low_spans",
    "mask_to_query",
    "split_sentences",
]

MaskUnit = Literal["token", "word", "auto"]


class SentenceBoundary:
    """Finds the end of a sentence while its tokens arrive.

    The end is a property of the bytes: however they are cut into tokens, it is the same byte,
    rounded up to the end of the token that holds it. State is bounded; invalid UTF-8 reads as
    U+FFFD.

    A sentence ends after a terminator (``.``, ``?``, ``!``, ``…``, ``。`` and the like) with the
    closing quotes, brackets, emphasis, emoji and citations (``[1]``) right behind it. White space
    belongs to the next sentence, but newlines in it to the finished one.

    Parameters
    ----------
    newline_is_boundary : bool
        A newline ends a sentence, whatever stands before it.
    min_chars : int
        Letters and digits a sentence has at least, in [1, 1000000]; list markers ("1.") do not
        count. A shorter one is joined to what follows.

    Raises
    ------
    ConfigError
        If ``min_chars`` is out of range or no integer.
    """

    def __init__(self, *, newline_is_boundary: bool = True, min_chars: int = 1) -> None:
        self._native = _C.SentenceBoundary(
            newline_is_boundary=bool(newline_is_boundary),
            min_chars=_integer("min_chars", min_chars),
        )

    def feed(self, token_bytes: bytes) -> int:
        """Feeds the bytes of the next token.

        Parameters
        ----------
        token_bytes : bytes
            May end inside a character, may be empty.

        Returns
        -------
        int
            Number of tokens fed since :meth:`reset` that make up the finished sentence, in
            [1, ``num_tokens``]; 0 while undecided. Usually the token after a terminator decides.
            Later tokens belong to the next sentence: reset, then feed them again. Once decided,
            further calls change nothing.
        """
        return int(self._native.feed(_bytes("token_bytes", token_bytes)))

    def finish(self) -> int:
        """Decides as if the text ended here.

        Returns
        -------
        int
            As :meth:`feed`: all tokens, unless the end settles an earlier boundary ("… U.S. He").
            0 if nothing was fed.
        """
        return int(self._native.finish())

    def reset(self) -> None:
        """Back to the start of a sentence."""
        self._native.reset()

    def copy(self) -> SentenceBoundary:
        """An independent boundary in the same state."""
        other = object.__new__(SentenceBoundary)
        other._native = self._native.copy()
        return other

    __copy__ = copy

    @property
    def num_tokens(self) -> int:
        """Tokens fed since :meth:`reset`, up to the deciding one."""
        return int(self._native.num_tokens)


def split_sentences(
    text: str, *, newline_is_boundary: bool = True, min_chars: int = 1
) -> list[str]:
    """Splits a whole text; the parts joined are the text.

    Parameters
    ----------
    text : str
        Any text.
    newline_is_boundary, min_chars
        See :class:`SentenceBoundary`.

    Returns
    -------
    list of str
        Empty for an empty text only.

    Raises
    ------
    ConfigError
        If ``min_chars`` is out of range, or ``text`` no string.
    """
    if not isinstance(text, str):
        raise ConfigError(f"text must be a string, got {type(text).__name__}")
    data = text.encode("utf-8", errors="surrogatepass")
    ends = _C.split_sentences(
        data,
        newline_is_boundary=bool(newline_is_boundary),
        min_chars=_integer("min_chars", min_chars),
    )
    begins = [0, *ends][: len(ends)]
    return [
        data[begin:end].decode("utf-8", errors="surrogatepass")
        for begin, end in zip(begins, ends, strict=True)
    ]


def mask_to_query(
    token_bytes: Sequence[bytes],
    probs: npt.ArrayLike,
    beta: float,
    *,
    unit: MaskUnit = "word",
    inclusive: bool = False,
    special: Sequence[bool] | None = None,
) -> tuple[str, list[bool]]:
    """Drops the low tokens of a draft and returns what is left as a query.

    A character goes completely if any of its bytes lies in a token that goes. Gaps and white space
    become one space, the ends are stripped. Invalid UTF-8 and special tokens become gaps.

    Parameters
    ----------
    token_bytes : sequence of bytes, (num_tokens,)
        Bytes of each token; a character may lie in several.
    probs : array_like of float32, (num_tokens,)
        Confidences in [0, 1]; NaN counts as low.
    beta : float
        Mask threshold β in [0, 1], compared in float32.
    unit : {"word", "token", "auto"}
        ``"token"``: a low token goes, nothing else (paper). ``"word"``: it takes its whole word
        along where words are separated by spaces, and punctuation left alone beside a gap goes too;
        scripts without spaces lose the characters of the token only. A word is a run of letters and
        digits with the joiners inside it (don't, U.S, 3.14, AT&T); a hyphen separates words.
        ``"auto"`` is another name for ``"word"``, which goes by the script of each character.
    inclusive : bool
        Drop at ``p <= beta`` (the authors' code) instead of ``p < beta`` (paper).
    special : sequence of bool, (num_tokens,), optional
        Special tokens; they never reach the query.

    Returns
    -------
    query : str
        May be empty.
    kept : list of bool, (num_tokens,)
        True if any visible character of the token is in the query, or if it has none and is neither
        low nor special.

    Raises
    ------
    ConfigError
        If lengths differ, an argument is of the wrong type, ``beta`` or a probability is out of
        range, or ``unit`` is unknown.
    """
    query, kept = _C.mask_to_query(
        _token_bytes(token_bytes),
        _probs(probs),
        check_number("beta", beta, 0.0, 1.0),
        check_choice("unit", unit, ("word", "token", "auto")),
        bool(inclusive),
        _flags(special),
    )
    return str(query), list(kept)


def low_spans(
    probs: npt.ArrayLike,
    threshold: float,
    *,
    span_gap: int,
    token_bytes: Sequence[bytes],
    special: Sequence[bool] | None = None,
    inclusive: bool = False,
) -> list[tuple[int, int]]:
    """Spans of low tokens, for explicit questions and for the span trigger.

    Parameters
    ----------
    probs : array_like of float32, (num_tokens,)
        Confidences in [0, 1]; NaN counts as low.
    threshold : float
        In [0, 1]; low is ``p < threshold``, or ``p <= threshold`` if ``inclusive``.
    span_gap : int
        Low tokens at i < j join one span if ``j - i < span_gap``; neighbours always join.
    token_bytes : sequence of bytes, (num_tokens,)
        Tokens that are only punctuation or white space are never low.
    special : sequence of bool, (num_tokens,), optional
        Special tokens; a span never reaches across one.
    inclusive : bool
        See ``threshold``.

    Returns
    -------
    list of (int, int)
        Token ranges ``[begin, end)``, ascending; each begins and ends with a low token.

    Raises
    ------
    ConfigError
        As for :func:`mask_to_query`, or if ``span_gap`` is negative.
    """
    spans = _C.low_spans(
        _probs(probs),
        check_number("threshold", threshold, 0.0, 1.0),
        _integer("span_gap", span_gap),
        _token_bytes(token_bytes),
        _flags(special),
        bool(inclusive),
    )
    return [(int(begin), int(end)) for begin, end in spans]


def is_punctuation_or_space(token_bytes: bytes) -> bool:
    """True if a token is only punctuation (Unicode P*, ASCII), white space or nothing.

    A piece of a character and other symbols (€, emoji) are not.
    """
    return bool(_C.is_punctuation_or_space(_bytes("token_bytes", token_bytes)))


def _integer(name: str, value: int) -> int:
    try:
        return max(-(2**31), min(2**31 - 1, operator.index(value)))
    except TypeError:
        raise ConfigError(f"{name} must be an integer, got {value!r}") from None


def _bytes(name: str, value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ConfigError(f"{name} must be bytes, got {type(value).__name__}")
    return value


def _token_bytes(token_bytes: Sequence[bytes]) -> list[bytes]:
    if isinstance(token_bytes, (str, bytes)) or not isinstance(token_bytes, Iterable):
        raise ConfigError(f"token_bytes must be one bytes object a token, got {token_bytes!r:.80}")
    return [_bytes(f"token_bytes[{i}]", item) for i, item in enumerate(token_bytes)]


def _probs(probs: npt.ArrayLike) -> npt.NDArray[np.float32]:
    try:
        return np.ascontiguousarray(probs, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"probs must be one number a token: {error}") from None


def _flags(special: Sequence[bool] | None) -> list[bool] | None:
    if special is not None and not isinstance(special, Iterable):
        raise ConfigError(f"special must be one flag a token, got {special!r:.80}")
    return None if special is None else [bool(flag) for flag in special]
