"""All methods by name."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

from flarecore.config import FlareConfig
from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.controller import AnswerLoop
from flarecore.methods.preceding import PrecedingLoop
from flarecore.methods.spec import COMMON, EVIDENCE, MethodSpec, OwnOption
from flarecore.validation import check_int

__all__ = ["METHODS"]

_ALL = tuple(f.name for f in dataclasses.fields(FlareConfig))
# What no full draft has a use for: thresholds and masks.
_CONFIDENCE = frozenset({
    "theta", "beta", "trigger", "min_span_chars", "theta_inclusive", "theta_zero_always", "query",
    "span_gap", "mask_unit", "beta_inclusive"})
_MULTI = (*COMMON, *EVIDENCE, "evidence_policy", "initial_retrieval", "max_retrievals",
          "cooldown_sentences", "empty_query")
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
)

METHODS: Mapping[str, MethodSpec] = types.MappingProxyType({spec.name: spec for spec in _SPECS})
"""Every method by its name."""
