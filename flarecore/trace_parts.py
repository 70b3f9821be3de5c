"""The parts of a trace: passes of the decoder, searches, sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "AskTrace",
    "PassTrace",
    "PassageTrace",
    "RetrievalTrace",
    "RuleTrace",
    "SentenceTrace",
]


@dataclass(frozen=True)
class RuleTrace:
    """A rule that decided whether a draft is looked up.

    Parameters
    ----------
    name : {"must_retrieve", "never_retrieve"}
        The option.
    kind : {"term", "pattern", "callable"}
        What was found.
    entry : str
        The term, the pattern, or the name of the callable.
    text : str
        The text of the draft that matched; of a callable, empty.
    """

    name: str
    kind: str
    entry: str
    text: str


@dataclass(frozen=True)
class AskTrace:
    """One query that the model was asked to write, on a fork of the cache.

    Parameters
    ----------
    purpose : {"questions", "keywords"}
        What it was asked for.
    pass_index : int
        The pass of the sentence that it is about.
    begin, end : int
        For a question, the span of the sentence's tokens that it asks for: ``[begin, end)``, with
        the words it cuts; for keywords, the whole sentence.
    span : str
        The text of the span.
    text : str
        What the model wrote.
    is_used : bool
        Whether it became a query.
    num_context, num_reused, num_prefilled, num_decoded : int
        As in :class:`PassTrace`.
    """

    purpose: str
    pass_index: int
    begin: int
    end: int
    span: str
    text: str
    is_used: bool
    num_context: int
    num_reused: int
    num_prefilled: int
    num_decoded: int


@dataclass(frozen=True)
class PassTrace:
    """One pass of the decoder over a sentence of n tokens: a draft or a regeneration.

    Parameters
    ----------
    text : str
        The sentence as generated.
    token_ids : tuple of int
        (n,) ids as generated.
    tokens : tuple of str
        (n,) text of each token, a split character whole at its last token; they concatenate to
        the text of all tokens.
    probs : tuple of float
        (n,) confidences.
    low : tuple of bool
        (n,) confidence below θ, tokens that may not trigger left out.
    triggered : bool or None
        Whether it asked for evidence, by the trigger or a rule; None where nobody was asked.
    rule : RuleTrace or None
        The rule that decided; None: the trigger did.
    stop_reason : str
        Why decoding ended. Of other methods also ``call`` and ``line``.
    pass_index : int
        0 for a draft, from 1 for regenerations.
    passage_ids : tuple of str
        Passages in view.
    num_context : int
        Tokens before the sentence: those reused and those prefilled.
    num_reused, num_prefilled, num_decoded, num_proposed, num_accepted : int
        As in :class:`FlareStats`.
    num_encoded : int
        Passages that were encoded on their own for it, and are kept (placement ``parallel``); their
        tokens are among those prefilled.
    time_ms : float
        Wall time.
    """

    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    probs: tuple[float, ...]
    low: tuple[bool, ...]
    triggered: bool | None
    rule: RuleTrace | None
    stop_reason: str
    pass_index: int
    passage_ids: tuple[str, ...]
    num_context: int
    num_reused: int
    num_prefilled: int
    num_decoded: int
    num_proposed: int
    num_accepted: int
    num_encoded: int
    time_ms: float


@dataclass(frozen=True)
class PassageTrace:
    """A passage that a search returned. Metadata stays out: it may hold permissions.

    Parameters
    ----------
    id, title, text : str
        As the retriever gave it, uncut.
    score : float
        The retriever's score.
    num_tokens : int
        Its tokens in the evidence as rendered; 0: not used (score, duplicate, no room).
    """

    id: str
    title: str
    text: str
    score: float
    num_tokens: int


@dataclass(frozen=True)
class RetrievalTrace:
    """One search.

    Parameters
    ----------
    queries : tuple of str
        What was searched, scope included.
    query_source : {"question", "mask", "sentence", "questions", "keywords", "callable"}
        Where they came from: the user's question, or what was made of the draft. Of other methods
        also ``previous_sentence``, ``previous_window``, ``sub_question`` and ``call``.
    kept : tuple of bool or None
        (n,) for a masked query: the sentence's tokens that stayed in it.
    filter : Mapping or None
        Metadata conditions, set by the application.
    passages : tuple of PassageTrace
        What came back, best first.
    num_evidence_tokens : int
        Tokens of all passages in use after the search, as rendered.
    is_unchanged : bool
        The sentence had been written with exactly these passages; if greedy, it was accepted
        without being written again.
    time_ms : float
        Wall time.
    """

    queries: tuple[str, ...]
    query_source: str
    kept: tuple[bool, ...] | None
    filter: Mapping[str, Any] | None
    passages: tuple[PassageTrace, ...]
    num_evidence_tokens: int
    is_unchanged: bool
    time_ms: float

    @property
    def query(self) -> str:
        """All queries in one line, for reading."""
        return " | ".join(self.queries)


@dataclass(frozen=True)
class SentenceTrace:
    """One sentence's way into (or past) the answer.

    Parameters
    ----------
    index : int
        From 0.
    draft : PassTrace
        The draft.
    retrievals : tuple of RetrievalTrace
        Searches for it, in order. Methods that look back search before they write it, those that
        search inside a sentence after it, for what follows.
    regenerations : tuple of PassTrace
        Each writes the sentence again with the passages of a search.
    asked : tuple of AskTrace
        Queries that the model was asked to write.
    query_ms : float
        Wall time of that.
    completion : PassTrace or None
        The draft or the last regeneration, written to its end after it had stopped at a low token
        and nothing was retrieved for it (trigger ``token``).
    outcome : {"draft", "regenerated", "omitted", "nothing"}
        ``nothing``: the answer ended without it, or nothing was left of it (of a method that cuts
        calls and low tokens out).
    unsupported_because : str or None
        See :class:`flarecore.events.SentenceAccepted`.
    token_ids : tuple of int
        Ids that entered the context of later sentences.
    text : str
        What the answer's text grew by.
    stop_reason : str
        Why the sentence ended: as in a pass, with ``max_draft_tokens`` or ``max_new_tokens`` for
        ``max_tokens``; for ``nothing`` also ``deadline``, ``no_evidence``, ``error``,
        ``cancelled``.
    """

    index: int
    draft: PassTrace
    retrievals: tuple[RetrievalTrace, ...]
    regenerations: tuple[PassTrace, ...]
    asked: tuple[AskTrace, ...]
    query_ms: float
    completion: PassTrace | None
    outcome: str
    unsupported_because: str | None
    token_ids: tuple[int, ...]
    text: str
    stop_reason: str
