"""The trace of an answer: everything that happened, sentence by sentence, as data."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flarecore.codec import check_object, dumps, from_jsonable, loads_object, to_jsonable
from flarecore.errors import ConfigError
from flarecore.trace_parts import (
    AskTrace,
    PassageTrace,
    PassTrace,
    RetrievalTrace,
    RuleTrace,
    SentenceTrace,
)

__all__ = [
    "TRACE_KEY",
    "TRACE_VERSION",
    "AskTrace",
    "FlareStats",
    "PassTrace",
    "PassageTrace",
    "RetrievalTrace",
    "RuleTrace",
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
    num_asked : int
        Queries that the model was asked to write.
    num_unchanged : int
        Sentences accepted without being written again because their search gave exactly the
        passages they had been written with.
    num_prefilled, num_decoded : int
        Given tokens that went through a forward pass; tokens generated.
    num_reused : int
        Context tokens whose K/V was there already when a draft or regeneration began.
    num_proposed, num_accepted : int
        Proposed tokens that were verified; those of them that were right.
    num_encoded : int
        Passages that were encoded on their own (placement ``parallel``).
    draft_ms, query_ms, retrieve_ms, regenerate_ms, other_ms : float
        Wall time by phase; the time a consumer of events takes is in none of them.
    """

    num_sentences: int = 0
    num_tokens: int = 0
    num_drafts: int = 0
    num_triggers: int = 0
    num_retrievals: int = 0
    num_regenerations: int = 0
    num_omitted: int = 0
    num_asked: int = 0
    num_unchanged: int = 0
    num_prefilled: int = 0
    num_decoded: int = 0
    num_reused: int = 0
    num_proposed: int = 0
    num_accepted: int = 0
    num_encoded: int = 0
    draft_ms: float = 0.0
    query_ms: float = 0.0
    retrieve_ms: float = 0.0
    regenerate_ms: float = 0.0
    other_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """Sum of the phases."""
        written = self.draft_ms + self.regenerate_ms
        return written + self.query_ms + self.retrieve_ms + self.other_ms

    @property
    def trigger_rate(self) -> float:
        """Share of the drafts that triggered; 0 without any."""
        return self.num_triggers / self.num_drafts if self.num_drafts else 0.0

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values; :meth:`from_dict` gives equal counts and times back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FlareStats:
        """What :meth:`to_dict` wrote.

        Raises
        ------
        ConfigError
            A field is missing, unknown or of the wrong type.
        """
        return from_jsonable(cls, data, "stats")


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
    gate : {"never", "always"} or None
        What the gate said about the question; None: it left it to the other options.
    prompt_token_ids : tuple of int
        The prompt without evidence.
    placement : {"prefix", "boundary", "parallel"}
        Where evidence stood.
    is_approximate : bool
        Whether the sentences written with evidence are an approximation of the model's own
        distribution for their context: so with ``parallel``, not with the others.
    initial_retrieval : RetrievalTrace or None
        Step 0.
    sentences : tuple of SentenceTrace
        In order.
    text, stop_reason : str
        The answer and why it ended.
    stats : FlareStats
        Counts and times.
    method, method_options : str, Mapping
        How it was written, and that method's own options, see :mod:`flarecore.methods`.
    """

    model: str
    config: Mapping[str, Any]
    question: str | None
    scope: str | None
    gate: str | None
    prompt_token_ids: tuple[int, ...]
    placement: str
    is_approximate: bool
    initial_retrieval: RetrievalTrace | None
    sentences: tuple[SentenceTrace, ...]
    text: str
    stop_reason: str
    stats: FlareStats
    method: str = "flare"
    method_options: Mapping[str, Any] = field(default_factory=dict)

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
        check_object("trace", data)
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
