"""What the page needs to know of a trace, whatever the file says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flarecore.errors import ConfigError
from flarecore.trace import PassTrace, RetrievalTrace, SentenceTrace, Trace
from flarecore.wording import content_words

__all__ = ["Settings", "check_trace", "rounds", "shown_value", "used_passages", "words_found"]


@dataclass(frozen=True)
class Settings:
    """Thresholds and rules.

    Parameters
    ----------
    theta, beta : float or None
        None where the configuration has no such number.
    trigger : str
        Name of the rule.
    scope : str or None
        What stands before every query.
    """

    theta: float | None
    beta: float | None
    trigger: str
    scope: str | None

    @classmethod
    def of(cls, trace: Trace) -> Settings:
        """Those of an answer."""
        config = trace.config
        return cls(_number(config, "theta"), _number(config, "beta"),
                   shown_value(config.get("trigger", "unknown")), trace.scope)

    @property
    def equals_theta(self) -> str:
        """`` = 0.8``, or nothing."""
        return "" if self.theta is None else f" = {self.theta:g}"


def _number(config: Mapping[str, Any], name: str) -> float | None:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        return None
    return float(value)


def shown_value(value: object) -> str:
    """An option's value for people."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def rounds(sentence: SentenceTrace) -> list[tuple[RetrievalTrace, PassTrace | None]]:
    """Each search for a sentence with the pass written with its passages, if there was one."""
    passes = iter(sentence.regenerations)
    return [(search, next(passes, None) if _is_usable(search) else None)
            for search in sentence.retrievals]


def _is_usable(search: RetrievalTrace) -> bool:
    return search.num_evidence_tokens > 0


def used_passages(search: RetrievalTrace) -> str:
    """Titles and texts of a search's passages that were in view."""
    return "\n".join(f"{p.title}\n{p.text}" for p in search.passages if p.num_tokens > 0)


def words_found(trace: Trace) -> tuple[int, int]:
    """Content words of the sentences written again: those that the passages have, and all."""
    num_found = num_words = 0
    for sentence in trace.sentences:
        written = [(search, after) for search, after in rounds(sentence) if after is not None]
        if sentence.outcome == "regenerated" and written:
            words = content_words([sentence.text])
            num_words += len(words)
            num_found += len(words & content_words([used_passages(written[-1][0])]))
    return num_found, num_words


def check_trace(trace: Trace) -> None:
    """Checks what the types of a trace do not say: lists about the same tokens are equally long.

    Raises
    ------
    ConfigError
        They are not; the message gives the place.
    """
    for at, sentence in enumerate(trace.sentences):
        where = f"trace.sentences[{at}]"
        _check_pass(f"{where}.draft", sentence.draft)
        for i, again in enumerate(sentence.regenerations):
            _check_pass(f"{where}.regenerations[{i}]", again)
        if sentence.completion is not None:
            _check_pass(f"{where}.completion", sentence.completion)
        asked = sentence.draft
        for i, (search, after) in enumerate(rounds(sentence)):
            if search.kept is not None:
                _check_length(f"{where}.retrievals[{i}].kept", len(search.kept),
                              len(asked.token_ids))
            asked = after or asked


def _check_pass(where: str, trace: PassTrace) -> None:
    for name in ("tokens", "probs", "low"):
        _check_length(f"{where}.{name}", len(getattr(trace, name)), len(trace.token_ids))


def _check_length(where: str, got: int, expected: int) -> None:
    if got != expected:
        raise ConfigError(f"{where} must have one value for each of the {expected} tokens in "
                          f"token_ids, got {got}; the trace is damaged")
