"""All methods by name."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.controller import AnswerLoop
from flarecore.methods.decomposition import DecompositionLoop, asks_sub_question
from flarecore.methods.instruct import InstructLoop, bracket_tokens, writes_call
from flarecore.methods.marker import MarkerLoop, has_marker, marked_keywords
from flarecore.methods.preceding import PrecedingLoop
from flarecore.methods.prompts import decomposition_head, instruct_head, marker_head
from flarecore.methods.spec import COMMON, EVIDENCE, MethodSpec, OwnOption
from flarecore.methods.token_level import TokenLevelLoop
from flarecore.validation import check_int, check_number

__all__ = ["METHODS"]

_ALL = tuple(f.name for f in dataclasses.fields(FlareConfig))
# What no full draft has a use for: thresholds and masks.
_CONFIDENCE = frozenset({
    "theta", "beta", "trigger", "min_span_chars", "theta_inclusive", "theta_zero_always", "query",
    "span_gap", "mask_unit", "beta_inclusive"})
_MULTI = (*COMMON, *EVIDENCE, "evidence_policy", "initial_retrieval", "max_retrievals",
          "cooldown_sentences", "empty_query")
_WITHIN = tuple(name for name in _MULTI if name != "cooldown_sentences")
# Evidence stays in view of what is written next, until the next retrieval replaces it.
_IN_VIEW = {"trigger": "always", "draft_context": "last_evidence"}


def _previous_sentence(setup: AnswerSetup, own: Mapping[str, Any]) -> AnswerLoop:
    return PrecedingLoop(setup, "previous_sentence", "sentence")


def _previous_window(setup: AnswerSetup, own: Mapping[str, Any]) -> AnswerLoop:
    return PrecedingLoop(setup, "previous_window", "eos")


def _window(config: FlareConfig, own: Mapping[str, Any]) -> dict[str, Any]:
    # The window is the query as well, whole.
    size = own["window_tokens"]
    return {"max_draft_tokens": size, "max_query_tokens": max(size, config.max_query_tokens)}


def _marker(setup: AnswerSetup, own: Mapping[str, Any]) -> AnswerLoop:
    return MarkerLoop(setup)


def _instruct(setup: AnswerSetup, own: Mapping[str, Any]) -> AnswerLoop:
    return InstructLoop(setup, own["brackets"], own["call_bias"], own["quiet_tokens"])


def _decomposition(setup: AnswerSetup, own: Mapping[str, Any]) -> AnswerLoop:
    return DecompositionLoop(setup, own["max_questions"])


def _token_level(setup: AnswerSetup, own: Mapping[str, Any]) -> AnswerLoop:
    return TokenLevelLoop(setup)


def _no_omission(config: FlareConfig, own: Mapping[str, Any]) -> dict[str, Any]:
    if config.no_evidence == "omit":
        raise ConfigError(
            "no_evidence='omit': this method searches inside sentences and can leave none out; "
            "use 'accept_draft' or 'stop'")
    return {}


def _search_limit(config: FlareConfig, own: Mapping[str, Any]) -> dict[str, Any]:
    if config.query in ("question", "keywords"):
        raise ConfigError(
            f"query={config.query!r}: method 'token-level' searches with the text so far; use "
            "'mask', 'sentence' or a callable")
    limit = _MAX_SEARCHES if config.max_retrievals is None else config.max_retrievals
    return _no_omission(config, own) | {"max_retrievals": limit}


def _instruction(value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ConfigError(
            f"instruction must be a string that is not empty, or None for the method's own, got "
            f"{value!r:.80}")
    return value


_MAX_SEARCHES = 16  # of a token-level answer, unless max_retrievals says otherwise
_INSTRUCTION = OwnOption(
    None, _instruction, "instruction and exemplars in place of the method's own")

_SPECS = (
    MethodSpec(
        name="flare",
        description="FLARE-direct: a sentence whose draft is not confident is looked up",
        source="Jiang et al. 2023, section 3.2", needs_retriever=True, options=_ALL,
        has_boundary=True),
    MethodSpec(
        name="no-retrieval",
        description="the model alone",
        source="Jiang et al. 2023, section 4.1", needs_retriever=False, options=COMMON,
        fixed={"gate": "never"}),
    MethodSpec(
        name="single-retrieval",
        description="one search with the question, its passages stay in view",
        source="Jiang et al. 2023, section 4.1", needs_retriever=True,
        options=(*COMMON, *EVIDENCE), has_boundary=True,
        fixed={"trigger": "never", "initial_retrieval": True, "draft_context": "last_evidence"}),
    MethodSpec(
        name="previous-sentence",
        description="every sentence is written with the passages found by the one before it",
        source="Jiang et al. 2023, section 4.1 (as IRCoT, Trivedi et al. 2022)",
        needs_retriever=True, options=_MULTI, fixed=_IN_VIEW, loop=_previous_sentence),
    MethodSpec(
        name="previous-window",
        description="every n tokens are written with the passages found by the n before them",
        source="Jiang et al. 2023, section 4.1 (as IC-RALM, Ram et al. 2023, and RETRO)",
        needs_retriever=True,
        options=tuple(name for name in _MULTI if name not in ("max_draft_tokens", "max_sentences")),
        fixed=_IN_VIEW, loop=_previous_window, adjust=_window,
        own={"window_tokens": OwnOption(
            16, lambda value: check_int("window_tokens", value, 1),
            "n: tokens between two searches, and tokens of a query")}),
    MethodSpec(
        name="next-sentence",
        description="every sentence is drafted, looked up whole and written again",
        source="Jiang et al. 2023, section 5.2", needs_retriever=True, has_boundary=True,
        options=tuple(name for name in _ALL if name not in _CONFIDENCE),
        fixed={"trigger": "always", "query": "sentence"}),
    MethodSpec(
        name="question-decomposition",
        description="the model writes sub-questions, each is searched before it is answered",
        source="Jiang et al. 2023, section 4.1 (as self-ask, Press et al. 2022)",
        needs_retriever=True, options=_WITHIN,
        fixed={**_IN_VIEW, "trigger": asks_sub_question}, adjust=_no_omission,
        loop=_decomposition, head=decomposition_head,
        own={"max_questions": OwnOption(
                6, lambda value: check_int("max_questions", value, 1),
                "sub-questions after which the final answer is asked for"),
             "instruction": _INSTRUCTION}),
    MethodSpec(
        name="flare-instruct",
        description="the model writes [Search(query)] where it wants to look something up",
        source="Jiang et al. 2023, section 3.1", needs_retriever=True, options=_WITHIN,
        fixed={**_IN_VIEW, "trigger": writes_call}, adjust=_no_omission,
        loop=_instruct, head=instruct_head, prepare=bracket_tokens,
        own={"call_bias": OwnOption(
                2.0, lambda value: check_number("call_bias", value),
                "added to the logits of tokens that open a call"),
             "quiet_tokens": OwnOption(
                5, lambda value: check_int("quiet_tokens", value, 0),
                "tokens after a call that may not open a bracket"),
             "instruction": _INSTRUCTION}),
    MethodSpec(
        name="marker",
        description="a sentence that the model marks with [UNCERTAIN: keywords] is looked up",
        source="FLARE's loop without probabilities", needs_retriever=True, has_boundary=True,
        options=tuple(name for name in _ALL if name not in _CONFIDENCE | {"trigger_punctuation"}),
        fixed={"trigger": has_marker, "query": marked_keywords}, loop=_marker, head=marker_head,
        own={"instruction": _INSTRUCTION}),
    MethodSpec(
        name="token-level",
        description="the text is looked up at every token with a low confidence, and goes on there",
        source="the simple published loop of active retrieval", needs_retriever=True,
        options=(*_WITHIN, "theta", "beta", "theta_inclusive", "theta_zero_always",
                 "trigger_punctuation", "query", "mask_unit", "beta_inclusive"),
        fixed={**_IN_VIEW, "trigger": "token"}, adjust=_search_limit, loop=_token_level),
)

METHODS: Mapping[str, MethodSpec] = types.MappingProxyType({spec.name: spec for spec in _SPECS})
"""Every method by its name."""
