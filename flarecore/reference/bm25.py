"""BM25 straight from its formula, one passage and one term at a time.

Kamphuis et al., "Which BM25 Do You Mean?", ECIR 2020, the row "Lucene (accurate)"; Lucene itself
leaves out the constant factor ``k1 + 1`` since version 8, and so does this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["bm25_scores"]


def bm25_scores(
    passages: Sequence[Sequence[str]], query: Sequence[str], k1: float, b: float
) -> list[float]:
    """The score of every passage.

    Parameters
    ----------
    passages : sequence of sequence of str
        The terms of each passage, with repeats.
    query : sequence of str
        Terms; one that occurs twice counts twice.
    k1, b : float

    Returns
    -------
    list of float
        0 for a passage without any term of the query.
    """
    num_passages = len(passages)
    mean_length = sum(map(len, passages)) / num_passages if num_passages else 0.0
    scores = []
    for passage in passages:
        score = 0.0
        for term in query:
            frequency = list(passage).count(term)
            if frequency == 0:
                continue
            num_with_term = sum(term in other for other in passages)
            weight = math.log(1 + (num_passages - num_with_term + 0.5) / (num_with_term + 0.5))
            norm = k1 * (1 - b + b * len(passage) / mean_length)
            score += weight * frequency / (frequency + norm)
        scores.append(score)
    return scores
