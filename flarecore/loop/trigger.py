"""Whether a sentence asks for evidence (paper section 3.2.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flarecore.callables import call_option
from flarecore.config import FlareConfig
from flarecore.config_checks import THETA_TRIGGERS
from flarecore.errors import ConfigError
from flarecore.loop.candidate import Candidate
from flarecore.rules import DraftRule
from flarecore.text import is_punctuation_or_space
from flarecore.trace_parts import RuleTrace

__all__ = ["Judgement", "judge", "low_tokens", "stop_below"]

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Judgement:
    """What was found about a sentence of n tokens.

    Parameters
    ----------
    low : numpy.ndarray
        (n,) tokens with a confidence below θ, those that may not trigger left out.
    triggered : bool
        Whether to retrieve for it.
    rule : RuleTrace or None
        The rule that decided so; None: the trigger.
    """

    low: Flags
    triggered: bool
    rule: RuleTrace | None


def judge(candidate: Candidate, config: FlareConfig, *, is_draft: bool) -> Judgement:
    """Asks the rules, and the trigger where none of them holds.

    Parameters
    ----------
    candidate : Candidate
        The sentence.
    config : FlareConfig
        Trigger, θ and rules.
    is_draft : bool
        ``must_retrieve`` goes for drafts only: a regeneration has been looked up.

    Raises
    ------
    ConfigError
        A callable returned something else than a bool.
    CallbackError
        A callable raised.
    """
    counted = _counted_tokens(candidate, config)
    low = counted & _below_theta(candidate.probs, config)
    if not candidate.token_ids:
        return Judgement(low, False, None)
    rule = _holds("must_retrieve", candidate, config) if is_draft else None
    if rule is not None:
        return Judgement(low, True, rule)
    rule = _holds("never_retrieve", candidate, config)
    if rule is not None:
        return Judgement(low, False, rule)
    return Judgement(low, _triggers(candidate, config, low, counted), None)


def low_tokens(candidate: Candidate, config: FlareConfig) -> Flags:
    """(n,) tokens with a confidence below θ, those that may not trigger left out."""
    return _counted_tokens(candidate, config) & _below_theta(candidate.probs, config)


def stop_below(config: FlareConfig) -> float | None:
    """The confidence below which a token ends a draft; None where none does.

    Exact in float32: ``p <= θ`` is the same as ``p <`` the number after θ.
    """
    if config.trigger != "token" or (config.theta == 0.0 and not config.theta_zero_always):
        return None
    if config.theta in (0.0, 1.0):
        return 2.0  # always: any token
    theta = np.float32(config.theta)
    return float(np.nextafter(theta, np.float32(2.0)) if config.theta_inclusive else theta)


def _below_theta(probs: npt.NDArray[np.float32], config: FlareConfig) -> Flags:
    # In float32, the type confidences have, so that a confidence equal to θ is found equal.
    theta = np.float32(config.theta)
    below: Flags = probs <= theta if config.theta_inclusive else probs < theta
    return below


def _counted_tokens(candidate: Candidate, config: FlareConfig) -> Flags:
    """(n,) tokens that may trigger."""
    if config.trigger_punctuation:
        return np.ones(len(candidate.token_ids), dtype=np.bool_)
    return np.array(
        [not special and not is_punctuation_or_space(_whole_characters(candidate, index))
         for index, special in enumerate(candidate.is_special)], dtype=np.bool_)


def _triggers(candidate: Candidate, config: FlareConfig, low: Flags, counted: Flags) -> bool:
    trigger = config.trigger
    if callable(trigger):
        return _bool("trigger", call_option("trigger", trigger, candidate))
    if trigger == "never":
        return False
    # θ = 1 means always, also where a confidence rounds to 1.
    always = trigger == "always" or config.theta == 1.0
    if config.theta == 0.0 and trigger in THETA_TRIGGERS:
        always = config.theta_zero_always
        if not always:
            return False
    if always:
        return bool(counted.any())
    if trigger == "mean":
        return _is_mean_low(candidate.probs[counted], config)
    if trigger == "span":
        return _longest_low_run(candidate, low, counted) >= config.min_span_chars
    return bool(low.any())


def _is_mean_low(probs: npt.NDArray[np.float32], config: FlareConfig) -> bool:
    if not probs.size:
        return False
    # Exact sum: the order of the tokens must not decide, and equal confidences have their mean.
    mean = math.fsum(probs.tolist()) / probs.size
    theta = float(np.float32(config.theta))
    return mean <= theta if config.theta_inclusive else mean < theta


def _longest_low_run(candidate: Candidate, low: Flags, counted: Flags) -> int:
    """Characters of the longest run of low tokens, from its first to its last one.

    Tokens that may not trigger (punctuation, white space) neither belong to a run by themselves
    nor end one, but special tokens do.
    """
    longest, begin = 0, -1
    for index in range(len(low)):
        if low[index]:
            begin = index if begin < 0 else begin
            data = b"".join(candidate.token_bytes[begin:index + 1])
            longest = max(longest, len(data.decode("utf-8", "replace").strip()))
        elif counted[index] or candidate.is_special[index]:
            begin = -1
    return longest


def _holds(name: str, candidate: Candidate, config: FlareConfig) -> RuleTrace | None:
    """The named rule, if there is one and it holds for the sentence."""
    rule = getattr(config, name)
    if isinstance(rule, DraftRule):
        hit = rule.find(candidate.text)
        return None if hit is None else RuleTrace(name, hit.kind, hit.entry, hit.text)
    if rule is not None and _bool(name, call_option(name, rule, candidate)):
        return RuleTrace(name, "callable", getattr(rule, "__name__", type(rule).__name__), "")
    return None


def _bool(name: str, answer: object) -> bool:
    if not isinstance(answer, (bool, np.bool_)):
        raise ConfigError(
            f"{name}: the callable must return a bool, got {type(answer).__name__}")
    return bool(answer)


def _whole_characters(candidate: Candidate, index: int) -> bytes:
    """The characters that a token holds a byte of."""
    pieces = candidate.token_bytes
    before, own = b"".join(pieces[:index])[-3:], pieces[index]
    if not own:
        return b""
    begin = len(before)
    text = before + own + b"".join(pieces[index + 1:index + 4])
    end = begin + len(own)
    while begin > 0 and _continues(text[begin]):
        begin -= 1
    lead = next((at for at in range(end - 1, max(end - 4, -1), -1) if not _continues(text[at])),
                None)
    while lead is not None and end - lead < _length(text[lead]) and end < len(text) \
            and _continues(text[end]):
        end += 1
    return text[begin:end]


def _continues(byte: int) -> bool:
    """Whether a byte is a UTF-8 continuation byte."""
    return byte & 0xC0 == 0x80


def _length(lead: int) -> int:
    """Bytes of the character that begins with this one."""
    return 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1
