"""What an answer tells while it is written.

Only the text of :class:`SentenceAccepted` is for an end user: it never changes afterwards, and its
texts concatenate byte for byte to the answer. Everything else is for logs and for a view of the
inner workings; a draft says that it is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flarecore.codec import check_object, dumps, from_jsonable, loads_object, to_jsonable
from flarecore.trace import FlareStats, PassageTrace, RuleTrace
from flarecore.validation import check_choice

__all__ = [
    "DraftFinished",
    "DraftStarted",
    "Event",
    "Finished",
    "RetrievalFinished",
    "RetrievalStarted",
    "SentenceAccepted",
]

_KIND = "event"


class Event:
    """Base of all events."""

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values; ``event`` holds the name of the class."""
        data: dict[str, Any] = {_KIND: type(self).__name__}
        data.update(to_jsonable(self))
        return data

    def to_json(self) -> str:
        """One line of JSON; :meth:`from_json` gives an equal event back."""
        return dumps(self.to_dict())

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Event:
        """The event that :meth:`to_dict` wrote.

        Raises
        ------
        ConfigError
            An unknown kind of event, or a field that is missing, unknown or of the wrong type.
        """
        check_object("event", data)
        values = dict(data)
        kind = check_choice("event", values.pop(_KIND, None), _KINDS)
        event: Event = from_jsonable(_KINDS[kind], values, kind)
        return event

    @staticmethod
    def from_json(text: str | bytes) -> Event:
        """The event that :meth:`to_json` wrote; raises like :meth:`from_dict`."""
        return Event.from_dict(loads_object("event", text))


@dataclass(frozen=True)
class DraftStarted(Event):
    """A sentence is being drafted.

    Parameters
    ----------
    sentence_index : int
        From 0.
    num_answer_tokens : int
        The boundary: tokens of the answer before it.
    passage_ids : tuple of str
        Passages in view of the draft.
    """

    sentence_index: int
    num_answer_tokens: int
    passage_ids: tuple[str, ...]


@dataclass(frozen=True)
class DraftFinished(Event):
    """A draft of n tokens. It is not part of the answer, and may never be.

    Parameters
    ----------
    sentence_index : int
        From 0.
    text : str
        The draft.
    token_ids : tuple of int
        (n,) ids.
    tokens : tuple of str
        (n,) text of each token; a character split over tokens stands whole at its last one.
    probs : tuple of float
        (n,) confidences.
    low : tuple of bool
        (n,) confidence below θ (tokens that may not trigger left out).
    triggered : bool
        Whether the draft asks for evidence.
    rule : RuleTrace or None
        The rule that decided so; None: the trigger did.
    stop_reason : str
        Why it ended: ``sentence``, ``eos``, ``stop_string``, ``max_tokens``, ``context_length``,
        ``low_confidence``.
    time_ms : float
        Wall time of the draft.
    is_draft : bool
        Always True.
    """

    sentence_index: int
    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    probs: tuple[float, ...]
    low: tuple[bool, ...]
    triggered: bool
    rule: RuleTrace | None
    stop_reason: str
    time_ms: float
    is_draft: bool = True


@dataclass(frozen=True)
class RetrievalStarted(Event):
    """A search begins.

    Parameters
    ----------
    sentence_index : int
        The sentence it is for.
    is_initial : bool
        Whether it is the search with the question before the first sentence.
    queries : tuple of str
        Scope included.
    query_source : str
        Where they came from, see :class:`flarecore.trace.RetrievalTrace`.
    kept : tuple of bool or None
        (n,) for a masked query: the sentence's tokens that stayed in it.
    filter : Mapping or None
        Metadata conditions, set by the application.
    k : int
        Passages asked for.
    """

    sentence_index: int
    is_initial: bool
    queries: tuple[str, ...]
    query_source: str
    kept: tuple[bool, ...] | None
    filter: Mapping[str, Any] | None
    k: int

    @property
    def query(self) -> str:
        """All queries in one line, for reading."""
        return " | ".join(self.queries)


@dataclass(frozen=True)
class RetrievalFinished(Event):
    """A search is done.

    Parameters
    ----------
    sentence_index : int
        The sentence it is for.
    is_initial : bool
        As in :class:`RetrievalStarted`.
    queries : tuple of str
        As in :class:`RetrievalStarted`.
    passages : tuple of PassageTrace
        What came back, best first, fewer than k or none included; ``num_tokens`` of 0 marks
        those that are not used.
    time_ms : float
        Wall time of the search.
    """

    sentence_index: int
    is_initial: bool
    queries: tuple[str, ...]
    passages: tuple[PassageTrace, ...]
    time_ms: float


@dataclass(frozen=True)
class SentenceAccepted(Event):
    """A sentence has become part of the answer.

    Parameters
    ----------
    sentence_index : int
        From 0; sentences left out have no event, so numbers may be missing.
    text : str
        What the answer's text grows by. Bytes that may still change what is shown (an incomplete
        character, the possible start of a stop string) are held back and come with a later event.
    token_ids : tuple of int
        Ids of the sentence.
    source : {"draft", "regenerated", "remainder"}
        ``remainder``: text held back so far that turned out to be the answer's end; no tokens.
    unsupported_because : str or None
        None for a draft that asked for nothing (confident, or a rule or the gate said so) and for a
        sentence written with the passages of its own search. Else why a sentence that triggered
        was accepted as it was: ``no_evidence``,
        ``empty_query``, ``repeated_query``, ``max_retrievals``, ``max_retrievals_per_sentence``,
        ``cooldown_sentences``, or ``deadline`` (``deadline_policy="accept_draft"``); of method
        ``marker`` also ``marked_again``.
    passage_ids : tuple of str
        Passages in view when it was written.
    """

    sentence_index: int
    text: str
    token_ids: tuple[int, ...]
    source: str
    unsupported_because: str | None
    passage_ids: tuple[str, ...]


@dataclass(frozen=True)
class Finished(Event):
    """The answer is complete; always the last event.

    Parameters
    ----------
    text : str
        The answer: all accepted texts, concatenated.
    stop_reason : str
        Why it ended, see :class:`flarecore.FlareResult`.
    stats : FlareStats
        Counts and times.
    """

    text: str
    stop_reason: str
    stats: FlareStats


_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (DraftStarted, DraftFinished, RetrievalStarted, RetrievalFinished,
                 SentenceAccepted, Finished)
}
