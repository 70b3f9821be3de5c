"""The finished answer."""

from __future__ import annotations

from dataclasses import dataclass

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
