"""Marked doubt: the model itself says where it is unsure, no probability is looked at."""

from __future__ import annotations

from flarecore.loop.candidate import Candidate
from flarecore.loop.controller import AnswerLoop
from flarecore.loop.recorder import SentenceStep
from flarecore.methods.brackets import MARKER, cut_out

__all__ = ["MarkerLoop", "has_marker", "marked_keywords"]


def has_marker(candidate: Candidate) -> bool:
    """The trigger: the sentence holds a marker."""
    return MARKER.find(candidate.text.encode("utf-8", "replace")) is not None


def marked_keywords(candidate: Candidate) -> list[str]:
    """The queries: the keywords of each marker."""
    return [marker.content for marker in MARKER.find_all(candidate.text.encode("utf-8", "replace"))]


class MarkerLoop(AnswerLoop):
    """The FLARE loop, with the markers taken out of what is accepted.

    A sentence that was written again and still holds a marker is flagged with ``marked_again``.
    """

    def _joined(self, step: SentenceStep) -> tuple[tuple[int, ...], bytes]:
        token_ids, data = super()._joined(step)
        spans = [(marker.begin, marker.end) for marker in MARKER.find_all(data)]
        if not spans:
            return token_ids, data
        if step.is_regenerated and step.unsupported_because is None:
            step.unsupported_because = "marked_again"
        return cut_out(self._setup.engine.tokenizer, token_ids, data, spans)
