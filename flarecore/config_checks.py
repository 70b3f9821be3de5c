"""What the values of FlareConfig's options may be, and their way to JSON and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from flarecore.callables import check_callable
from flarecore.errors import ConfigError
from flarecore.rules import DraftRule
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate
from flarecore.validation import (
    check_bool,
    check_choice,
    check_int,
    check_number,
    check_optional_int,
    check_strings,
)

__all__ = ["THETA_TRIGGERS", "checked_options", "read_options", "written_options"]

THETA_TRIGGERS = ("min", "mean", "token", "span")
"""Triggers that compare confidences with θ."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "gate": ("never", "always"),
    "trigger": (*THETA_TRIGGERS, "always", "never"),
    "query": ("mask", "question", "sentence", "keywords"),
    "mask_unit": ("auto", "word", "token"),
    "empty_query": ("question", "accept_draft"),
    "placement": ("prefix", "boundary", "parallel"),
    "evidence_policy": ("replace", "keep_first", "sticky"),
    "draft_context": ("none", "last_evidence"),
    "no_evidence": ("accept_draft", "omit", "stop"),
    "deadline_policy": ("drop", "accept_draft"),
    "overflow": ("error", "drop_oldest"),
}
_CALLABLE = frozenset({"gate", "trigger", "query", "no_evidence"})
_BOOLS = (
    "theta_inclusive", "theta_zero_always", "trigger_punctuation", "beta_inclusive",
    "initial_retrieval", "speculative")
_INTS = {
    "min_span_chars": 1, "span_gap": 0, "max_query_tokens": 1, "k": 1, "max_passage_tokens": 1,
    "max_evidence_tokens": 1, "max_draft_tokens": 1, "max_new_tokens": 1,
    "max_retrievals_per_sentence": 0, "cooldown_sentences": 0}
_LIMITS = {"max_retrievals": 0, "max_sentences": 1, "recompute_tokens": 1}
_RULES = ("must_retrieve", "never_retrieve")
_OBJECTS: dict[str, Any] = {"sampling": SamplingParams, "template": PromptTemplate}


def checked_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that may need another type, converted, once all are known to be right.

    Raises
    ------
    ConfigError
        A value is of the wrong type or out of range, or two of them exclude each other.
    """
    for name in _CHOICES:
        _check_kind(name, values[name])
    for name in _BOOLS:
        check_bool(name, values[name])
    for name in _RULES:
        _check_rule(name, values[name])
    for name, kind in _OBJECTS.items():
        if not isinstance(values[name], kind) and not (
                name == "template" and values[name] is None):
            raise ConfigError(
                f"{name} must be a {kind.__name__}, got {type(values[name]).__name__}")
    put: dict[str, Any] = {
        name: check_number(name, values[name], 0.0, 1.0) for name in ("theta", "beta")}
    put |= {name: check_int(name, values[name], low) for name, low in _INTS.items()}
    put |= {name: check_optional_int(name, values[name], low) for name, low in _LIMITS.items()}
    if values["min_score"] is not None:
        put["min_score"] = check_number("min_score", values["min_score"])
    if values["deadline_ms"] is not None:
        put["deadline_ms"] = check_number("deadline_ms", values["deadline_ms"], 0.0, open_low=True)
    put["stop"] = check_strings("stop", values["stop"])
    if values["gate"] == "always" and put["max_retrievals"] == 0:
        raise ConfigError("gate='always' asks for a search that max_retrievals=0 forbids")
    return put


def _check_kind(name: str, value: object) -> None:
    if name in _CALLABLE and callable(value):
        check_callable(name, value)
        return
    if name == "gate" and value is None:
        return
    built = _CHOICES[name]
    also = " (or None, or a callable)" if name == "gate" else (
        " (or a callable)" if name in _CALLABLE else "")
    check_choice(name + also, value, built)


def _check_rule(name: str, value: object) -> None:
    if value is None or isinstance(value, DraftRule):
        return
    if callable(value):
        check_callable(name, value)
    else:
        hint = "; say DraftRule(terms=[...]) or DraftRule(patterns=[...])" \
            if isinstance(value, (str, list, tuple, set)) else ""
        raise ConfigError(
            f"{name} must be a DraftRule, a callable or None, got {type(value).__name__}{hint}")


def read_options(data: Mapping[str, Any]) -> dict[str, Any]:
    """Options from JSON values: objects become what they stand for."""
    kinds: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        name: kind.from_dict for name, kind in _OBJECTS.items()}
    kinds |= dict.fromkeys(_RULES, DraftRule.from_dict)
    return {name: kinds[name](value) if name in kinds and isinstance(value, Mapping) else value
            for name, value in data.items()}


def written_options(config: Any) -> dict[str, Any]:
    """JSON values of all options; a callable is only named."""
    values: dict[str, Any] = {}
    for name in (f.name for f in dataclasses.fields(config)):
        value = getattr(config, name)
        if isinstance(value, (SamplingParams, PromptTemplate, DraftRule)):
            value = value.to_dict()
        elif callable(value):
            value = f"callable:{getattr(value, '__name__', type(value).__name__)}"
        values[name] = list(value) if isinstance(value, tuple) else value
    return values
