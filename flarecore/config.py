"""Options of the FLARE loop, with the paper's symbols (Jiang et al., arXiv 2305.06983)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flarecore.errors import ConfigError, UnsupportedError
from flarecore.loop.candidate import Candidate
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate
from flarecore.validation import (
    check_bool,
    check_choice,
    check_int,
    check_number,
    check_optional_int,
    check_strings,
    named_options,
    unknown_name,
)

__all__ = ["FlareConfig", "NoEvidenceFn", "QueryFn", "TriggerFn"]

TriggerFn = Callable[[Candidate], bool]
"""Whether a sentence needs evidence."""

QueryFn = Callable[[Candidate], str]
"""The query for a sentence; white space only counts as empty."""

NoEvidenceFn = Callable[[Candidate | None], str]
"""``accept_draft``, ``omit`` or ``stop``; the argument is None at the initial retrieval."""

# option -> (choices that are built, choices of the design that are not)
_CHOICES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "trigger": (("min", "always", "never"), ("mean", "token", "span")),
    "query": (("mask", "sentence"), ("question", "keywords")),
    "mask_unit": (("auto", "word", "token"), ()),
    "empty_query": (("question", "accept_draft"), ()),
    "placement": (("prefix", "boundary"), ("parallel",)),
    "evidence_policy": (("replace",), ("keep_first", "sticky")),
    "draft_context": (("none", "last_evidence"), ()),
    "no_evidence": (("accept_draft", "omit", "stop"), ()),
    "overflow": (("error", "drop_oldest"), ()),
}
_CALLABLE = frozenset({"trigger", "query", "no_evidence"})
_BOOLS = (
    "theta_inclusive", "theta_zero_always", "trigger_punctuation", "beta_inclusive",
    "initial_retrieval", "speculative")
_POSITIVE = (
    "max_query_tokens", "k", "max_passage_tokens", "max_evidence_tokens", "max_draft_tokens",
    "max_new_tokens")
_AT_LEAST_ZERO = ("max_retrievals_per_sentence", "cooldown_sentences")
_LIMITS = (("max_retrievals", 0), ("max_sentences", 1))


@named_options
@dataclass(frozen=True, kw_only=True)
class FlareConfig:
    """Options of one answer.

    Parameters
    ----------
    theta : float
        θ in [0, 1]: a sentence triggers a retrieval if the confidence of any of its tokens is
        below it, compared in float32. 0 never retrieves, 1 always does.
    beta : float
        β in [0, 1]: tokens with a confidence below it are left out of the query.
    trigger : {"min", "always", "never"} or callable
        ``min`` is the test with θ.
    theta_inclusive : bool
        Trigger at a confidence equal to θ as well (authors' code).
    theta_zero_always : bool
        θ = 0 always retrieves (authors' code).
    trigger_punctuation : bool
        Let tokens trigger that are only punctuation or white space. A sentence of nothing else
        triggers only with this option, whatever θ and `trigger` (except a callable) say.
    query : {"mask", "sentence"} or callable
        ``mask``: the draft without its tokens below β. ``sentence``: the whole draft.
    mask_unit : {"auto", "word", "token"}
        What a low token takes with it; ``auto`` is the whole word in scripts with spaces.
    beta_inclusive : bool
        Leave out tokens with a confidence equal to β as well (authors' code).
    empty_query : {"question", "accept_draft"}
        What to do if no word is left: search with the question, or accept without a search.
    max_query_tokens : int
        The last tokens of the query that are kept. `scope` comes on top.
    k : int
        Passages per search.
    min_score : float or None
        Passages with a lower score are not used.
    max_passage_tokens : int
        Tokens of a passage's text.
    max_evidence_tokens : int
        Tokens of all rendered passages together.
    placement : {"prefix", "boundary"}
        Where evidence stands: before the question (the paper; question and answer so far are
        computed again), or after the answer so far (only evidence is computed).
    evidence_policy : {"replace"}
        Only the passages of the step's own retrieval are in view.
    draft_context : {"none", "last_evidence"}
        Whether drafts see the passages of the last retrieval (authors' code) or none (the paper).
        The draft of the first sentence sees those of the initial retrieval in both cases.
    initial_retrieval : bool
        Search with the question before the first sentence.
    no_evidence : {"accept_draft", "omit", "stop"} or callable
        What to do if no usable passage was found: accept the sentence (flagged), leave it out of
        the text (the model still sees it, else it would write it again), or end the answer.
    max_retrievals, max_retrievals_per_sentence, cooldown_sentences : int
        Further retrievals are left out, and the sentence is accepted and flagged with the
        option's name: after so many searches in all (None: no limit; the initial one counts), so
        many for one sentence (the initial one does not count), and for so many sentences after
        one with a retrieval.
    max_sentences, max_new_tokens, deadline_ms : int, int, float
        End the answer, with the option's name (``deadline`` for the last) as stop reason.
    max_draft_tokens : int
        A sentence is cut there.
    overflow : {"error", "drop_oldest"}
        ``error``: refuse a prompt if the fullest possible context would not fit the model.
        ``drop_oldest``: refuse only what leaves no room for one sentence; later, leave passages
        out, those longest in the context first, and end the answer (``context_length``) when
        there is no room without any.
    stop : tuple of str
        Strings that end the answer; the text ends before them.
    sampling : SamplingParams
        How tokens are chosen.
    speculative : bool
        Offer the regeneration the draft as a proposal, and evidence and question for looking up
        how it may go on (design 3.6). The output is the same.
    template : PromptTemplate or None
        None: ``PromptTemplate.chat()`` if the model has a chat template, else ``.base()``.

    Raises
    ------
    ConfigError
        An option is unknown, of the wrong type or out of range.
    UnsupportedError
        A value of the design that is not built.
    """

    theta: float = 0.8
    beta: float = 0.4
    trigger: str | TriggerFn = "min"
    theta_inclusive: bool = False
    theta_zero_always: bool = False
    trigger_punctuation: bool = False
    query: str | QueryFn = "mask"
    mask_unit: str = "auto"
    beta_inclusive: bool = False
    empty_query: str = "question"
    max_query_tokens: int = 64
    k: int = 3
    min_score: float | None = None
    max_passage_tokens: int = 160
    max_evidence_tokens: int = 512
    placement: str = "prefix"
    evidence_policy: str = "replace"
    draft_context: str = "none"
    initial_retrieval: bool = True
    no_evidence: str | NoEvidenceFn = "accept_draft"
    max_retrievals: int | None = None
    max_retrievals_per_sentence: int = 1
    cooldown_sentences: int = 0
    max_sentences: int | None = None
    max_new_tokens: int = 256
    deadline_ms: float | None = None
    max_draft_tokens: int = 64
    overflow: str = "error"
    stop: tuple[str, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculative: bool = True
    template: PromptTemplate | None = None

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name in ("theta", "beta"):
            put(name, check_number(name, getattr(self, name), 0.0, 1.0))
        for name in _CHOICES:
            _check_kind(name, getattr(self, name))
        for name in _BOOLS:
            check_bool(name, getattr(self, name))
        for name in _POSITIVE:
            put(name, check_int(name, getattr(self, name), 1))
        for name in _AT_LEAST_ZERO:
            put(name, check_int(name, getattr(self, name), 0))
        for name, low in _LIMITS:
            put(name, check_optional_int(name, getattr(self, name), low))
        if self.min_score is not None:
            put("min_score", check_number("min_score", self.min_score))
        if self.deadline_ms is not None:
            put("deadline_ms", check_number("deadline_ms", self.deadline_ms, 0.0, open_low=True))
        put("stop", check_strings("stop", self.stop))
        for name, kind in (("sampling", SamplingParams), ("template", PromptTemplate)):
            value = getattr(self, name)
            if not isinstance(value, kind) and not (name == "template" and value is None):
                raise ConfigError(
                    f"{name} must be a {kind.__name__}, got {type(value).__name__}")

    @classmethod
    def paper(cls, **changes: Any) -> FlareConfig:
        """The paper's FLARE-direct on 2WikiMultihopQA (section 3.2, table 9).

        Any token with ``p < θ`` triggers, tokens with ``p < β`` are masked one by one, drafts see
        no passages, passages stand before the question and are replaced at each retrieval. Step 0
        searches with the question, and the first sentence is drafted with those passages in view
        and is checked like every other.
        """
        values: dict[str, Any] = {
            "theta": 0.8, "beta": 0.4, "k": 2, "mask_unit": "token", "trigger_punctuation": True,
            "placement": "prefix", "evidence_policy": "replace", "draft_context": "none",
            "initial_retrieval": True, "max_draft_tokens": 64, "max_new_tokens": 256}
        return cls(**values | changes)

    @classmethod
    def authors_code(cls, **changes: Any) -> FlareConfig:
        """What the authors' released code does where it differs from the paper.

        ``p <= θ`` triggers and θ = 0 retrieves always; a token stays in the query if ``p > β``;
        nothing left in the query means no retrieval, and the passages of the last one stay; they
        stay in view of every draft until the next retrieval; the last 64 tokens of a query are
        used. Step 0 is that of :meth:`paper`. Their sentence splitter is not imitated.
        """
        values: dict[str, Any] = {
            "theta_inclusive": True, "theta_zero_always": True, "beta_inclusive": True,
            "empty_query": "accept_draft", "draft_context": "last_evidence",
            "max_query_tokens": 64}
        return cls.paper(**values | changes)

    @property
    def may_retrieve(self) -> bool:
        """Whether any answer can search."""
        on_question = self.initial_retrieval
        off = self.trigger == "never" or (
            self.trigger == "min" and self.theta == 0.0 and not self.theta_zero_always)
        on_drafts = not off and self.max_retrievals_per_sentence > 0
        return self.max_retrievals != 0 and (on_question or on_drafts)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FlareConfig:
        """Options from a dictionary of JSON values (`sampling` and `template` as objects).

        Raises
        ------
        ConfigError
            A name is unknown or a value is wrong.
        UnsupportedError
            A value of the design that is not built.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"options must be an object, got {type(data).__name__}")
        known = [f.name for f in dataclasses.fields(cls)]
        if unknown := set(data) - set(known):
            raise unknown_name("FlareConfig", unknown, known)
        values = dict(data)
        if isinstance(values.get("sampling"), Mapping):
            values["sampling"] = SamplingParams.from_dict(values["sampling"])
        if isinstance(values.get("template"), Mapping):
            values["template"] = PromptTemplate.from_dict(values["template"])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values. A callable becomes ``"callable:NAME"``, for reading only."""
        values: dict[str, Any] = {}
        for name in (f.name for f in dataclasses.fields(self)):
            value = getattr(self, name)
            if isinstance(value, (SamplingParams, PromptTemplate)):
                value = value.to_dict()
            elif callable(value):
                value = f"callable:{getattr(value, '__name__', type(value).__name__)}"
            values[name] = list(value) if isinstance(value, tuple) else value
        return values


def _check_kind(name: str, value: object) -> None:
    built, planned = _CHOICES[name]
    if name in _CALLABLE and callable(value):
        return
    if isinstance(value, str) and value in planned:
        raise UnsupportedError(
            f"{name}={value!r} is not available in this version; use one of "
            f"{', '.join(map(repr, built))}")
    check_choice(name + (" (or a callable)" if name in _CALLABLE else ""), value, built)
