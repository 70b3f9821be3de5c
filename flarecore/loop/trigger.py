"""Whether a sentence asks for evidence (design 3.2, paper section 3.2.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.loop.candidate import Candidate
from flarecore.text import is_punctuation_or_space

__all__ = ["low_tokens", "triggers"]


def low_tokens(candidate: Candidate, config: FlareConfig) -> npt.NDArray[np.bool_]:
    """(n,) tokens with a confidence below θ, those that may not trigger left out.

    The comparison is in float32, the type confidences have, so that a confidence equal to θ is
    found equal.
    """
    theta = np.float32(config.theta)
    probs = candidate.probs
    low: npt.NDArray[np.bool_] = probs <= theta if config.theta_inclusive else probs < theta
    if not config.trigger_punctuation:
        for index in np.flatnonzero(low):
            if is_punctuation_or_space(_whole_characters(candidate.token_bytes, int(index))):
                low[index] = False
    return low


def triggers(
    candidate: Candidate, config: FlareConfig, low: npt.NDArray[np.bool_]
) -> bool:
    """Whether to retrieve for the sentence; `low` is what :func:`low_tokens` gave for it.

    Raises
    ------
    ConfigError
        A callable returned something else than a bool.
    """
    if not candidate.token_ids:
        return False
    trigger = config.trigger
    if callable(trigger):
        answer = trigger(candidate)
        if not isinstance(answer, (bool, np.bool_)):
            raise ConfigError(
                f"trigger: the callable must return a bool, got {type(answer).__name__}")
        return bool(answer)
    if trigger == "never":
        return False
    # θ = 1 means always, also where a confidence rounds to 1.
    always = trigger == "always" or config.theta == 1.0
    if config.theta == 0.0 and trigger == "min":
        always = config.theta_zero_always
        if not always:
            return False
    if always:
        whole = b"".join(candidate.token_bytes)
        return config.trigger_punctuation or not is_punctuation_or_space(whole)
    return bool(low.any())


def _whole_characters(token_bytes: tuple[bytes, ...], index: int) -> bytes:
    """The bytes of a token with the rest of the characters it holds a part of."""
    begin, end = index, index + 1
    while begin > 0 and token_bytes[begin] and _continues(token_bytes[begin][0]):
        begin -= 1
    while end < len(token_bytes) and token_bytes[end] and _continues(token_bytes[end][0]):
        end += 1
    return b"".join(token_bytes[begin:end])


def _continues(byte: int) -> bool:
    """Whether a byte is a UTF-8 continuation byte."""
    return byte & 0xC0 == 0x80
