"""The trace of an answer: everything that happened, sentence by sentence, as data."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flarecore.codec import dumps, from_jsonable, loads_object, to_jsonable
from flarecore.errors import ConfigError

__all__ = [
    "TRACE_KEY",
    "TRACE_VERSION",
    "FlareStats",
    "PassTrace",
    "PassageTrace",
    "RetrievalTrace",
    "SentenceTrace",
    "Trace",
]

TRACE_VERSION = 1
TRACE_KEY = "flarecore_trace"


@dataclass(frozen=True)
class FlareStats:
    """Counts and times of one answer; token counts are those of the engine's operations.

    Parameters
    ----------
    num_sentences : int
        Accepted sentences.
    num_tokens : int
        Tokens of the accepted sentences.
    num_drafts, num_triggers, num_retrievals, num_regenerations, num_omitted : int
        Sentences drafted; drafts that triggered; searches (the initial one included);
        sentences written again; sentences left out of the text.
    num_prefilled, num_decoded : int
        Given tokens that went through a forward pass; tokens generated.
    num_reused : int
        Context tokens whose K/V was there already when a draft or regeneration began.
    num_proposed, num_accepted : int
        Proposed tokens that were verified; those of them that were right.
    draft_ms, retrieve_ms, regenerate_ms, other_ms : float
        Wall time by phase; the time a consumer of events takes is in none of them.
    """

    num_sentences: int = 0
    num_tokens: int = 0
    num_drafts: int = 0
    num_triggers: int = 0
    num_retrievals: int = 0
    num_regenerations: int = 0
    num_omitted: int = 0
    num_prefilled: int = 0
    num_decoded: int = 0
    num_reused: int = 0
    num_proposed: int = 0
    num_accepted: int = 0
    draft_ms: float = 0.0
    retrieve_ms: float = 0.0
    regenerate_ms: float = 0.0
    other_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """Sum of the phases."""
        return self.draft_ms + self.retrieve_ms + self.regenerate_ms + self.other_ms

    @property
    def trigger_rate(self) -> float:
        """Share of the drafts that triggered; 0 without any."""
        return self.num_triggers / self.num_drafts if self.num_drafts else 0.0


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
        Outcome of the trigger; None where it was not asked.
    stop_reason : str
        Why decoding ended.
    pass_index : int
        0 for a draft, from 1 for regenerations.
    passage_ids : tuple of str
        Passages in view.
    num_context : int
        Tokens before the sentence: those reused and those prefilled.
    num_reused, num_prefilled, num_decoded, num_proposed, num_accepted : int
        As in :class:`FlareStats`.
    time_ms : float
        Wall time.
    """

    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    probs: tuple[float, ...]
    low: tuple[bool, ...]
    triggered: bool | None
    stop_reason: str
    pass_index: int
    passage_ids: tuple[str, ...]
    num_context: int
    num_reused: int
    num_prefilled: int
    num_decoded: int
    num_proposed: int
    num_accepted: int
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
    query : str
        What was searched, scope included.
    query_source : {"question", "mask", "sentence", "callable"}
        Where it came from.
    kept : tuple of bool or None
        (n,) for a masked query: the sentence's tokens that stayed in it.
    filter : Mapping or None
        Metadata conditions, set by the application.
    passages : tuple of PassageTrace
        What came back, best first.
    num_evidence_tokens : int
        Tokens of the passages as rendered.
    time_ms : float
        Wall time.
    """

    query: str
    query_source: str
    kept: tuple[bool, ...] | None
    filter: Mapping[str, Any] | None
    passages: tuple[PassageTrace, ...]
    num_evidence_tokens: int
    time_ms: float


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
        Searches for it, in order.
    regenerations : tuple of PassTrace
        Each writes the sentence again with the passages of a search.
    outcome : {"draft", "regenerated", "omitted", "nothing"}
        ``nothing``: the answer ended without it.
    unsupported_because : str or None
        See :class:`flarecore.events.SentenceAccepted`.
    token_ids : tuple of int
        Ids that entered the context of later sentences.
    text : str
        What the answer's text grew by.
    stop_reason : str
        Why the sentence ended: as in a pass, with ``max_draft_tokens`` or ``max_new_tokens`` for
        ``max_tokens``; for ``nothing`` also ``deadline``, ``no_evidence``, ``error``.
    """

    index: int
    draft: PassTrace
    retrievals: tuple[RetrievalTrace, ...]
    regenerations: tuple[PassTrace, ...]
    outcome: str
    unsupported_because: str | None
    token_ids: tuple[int, ...]
    text: str
    stop_reason: str


@dataclass(frozen=True)
class Trace:
    """One answer's trace.

    Parameters
    ----------
    model : str
        Name of the model.
    config : Mapping
        ``FlareConfig.to_dict()``.
    question, scope : str or None
        As given.
    prompt_token_ids : tuple of int
        The prompt without evidence.
    initial_retrieval : RetrievalTrace or None
        Step 0.
    sentences : tuple of SentenceTrace
        In order.
    text, stop_reason : str
        The answer and why it ended.
    stats : FlareStats
        Counts and times.
    """

    model: str
    config: Mapping[str, Any]
    question: str | None
    scope: str | None
    prompt_token_ids: tuple[int, ...]
    initial_retrieval: RetrievalTrace | None
    sentences: tuple[SentenceTrace, ...]
    text: str
    stop_reason: str
    stats: FlareStats

    @property
    def retrievals(self) -> tuple[RetrievalTrace, ...]:
        """All searches in order."""
        first = () if self.initial_retrieval is None else (self.initial_retrieval,)
        return first + tuple(r for sentence in self.sentences for r in sentence.retrievals)

    @property
    def passage_overlap(self) -> float | None:
        """Mean share of a search's used passages that the search before had used as well.

        None where fewer than two searches gave a usable passage.
        """
        used = [{p.id for p in r.passages if p.num_tokens} for r in self.retrievals]
        shares = [len(now & before) / len(now)
                  for before, now in itertools.pairwise(used) if now]
        return sum(shares) / len(shares) if shares else None

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        data = {TRACE_KEY: TRACE_VERSION}
        data.update(to_jsonable(self))
        return data

    def to_json(self, *, indent: int | None = None) -> str:
        """A JSON text; :meth:`from_json` gives an equal trace back."""
        return dumps(self.to_dict(), indent=indent)

    def to_html(self) -> str:
        """One self-contained page that shows the answer sentence by sentence.

        Raises
        ------
        ConfigError
            The trace contradicts itself.
        """
        from flarecore.trace_html import trace_page

        return trace_page([self])

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trace:
        """The trace that :meth:`to_dict` wrote.

        Raises
        ------
        ConfigError
            Another version, or a field that is missing, unknown or of the wrong type.
        """
        values = dict(data)
        version = values.pop(TRACE_KEY, None)
        if version != TRACE_VERSION:
            raise ConfigError(
                f"trace: {TRACE_KEY!r} must be {TRACE_VERSION}, got {version!r}; "
                "read it with the version of flarecore that wrote it")
        return from_jsonable(cls, values, "trace")

    @classmethod
    def from_json(cls, text: str | bytes) -> Trace:
        """The trace that :meth:`to_json` wrote; raises like :meth:`from_dict`."""
        return cls.from_dict(loads_object("trace", text))


def add_counts(stats: FlareStats, **more: float) -> FlareStats:
    """`stats` with each named count or time increased."""
    return dataclasses.replace(
        stats, **{name: getattr(stats, name) + value for name, value in more.items()})
