"""A sentence under test: what triggers, query makers and no-evidence rules look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Candidate"]


@dataclass(frozen=True)
class Candidate:
    """A drafted or regenerated sentence of n tokens that is not accepted yet.

    Parameters
    ----------
    text : str
        The sentence; undecodable bytes are replaced.
    token_ids : tuple of int
        (n,) ids.
    token_bytes : tuple of bytes
        (n,) bytes of each token.
    is_special : tuple of bool
        (n,) whether a token is control, not text.
    probs : numpy.ndarray
        (n,) float32 confidences.
    stop_reason : str
        Why decoding ended: ``sentence``, ``eos``, ``stop_string``, ``max_tokens``,
        ``context_length`` or ``low_confidence``.
    sentence_index : int
        From 0, sentences left out included.
    question : str or None
        What the user asked.
    scope : str or None
        Text put before every query.
    answer_text : str
        The accepted text before the sentence.
    """

    text: str
    token_ids: tuple[int, ...]
    token_bytes: tuple[bytes, ...]
    is_special: tuple[bool, ...]
    probs: npt.NDArray[np.float32]
    stop_reason: str
    sentence_index: int = 0
    question: str | None = None
    scope: str | None = None
    answer_text: str = ""

    @property
    def min_prob(self) -> float:
        """Smallest confidence; 1.0 where n is 0."""
        return float(self.probs.min()) if self.probs.size else 1.0
