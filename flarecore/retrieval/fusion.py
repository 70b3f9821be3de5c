"""Reciprocal rank fusion (Cormack, Clarke, Buettcher, SIGIR 2009): many rankings into one."""

from __future__ import annotations

from collections.abc import Sequence

from flarecore.errors import RetrievalError
from flarecore.retrieval.passage import Passage

__all__ = ["fuse"]


def fuse(
    rankings: Sequence[Sequence[Passage]], weights: Sequence[float], rank_constant: float, k: int
) -> list[Passage]:
    """The best `k` passages of several rankings of one query.

    Parameters
    ----------
    rankings : sequence of sequence of Passage
        Best first; their scores are not looked at.
    weights : sequence of float
        One for each ranking.
    rank_constant : float
        The paper's k: the larger it is, the less the first ranks stand out.
    k : int

    Returns
    -------
    list of Passage
        Each id once, best first. ``score`` is the sum of ``weight / (rank_constant + rank)`` over
        the rankings that hold the passage, ranks counted from 1. Equal scores: the better best
        rank first, then the earlier ranking.

    Raises
    ------
    RetrievalError
        Two rankings hold different passages under one id.
    """
    fused: dict[str, _Fused] = {}
    for position, (ranking, weight) in enumerate(zip(rankings, weights, strict=True)):
        seen: set[str] = set()
        for rank, passage in enumerate(ranking, start=1):
            if passage.id in seen:
                continue  # a foreign retriever's repeat counts where it stands first
            seen.add(passage.id)
            entry = fused.get(passage.id)
            if entry is None:
                fused[passage.id] = entry = _Fused(passage, position, rank)
            elif not _is_same(entry.passage, passage):
                raise RetrievalError(
                    f"retrievers {entry.position} and {position} hold different passages under the "
                    f"id {passage.id!r}; build both from the same passages, or give ids that "
                    "differ")
            entry.score += weight / (rank_constant + rank)
            entry.best_rank = min(entry.best_rank, rank)
    ordered = sorted(fused.values(), key=lambda e: (-e.score, e.best_rank, e.position))
    return [entry.passage.with_score(entry.score) for entry in ordered[:k]]


class _Fused:
    def __init__(self, passage: Passage, position: int, rank: int) -> None:
        self.passage = passage
        self.position = position
        self.best_rank = rank
        self.score = 0.0


def _is_same(one: Passage, other: Passage) -> bool:
    return one.text == other.text and one.title == other.title and one.metadata == other.metadata
