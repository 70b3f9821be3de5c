"""Query mask and low spans, slow and obvious: the twin of ``csrc/text/query_mask.h``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from flarecore.reference.text_chars import (
    REPLACEMENT,
    decode_utf8,
    is_digit,
    is_unspaced,
    is_word,
    kind,
)

__all__ = ["is_punctuation_or_space", "low_spans", "mask_to_query"]

ATTACHED_MARKS = re.compile(
    "[\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u0f71-\u0f84\u0f8d-\u0fbc"
    "\u102b-\u103e\u1056-\u1059\u17b4-\u17d3\u3099\u309a]"
)

# Shape of a character: w letter, 9 digit, u letter of an unspaced script, m its mark, . joiner
# of anything, joiner of digits, p other punctuation or symbol, blank.
WORD = re.compile(r"[w9](?:[w9]|\.(?=[w9])|(?<=9),(?=9))*|[um]m*|.", re.DOTALL)


def _shape(char: str) -> str:
    if is_unspaced(char):
        return "m" if ATTACHED_MARKS.match(char) else "u"
    if is_word(char):
        return "9" if is_digit(char) else "w"
    if char in "'’.&_@\u200c\u200d":
        return "."
    if char in ",:．，":
        return ","
    return " " if kind(char) == "space" else "p"


def _low(prob: float, threshold: float, inclusive: bool) -> bool:
    prob, threshold = np.float32(prob), np.float32(threshold)
    return math.isnan(prob) or bool(prob <= threshold if inclusive else prob < threshold)


def mask_to_query(
    token_bytes: Sequence[bytes],
    probs: Sequence[float],
    beta: float,
    unit: str = "word",
    inclusive: bool = False,
    special: Sequence[bool] | None = None,
) -> tuple[str, list[bool]]:
    """Query text and kept flags of a draft; arguments as :func:`flarecore.text.mask_to_query`."""
    num_tokens = len(token_bytes)
    special = special or [False] * num_tokens
    low = [_low(p, beta, inclusive) for p in probs]
    chars: list[str] = []
    owners: list[set[int]] = []  # tokens that a character has bytes of
    run: list[tuple[int, int]] = []  # (byte, token) since the last special token
    for i in range(num_tokens + 1):
        if i < num_tokens and not special[i]:
            run += [(byte, i) for byte in token_bytes[i]]
            continue
        for char, begin, end in decode_utf8(bytes(byte for byte, _ in run)):
            chars.append(char)
            owners.append({token for _, token in run[begin:end]})
        run = []
        if i < num_tokens:  # a special token is a gap
            chars.append(" ")
            owners.append(set())
    dropped = [
        not tokens or char == REPLACEMENT or any(low[t] for t in tokens)
        for char, tokens in zip(chars, owners, strict=True)
    ]
    if unit != "token":
        _widen(chars, dropped)
    kept = "".join(" " if d else c for c, d in zip(chars, dropped, strict=True))
    query = " ".join("".join(" " if kind(c) == "space" else c for c in kept).split(" "))
    query = re.sub(" +", " ", query).strip(" ")
    return query, _kept(chars, owners, dropped, low, special)


def _widen(chars: list[str], dropped: list[bool]) -> None:
    """Drops the rest of words that lost a character, then punctuation that lost its word."""
    shape = "".join(map(_shape, chars))
    for word in WORD.finditer(shape):
        span = range(*word.span())
        if any(dropped[i] for i in span):
            for i in span:
                dropped[i] = True
    # As seen by punctuation: x gap, w kept letter, p kept punctuation, blank.
    scene = "".join(
        "x" if d else "w" if is_word(c) else " " if kind(c) == "space" else "p"
        for c, d in zip(chars, dropped, strict=True)
    )
    for marks in re.finditer(r"(?<![pw])p+(?![pw])", scene):
        around = scene[max(0, marks.start() - 1) : marks.start()] + scene[marks.end() :][:1]
        if "x" in around:
            for i in range(*marks.span()):
                dropped[i] = True


def _kept(
    chars: list[str],
    owners: list[set[int]],
    dropped: list[bool],
    low: list[bool],
    special: Sequence[bool],
) -> list[bool]:
    flags = []
    for i in range(len(low)):
        visible = [k for k, o in enumerate(owners) if i in o and kind(chars[k]) != "space"]
        if visible:
            flags.append(any(not dropped[k] for k in visible))
        else:
            flags.append(not low[i] and not special[i])
    return flags


def low_spans(
    probs: Sequence[float],
    threshold: float,
    span_gap: int,
    token_bytes: Sequence[bytes],
    special: Sequence[bool] | None = None,
    inclusive: bool = False,
) -> list[tuple[int, int]]:
    """Spans of low tokens; arguments as :func:`flarecore.text.low_spans`."""
    special = special or [False] * len(token_bytes)
    low = [
        i
        for i, (prob, piece) in enumerate(zip(probs, token_bytes, strict=True))
        if _low(prob, threshold, inclusive)
        and not special[i]
        and not is_punctuation_or_space(piece)
    ]
    spans: list[list[int]] = []
    for i in low:
        near = spans and i - spans[-1][-1] < max(span_gap, 2)
        if near and not any(special[spans[-1][-1] : i]):
            spans[-1].append(i)
        else:
            spans.append([i])
    return [(span[0], span[-1] + 1) for span in spans]


def is_punctuation_or_space(token_bytes: bytes) -> bool:
    """True if the bytes are only punctuation, white space or nothing."""
    try:
        text = token_bytes.decode()
    except UnicodeDecodeError:
        return False
    return all(kind(char) in ("punct", "space") for char in text)
