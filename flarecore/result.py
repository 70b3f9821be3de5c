"""The finished answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flarecore.codec import check_object, dumps, from_jsonable, loads_object, to_jsonable
from flarecore.events import SentenceAccepted
from flarecore.trace import FlareStats, Trace

__all__ = ["FlareResult"]


@dataclass(frozen=True)
class FlareResult:
    """An answer.

    Parameters
    ----------
    text : str
        The answer; equals the concatenated texts of `sentences`.
    sentences : tuple of SentenceAccepted
        The accepted sentences, in order.
    token_ids : tuple of int
        The accepted ids, in order.
    stop_reason : str
        ``eos``, ``stop_string``, ``max_sentences``, ``max_new_tokens``, ``context_length``,
        ``deadline``, ``no_evidence``, ``no_progress`` (the engine gave an empty sentence without
        a reason to end), ``final_answer`` (method ``question-decomposition``), ``error`` (only on
        the ``partial`` of an exception) or ``cancelled`` (only on the ``partial`` of a stream).
    trace : Trace
        How it came about, sentence by sentence.
    """

    text: str
    sentences: tuple[SentenceAccepted, ...]
    token_ids: tuple[int, ...]
    stop_reason: str
    trace: Trace

    @property
    def stats(self) -> FlareStats:
        """Counts and times."""
        return self.trace.stats

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values; `trace` is as in :meth:`Trace.to_dict`."""
        data: dict[str, Any] = to_jsonable(self)
        return data | {"trace": self.trace.to_dict()}

    def to_json(self) -> str:
        """One line of JSON; :meth:`from_json` gives an equal result back."""
        return dumps(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FlareResult:
        """The result that :meth:`to_dict` wrote.

        Raises
        ------
        ConfigError
            A field is missing, unknown or of the wrong type, or the trace is of another version.
        """
        check_object("result", data)
        values = dict(data)
        if "trace" in values:
            values["trace"] = to_jsonable(Trace.from_dict(values["trace"]))
        return from_jsonable(cls, values, "result")

    @classmethod
    def from_json(cls, text: str | bytes) -> FlareResult:
        """The result that :meth:`to_json` wrote; raises like :meth:`from_dict`."""
        return cls.from_dict(loads_object("result", text))
