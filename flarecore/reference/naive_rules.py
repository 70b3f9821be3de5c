"""Rules of the naive loop: when a draft is looked up, and with which passages it is written again.

Slow and obvious: everything is worked out from the whole text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flarecore.reference.query_mask import is_punctuation_or_space
from flarecore.reference.text_chars import decode_utf8

__all__ = ["choose_passages", "first_low_end", "is_triggered"]


def counts(pieces: Sequence[bytes]) -> list[bool]:
    """For each token whether it may trigger: some character it has a byte of is a word's.

    Parameters
    ----------
    pieces
        Bytes of each token; none for special tokens.
    """
    flags, end = [], 0
    chars = decode_utf8(b"".join(pieces))
    for piece in pieces:
        begin, end = end, end + len(piece)
        own = [char for char, first, last in chars if first < end and last > begin]
        flags.append(not is_punctuation_or_space("".join(own).encode()))
    return flags


def is_triggered(
    pieces: Sequence[bytes], probs: Sequence[float], *, trigger: str, theta: float,
    trigger_punctuation: bool, min_span_chars: int,
) -> bool:
    """Whether a draft asks for evidence; arguments as in ``FlareConfig``."""
    threshold = np.float32(theta)
    may = [trigger_punctuation or flag for flag in counts(pieces)]
    if trigger == "never" or (theta == 0.0 and trigger != "always"):
        return False
    if trigger == "always" or theta == 1.0:
        return any(may)
    low = [flag and np.float32(prob) < threshold for flag, prob in zip(may, probs, strict=True)]
    if trigger == "mean":
        counted = [float(prob) for flag, prob in zip(may, probs, strict=True) if flag]
        return bool(counted) and math.fsum(counted) / len(counted) < float(threshold)
    if trigger == "span":
        return any(
            len(b"".join(pieces[i:j]).decode("utf-8", "replace").strip()) >= min_span_chars
            for i in range(len(low)) for j in range(i + 1, len(low) + 1)
            if low[i] and low[j - 1] and all(low[n] or not may[n] for n in range(i, j)))
    return any(low)


def first_low_end(
    pieces: Sequence[bytes], probs: Sequence[float], *, theta: float, trigger_punctuation: bool
) -> int:
    """Tokens up to the first low one, its last character whole; 0 if there is none."""
    for n, flag in enumerate(counts(pieces)):
        below = theta == 1.0 or np.float32(probs[n]) < np.float32(theta)
        if below and (flag or trigger_punctuation):
            end = len(b"".join(pieces[: n + 1]))
            for _, first, last in decode_utf8(b"".join(pieces)):
                end = last if first < end < last else end
            return next(m for m in range(n + 1, len(pieces) + 1)
                        if len(b"".join(pieces[:m])) >= end)
    return 0


def choose_passages(
    found: Sequence[Any], *, policy: str, previous: Sequence[Any], first: Sequence[Any]
) -> list[Any]:
    """The passages to write with, in order; none if nothing usable was found.

    Parameters
    ----------
    found
        What the search gave, best first.
    policy
        ``FlareConfig.evidence_policy``.
    previous, first
        The passages of the last and of the initial retrieval.
    """
    staying = {"replace": [], "keep_first": list(first), "sticky": list(previous)}[policy]
    chosen: list[Any] = list(staying)
    new: list[Any] = []
    for passage in found:
        if not passage.text.split():
            continue
        same = [p for p in chosen + new
                if p.id == passage.id or p.text.split() == passage.text.split()]
        if not same:
            new.append(passage)
    if not any(passage.text.split() for passage in found):
        return []
    known = [p.id for p in previous]
    new.sort(key=lambda p: known.index(p.id) if p.id in known else len(known))
    return chosen + new
