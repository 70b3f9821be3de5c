"""Options of the FLARE loop, with the paper's symbols (Jiang et al., arXiv 2305.06983)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flarecore.config_checks import (
    THETA_TRIGGERS,
    checked_options,
    read_options,
    written_options,
)
from flarecore.errors import ConfigError
from flarecore.loop.candidate import Candidate
from flarecore.presets import authors_values, paper_values
from flarecore.rules import DraftRule
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate
from flarecore.validation import named_options, unknown_name

__all__ = ["FlareConfig", "GateFn", "NoEvidenceFn", "QueryFn", "RuleFn", "TriggerFn"]

GateFn = Callable[[str | None], str | None]
"""``never``, ``always`` or None (the other options decide), for a question."""

TriggerFn = Callable[[Candidate], bool]
"""Whether a sentence needs evidence."""

RuleFn = Callable[[Candidate], bool]
"""Whether a rule holds for a draft."""

QueryFn = Callable[[Candidate], str | Sequence[str]]
"""The query or queries for a sentence; white space only counts as none."""

NoEvidenceFn = Callable[[Candidate | None], str]
"""``accept_draft``, ``omit`` or ``stop``; the argument is None at the initial retrieval."""


@named_options
@dataclass(frozen=True, kw_only=True)
class FlareConfig:
    """Options of one answer.

    Parameters
    ----------
    gate : {"never", "always"}, callable or None
        Asked once per answer. ``never``: nothing is retrieved, whatever else is set. ``always``:
        the question is searched first, also without `initial_retrieval`. None: neither.
    theta : float
        θ in [0, 1], compared in float32. 0 never retrieves, 1 always does.
    beta : float
        β in [0, 1]: tokens with a confidence below it are left out of the query. Independent of θ.
    trigger : {"min", "mean", "token", "span", "always", "never"} or callable
        When a draft asks for evidence. ``min``: any token is below θ (the paper). ``mean``: the
        mean confidence of its tokens is. ``span``: tokens below θ that follow each other
        (punctuation between them does not count) spell at least `min_span_chars` characters.
        ``token``: as ``min``, but the draft stops at the first token below θ. The query is made of
        the draft up to and with that token (β decides whether the token stays in it), and the
        whole sentence is written again. If nothing is retrieved, the draft is written to its end.
    min_span_chars : int
        For ``span``; 4 leaves out most function words of English, a Chinese word has 2.
    theta_inclusive : bool
        Trigger at a confidence equal to θ as well (authors' code).
    theta_zero_always : bool
        θ = 0 always retrieves (authors' code).
    trigger_punctuation : bool
        Let special tokens and those that are only punctuation or white space trigger, and count
        for ``mean``. A sentence of nothing else triggers only with this option, whatever θ and
        `trigger` (except a callable) say.
    must_retrieve, never_retrieve : DraftRule, callable or None
        Rules over a draft: low confidence is a signal, not a duty. Where both hold, `must_retrieve`
        counts; either goes before `trigger`; `gate` and the budgets go before both. Only drafts
        are looked at for `must_retrieve`: a regeneration has been looked up. With trigger
        ``token``, the draft is as long as it was written.
    query : {"mask", "question", "sentence", "keywords"} or callable
        ``mask``: the draft without its tokens below β. ``sentence``: the whole draft.
        ``question``: for each span of tokens below β the model itself writes a question with the
        span as answer, all of them at once on forks of the cache; what does not end in a question
        mark is dropped. ``keywords``: the model writes a keyword query. Where nothing is left of
        these two, the whole draft is the query. Results of several queries are interleaved by
        rank, without repeats, up to `k`.
    span_gap : int
        For ``question``: low tokens fewer than so many places apart are one span (authors' code:
        5). Spans take their whole words along; those of only punctuation are no spans.
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
    placement : {"prefix", "boundary", "parallel"}
        Where evidence stands: before the question (the paper; question and answer so far are
        computed again), or after the answer so far (only evidence is computed). ``parallel`` is
        an approximation, and the trace says so: each passage is encoded on its own before the
        question, kept by the engine (``Engine.passages``), and attached without computing it
        again; question and answer so far are hardly computed again, see `recompute_tokens`.
    recompute_tokens : int or None
        For ``parallel``: so many tokens before the sentence are computed again with the passages
        in view; the others keep what they were computed to be without them. A retrieval so costs
        the same however long the answer is. 1 is the least: the last token's row is fed in any
        case. With it, a small model repeats itself; 64 writes nearly what None does: question and
        the whole answer so far, which costs more the longer the answer is.
    evidence_policy : {"replace", "keep_first", "sticky"}
        Which passages a sentence is written with. ``replace``: those of its own retrieval (paper).
        ``keep_first``: those of the initial retrieval as well, first. ``sticky``: those of all
        retrievals, oldest first. Passages that recur keep their order, so that the cached prefix
        holds. What does not fit is cut: the worst rank first, at equal ranks the step's own; with
        ``sticky``, what was found longest ago first. Whether drafts see them is `draft_context`.
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
        `deadline_ms` counts from the call (of ``stream`` and ``astream``, not from their first
        event; of ``agenerate`` from its first step), and what the consumer of events takes counts
        as well. It is looked at before every forward pass, so that an answer may end one pass late;
        asyncio answers give up waiting for a retriever, blocking ones wait for it.
    deadline_policy : {"drop", "accept_draft"}
        What to do with a sentence that is written to its end, asks for evidence and still waits for
        it at the deadline: leave it out, or accept it, flagged with ``deadline``.
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
        How tokens are chosen. If greedy, a sentence whose retrieval gave exactly the passages it
        was written with is accepted without being written again. Queries are always greedy.
    speculative : bool
        Offer the regeneration the draft as a proposal, and evidence and question for looking up
        how it may go on. The output is the same.
    template : PromptTemplate or None
        None: ``PromptTemplate.chat()`` if the model has a chat template, else ``.base()``.

    Raises
    ------
    ConfigError
        An option is unknown, of the wrong type or out of range, or a callable cannot take the
        argument it is given.

    Notes
    -----
    Callables are plain functions, called with one argument by position on the thread (or in the
    task) that asks for the next event. What they raise ends the answer with a CallbackError:

    - ``gate(question: str | None) -> "never" | "always" | None``
    - ``trigger(sentence: Candidate) -> bool``: whether it needs evidence
    - ``must_retrieve(draft: Candidate) -> bool``, ``never_retrieve(sentence: Candidate) -> bool``
    - ``query(sentence: Candidate) -> str | Sequence[str]``: white space only counts as none
    - ``no_evidence(sentence: Candidate | None) -> "accept_draft" | "omit" | "stop"``: None at the
      initial retrieval

    A :class:`flarecore.Candidate` has the sentence's text, tokens and confidences, the question and
    the answer so far: ``trigger=lambda sentence: sentence.min_prob < 0.3``.
    """

    gate: str | GateFn | None = None
    theta: float = 0.8
    beta: float = 0.4
    trigger: str | TriggerFn = "min"
    min_span_chars: int = 4
    theta_inclusive: bool = False
    theta_zero_always: bool = False
    trigger_punctuation: bool = False
    must_retrieve: DraftRule | RuleFn | None = None
    never_retrieve: DraftRule | RuleFn | None = None
    query: str | QueryFn = "mask"
    span_gap: int = 5
    mask_unit: str = "auto"
    beta_inclusive: bool = False
    empty_query: str = "question"
    max_query_tokens: int = 64
    k: int = 3
    min_score: float | None = None
    max_passage_tokens: int = 160
    max_evidence_tokens: int = 512
    placement: str = "prefix"
    recompute_tokens: int | None = 64
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
    deadline_policy: str = "drop"
    max_draft_tokens: int = 64
    overflow: str = "error"
    stop: tuple[str, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculative: bool = True
    template: PromptTemplate | None = None

    def __post_init__(self) -> None:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, value in checked_options(values).items():
            object.__setattr__(self, name, value)

    @classmethod
    def paper(cls, dataset: str = "2wiki", **changes: Any) -> FlareConfig:
        """The paper's FLARE-direct (section 3.2) with its settings for a data set (table 9).

        ``2wiki``, ``strategyqa``, ``asqa`` or ``wikiasp``: θ, β, k, the query (masked, or explicit
        questions for the last two), the policy (the last two keep the question's passages) and the
        answer's length. Any token with ``p < θ`` triggers, tokens with ``p < β`` are masked one by
        one, drafts see no passages, passages stand before the question. Step 0 searches with the
        question; the first sentence is drafted with those passages in view and is checked like
        every other.
        """
        return cls(**paper_values(dataset) | changes)

    @classmethod
    def authors_code(cls, dataset: str = "2wiki", **changes: Any) -> FlareConfig:
        """What the authors' released code does where it differs from the paper.

        ``p <= θ`` triggers and θ = 0 retrieves always; a token stays in the query if ``p > β``;
        nothing left in the query means no retrieval, and the passages of the last one stay; they
        stay in view of every draft until the next retrieval; the last 64 tokens of a query are
        used. The rest is that of :meth:`paper`. Not imitated: the sentence splitter, and the
        question maker's completion of a span to a term (spans take their whole words along here).
        """
        return cls.paper(dataset, **authors_values() | changes)

    @property
    def may_retrieve(self) -> bool:
        """Whether any answer can search."""
        if self.gate == "never" or self.max_retrievals == 0:
            return False
        on_question = self.initial_retrieval or self.gate is not None
        off = self.trigger == "never" or (
            self.trigger in THETA_TRIGGERS and self.theta == 0.0 and not self.theta_zero_always)
        asks = not off or self.must_retrieve is not None
        return on_question or (asks and self.max_retrievals_per_sentence > 0)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FlareConfig:
        """Options from JSON values (`sampling`, `template` and the rules as objects).

        Raises
        ------
        ConfigError
            A name is unknown or a value is wrong.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"options must be an object, got {type(data).__name__}")
        known = [f.name for f in dataclasses.fields(cls)]
        if unknown := set(data) - set(known):
            raise unknown_name("FlareConfig", unknown, known)
        return cls(**read_options(data))

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values. A callable becomes ``"callable:NAME"``, for reading only."""
        return written_options(self)
