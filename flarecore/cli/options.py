"""Options of the FLARE loop on the command line, with the paper's symbols."""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.presets import DATASETS
from flarecore.rules import DraftRule
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate
from flarecore.validation import check_int

__all__ = [
    "add_engine_options",
    "add_flare_options",
    "add_model_option",
    "add_quantize_option",
    "check_engine_options",
    "flare_config",
    "json_or_text",
    "option_flag",
    "parse_filter",
]

_FLOAT: dict[str, Any] = {"type": float, "metavar": "X"}
_INT: dict[str, Any] = {"type": int, "metavar": "N"}
_SWITCH: dict[str, Any] = {"action": argparse.BooleanOptionalAction}

# (field of FlareConfig, how argparse reads it, help)
_LOOP: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("gate", {"choices": ("never", "always")},
     "never: retrieve nothing; always: search with the question first, whatever else is set"),
    ("theta", _FLOAT, "θ: a sentence with a token whose confidence is below it is looked up"),
    ("beta", _FLOAT, "β: tokens with a confidence below it are left out of the query"),
    ("trigger", {"choices": ("min", "mean", "token", "span", "always", "never")},
     "what is below θ: any token, the mean, the first token (the draft stops there), or a span"),
    ("min_span_chars", _INT, "characters that a span below θ has at least"),
    ("theta_inclusive", _SWITCH, "look up at a confidence equal to θ, too (the authors' code)"),
    ("trigger_punctuation", _SWITCH, "punctuation and white space count, too"),
    ("query", {"choices": ("mask", "question", "sentence", "keywords")},
     "the draft without its tokens below β, questions or keywords by the model, or the draft"),
    ("span_gap", _INT, "tokens below β fewer than so many places apart are one question"),
    ("mask_unit", {"choices": ("auto", "word", "token")}, "what a low token takes out with it"),
    ("k", _INT, "passages per search"),
    ("min_score", _FLOAT, "leave out passages with a lower score"),
    ("max_passage_tokens", _INT, "tokens of one passage"),
    ("max_evidence_tokens", _INT, "tokens of all passages together"),
    ("placement", {"choices": ("prefix", "boundary", "parallel")},
     "where evidence stands: before the question (the paper), after the answer so far, or attached "
     "before the question, each passage encoded once on its own (an approximation)"),
    ("recompute_tokens", _INT,
     "parallel: so many tokens before the sentence are computed again with the passages in view"),
    ("evidence_policy", {"choices": ("replace", "keep_first", "sticky")},
     "passages of a sentence: of its search only, the question's as well, or of all searches"),
    ("draft_context", {"choices": ("none", "last_evidence")},
     "what drafts see: no passages (the paper) or those of the last search (the authors' code)"),
    ("initial_retrieval", _SWITCH, "search with the question before the first sentence"),
    ("no_evidence", {"choices": ("accept_draft", "omit", "stop")}, "what to do if none is found"),
    ("max_retrievals", _INT, "searches of one answer"),
    ("max_retrievals_per_sentence", _INT, "searches of one sentence"),
    ("cooldown_sentences", _INT, "sentences without a search after one with a search"),
    ("max_sentences", _INT, "sentences of the answer"),
    ("max_new_tokens", _INT, "tokens of the answer"),
    ("max_draft_tokens", _INT, "tokens of one sentence"),
    ("deadline_ms", _FLOAT, "end the answer after so many milliseconds"),
    ("deadline_policy", {"choices": ("drop", "accept_draft")},
     "what to do then with a draft that is finished and waits for evidence"),
    ("overflow", {"choices": ("error", "drop_oldest")}, "what to do if the context is too small"),
    ("stop", {"action": "append", "metavar": "TEXT"}, "text that ends the answer; may be repeated"),
    ("speculative", _SWITCH, "verify the draft's tokens while regenerating; same output"),
)
_SAMPLING: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("temperature", _FLOAT, "0 is greedy"),
    ("top_k", _INT, "0 is off"),
    ("top_p", _FLOAT, "1 is off"),
    ("min_p", _FLOAT, "0 is off"),
    ("repetition_penalty", _FLOAT, "1 is off"),
    ("seed", _INT, "of the random numbers"),
)
_RULES = (
    ("must", "must_retrieve", "look up a sentence with {}, however sure the model is"),
    ("never", "never_retrieve", "do not look up a sentence with {}, however unsure the model is"),
)
_PRESETS: dict[str, Callable[..., FlareConfig]] = {
    "default": FlareConfig,
    "paper": FlareConfig.paper,
    "authors_code": FlareConfig.authors_code,
    **{f"paper_{name}": functools.partial(FlareConfig.paper, name) for name in DATASETS},
    **{f"authors_code_{name}": functools.partial(FlareConfig.authors_code, name)
       for name in DATASETS},
}


def _add(
    group: argparse._ArgumentGroup, table: tuple[tuple[str, dict[str, Any], str], ...],
    defaults: object, only: tuple[str, ...] | None,
) -> None:
    for name, how, text in table:
        if only is None or name in only:
            default = getattr(defaults, name)
            shown = "" if default in (None, ()) else f" (default: {_shown(default)})"
            group.add_argument(
                f"--{name.replace('_', '-')}", default=None, help=text + shown, **how)


def _shown(default: object) -> str:
    return ("on" if default else "off") if isinstance(default, bool) else str(default)


def add_flare_options(
    parser: argparse.ArgumentParser, only: tuple[str, ...] | None = None,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Adds the options of :class:`FlareConfig` (those named in `only`, if given).

    Parameters
    ----------
    parser : argparse.ArgumentParser
    only : tuple of str, optional
        Fields; None adds all, the presets and the sampling options.
    defaults : mapping of str to object
        The command's own, as it gives them to :func:`flare_config`.
    """
    group = parser.add_argument_group("the FLARE loop (symbols as in arXiv 2305.06983)")
    if only is None:
        group.add_argument(
            "--preset", choices=sorted(_PRESETS), default="default", metavar="NAME",
            help="where the other options start from: paper and authors_code are FLARE-direct as "
                 f"published and as released; one of {', '.join(sorted(_PRESETS))} (default: "
                 "default)")
    _add(group, _LOOP, FlareConfig(**defaults), only)
    if only is None:
        for name, _, text in _RULES:
            group.add_argument(f"--{name}-term", action="append", metavar="TEXT",
                               help=text.format("these words") + "; may be repeated")
            group.add_argument(f"--{name}-pattern", action="append", metavar="REGEX",
                               help=text.format("a match of it") + "; may be repeated")
        group.add_argument("--template", metavar="FILE",
                           help="pieces of the prompt, a JSON object such as "
                                "'{\"kind\": \"base\", \"passage\": \"{title}: {text}\\n\"}'")
        _add(parser.add_argument_group("sampling"), _SAMPLING, SamplingParams(), None)


def add_model_option(
    parser: argparse.ArgumentParser, *, required: bool = False, default: str | None = None
) -> None:
    """Adds ``--model``."""
    shown = "" if default is None else f" (default: {default})"
    parser.add_argument("--model", required=required, default=default, metavar="NAME_OR_PATH",
                        help="a name such as smollm2-135m, a .gguf file, or a directory with "
                        f"config.json, tokenizer.json and safetensors files{shown}")


def add_quantize_option(group: argparse._ActionsContainer) -> None:
    """Adds ``--quantize``."""
    group.add_argument("--quantize", choices=("q4", "q8"),
                       help="quantise F32, F16 and BF16 weights at load, to 4 bits (embedding and "
                       "head: 8) or 8 bits a weight")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of model and engine."""
    group = parser.add_argument_group("model")
    group.add_argument("--threads", type=int, metavar="N",
                       help="threads (default: those this process may use)")
    group.add_argument("--compute", choices=("int8", "float32"), default="int8",
                       help="arithmetic: quantised, or exact and slower (default: int8)")
    add_quantize_option(group)
    group.add_argument("--kv-cache-mb", type=int, metavar="N",
                       help="memory for the KV cache (default: a few full contexts)")


def flare_config(args: argparse.Namespace, **changes: Any) -> FlareConfig:
    """The configuration that was asked for; `changes` are this command's own defaults.

    Raises
    ------
    ConfigError
        A value is out of range.
    """
    given = {name: value for name, _, _ in _LOOP
             if (value := getattr(args, name, None)) is not None}
    sampling = {name: value for name, _, _ in _SAMPLING
                if (value := getattr(args, name, None)) is not None}
    if sampling:
        given["sampling"] = SamplingParams(**sampling)
    if "stop" in given:
        given["stop"] = tuple(given["stop"])
    for name, option, _ in _RULES:
        terms = getattr(args, f"{name}_term", None) or ()
        patterns = getattr(args, f"{name}_pattern", None) or ()
        if terms or patterns:
            given[option] = _rule(name, terms, patterns)
    if getattr(args, "template", None) is not None:
        given["template"] = PromptTemplate.load(args.template)
    return _PRESETS[getattr(args, "preset", "default")](**changes | given)


def _rule(name: str, terms: Sequence[str], patterns: Sequence[str]) -> DraftRule:
    """A rule from ``--NAME-term`` and ``--NAME-pattern``. Raises ConfigError in their words."""
    try:
        return DraftRule(terms=tuple(terms), patterns=tuple(patterns))
    except ConfigError as error:
        text = re.sub(r"DraftRule\.(term|pattern)s\[\d+\]", rf"--{name}-\1", str(error))
        raise ConfigError(text.replace("put it into terms", f"use --{name}-term")) from None


def option_flag(name: str) -> str:
    """The option of the command line that sets a field of FlareConfig."""
    rule = next((rule for rule, option, _ in _RULES if option == name), None)
    if rule is not None:
        return f"--{rule}-term or --{rule}-pattern"
    return f"--{name.replace('_', '-')}"


def check_engine_options(args: argparse.Namespace) -> None:
    """Checks what :func:`add_engine_options` added, before anything is read or loaded.

    Raises
    ------
    ConfigError
        A number is out of range.
    """
    if args.kv_cache_mb is not None:
        check_int("--kv-cache-mb", args.kv_cache_mb, 1)
    if args.threads is not None:
        check_int("--threads", args.threads, 1, 1024)


def json_or_text(text: str) -> Any:
    """The JSON value that a text spells, or the text where it spells none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parse_filter(text: str | None) -> dict[str, Any] | None:
    """Metadata conditions from ``--filter``.

    Raises
    ------
    ConfigError
        Not a JSON object.
    """
    if text is None:
        return None
    try:
        conditions = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--filter: not JSON: {error}; got {text!r:.100}") from None
    if not isinstance(conditions, dict):
        raise ConfigError(
            f"--filter: must be a JSON object such as '{{\"lang\": \"en\"}}', got {text!r:.100}")
    return conditions
