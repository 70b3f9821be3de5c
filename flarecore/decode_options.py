"""Options of a decode, and the checks on what goes into the native core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from flarecore.errors import ConfigError
from flarecore.sampling import SamplingParams
from flarecore.validation import (
    check_bool,
    check_choice,
    check_int,
    check_number,
    check_strings,
    unknown_name,
)

__all__ = ["MAX_INT32", "DecodeOptions", "TokenIds", "check_beta", "check_deadline",
           "check_theta", "check_token_ids", "decode_arguments"]

TokenIds = Sequence[int]
MAX_INT32 = 2**31 - 1
_MAX_UINT32 = 2**32 - 1


class DecodeOptions(TypedDict, total=False):
    """Options of :meth:`Sequence.decode` and :meth:`Sequence.regenerate`.

    Attributes
    ----------
    sampling : SamplingParams
        Greedy by default.
    until : {"sentence", "eos"}
        Where to stop at the latest. With ``"sentence"`` (default) the sequence ends exactly at the
        sentence's end; a token looked at to find it begins the next decode.
    stop : sequence of str
        Text that ends the decode and is cut off. It may begin in one token and end in another.
    theta : float
        Trigger threshold: ``Decoded.triggered`` tells whether a confidence is below it.
    beta : float
        Mask threshold: ``Decoded.mask`` marks tokens with a confidence below it.
    stop_below : float
        The first token with a confidence below it ends the decode, as ``"low_confidence"``; it is
        the last token of the result, or, inside a character, the token that ends the character.
        None and 0 stop at no token, a number above 1 at any. Only a token of this sentence counts:
        where it stands behind a possible end of the sentence, decoding goes on until that is clear.
    stop_at_punctuation : bool
        `stop_below` goes for special tokens and for those of only punctuation or white space, too.
    pass_index : int
        Which random numbers are drawn: 0 for a draft, 1 (default) for a regeneration.
    proposal : sequence of int
        Guessed continuation. It is verified in the same forward passes: the result is the same with
        or without it, only faster if it is right.
    lookup : sequence of int
        Text whose wording may recur (evidence, question). Where the last tokens are found in it, or
        in the proposal, what follows there is proposed next.
    ignore_eos : bool
        Decode through end-of-text tokens.
    deadline_ms : float
        Fails with DeadlineExceeded when this many milliseconds have passed.
    """

    sampling: SamplingParams
    until: str
    stop: Sequence[str]
    theta: float | None
    beta: float | None
    stop_below: float | None
    stop_at_punctuation: bool
    pass_index: int
    proposal: TokenIds
    lookup: TokenIds
    ignore_eos: bool
    deadline_ms: float | None


_DECODE_DEFAULTS: dict[str, Any] = {
    "sampling": SamplingParams(), "until": "sentence", "stop": (), "theta": None, "beta": None,
    "stop_below": None, "stop_at_punctuation": False, "pass_index": 1, "proposal": (),
    "lookup": (), "ignore_eos": False, "deadline_ms": None}


def check_token_ids(where: str, token_ids: Iterable[int]) -> list[int]:
    """`token_ids` as a list; the core checks them against the vocabulary.

    Raises
    ------
    ConfigError
        It holds something that is no token id.
    """
    try:
        ids = np.asarray(list(token_ids))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} must be a sequence of token ids: {error}") from None
    if ids.size == 0:
        return []
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ConfigError(f"{where} must be a flat sequence of integers, got values of type "
                          f"{ids.dtype} and shape {ids.shape}")
    values: list[int] = ids.tolist()
    largest = max(values, key=abs)
    if abs(largest) > MAX_INT32:
        raise ConfigError(f"{where} holds {largest}, no token id is that large")
    return values


def check_beta(beta: float | None) -> float:
    """β as the core takes it: 0 masks nothing."""
    return 0.0 if beta is None else check_number("beta", beta, 0.0, 1.0)


def check_theta(theta: float | None) -> float | None:
    """θ, or None for no test."""
    return None if theta is None else check_number("theta", theta, 0.0, 1.0)


def check_deadline(deadline_ms: float | None) -> float | None:
    """Milliseconds, or None for no deadline."""
    return None if deadline_ms is None else check_number("deadline_ms", deadline_ms)


def decode_arguments(
    evidence_ids: TokenIds, max_tokens: int, options: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Arguments of the native ``Sequence.decode``, checked.

    Raises
    ------
    ConfigError
        An option is unknown, of the wrong type or out of range.
    """
    unknown = set(options) - set(_DECODE_DEFAULTS)
    if unknown:
        raise unknown_name("decode", unknown, _DECODE_DEFAULTS)
    chosen = {**_DECODE_DEFAULTS, **options}
    sampling = chosen["sampling"]
    if not isinstance(sampling, SamplingParams):
        raise ConfigError(f"sampling must be SamplingParams, got {type(sampling).__name__}")
    stop_below = chosen["stop_below"]
    return (
        check_token_ids("evidence_ids", evidence_ids),
        check_int("max_tokens", max_tokens, 1, MAX_INT32),
        {**sampling.to_dict(), "logit_bias": dict(sampling.logit_bias)},
        check_choice("until", chosen["until"], ("sentence", "eos")) == "sentence",
        check_bool("ignore_eos", chosen["ignore_eos"]),
        list(check_strings("stop", chosen["stop"])),
        check_beta(chosen["beta"]),
        0.0 if stop_below is None else check_number("stop_below", stop_below, 0.0),
        check_bool("stop_at_punctuation", chosen["stop_at_punctuation"]),
        check_int("pass_index", chosen["pass_index"], 0, _MAX_UINT32),
        check_token_ids("proposal", chosen["proposal"]),
        check_token_ids("lookup", chosen["lookup"]),
        check_deadline(chosen["deadline_ms"]),
    )
