"""Exact scores and their order: the one place that decides what is better.

A score is the dot product of two stored float32 vectors, added up in double in one fixed order, so
it does not depend on how a candidate was found or on what was scored beside it. Equal scores keep
the order in which the passages were added.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = [
    "FloatArray",
    "IndexArray",
    "RankedRows",
    "exact_top_k",
    "normalized",
    "rank_candidates",
]

FloatArray = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]
RankedRows = tuple[IndexArray, npt.NDArray[np.float64]]
"""Row numbers, best first, and their scores."""

_NO_LENGTH = 1e-60  # divides zero rows; any other row of floats is longer in double
_CHUNK_ROWS = 16384  # rows gathered at a time: 25 MB at 384 dimensions


def normalized(vectors: FloatArray) -> FloatArray:
    """(n, dim) float32 rows of length 1; a zero row stays zero."""
    wide = vectors.astype(np.float64)
    lengths = np.sqrt(np.add.reduce(wide * wide, axis=1, keepdims=True))
    return np.ascontiguousarray(wide / np.maximum(lengths, _NO_LENGTH), dtype=np.float32)


def rank_candidates(
    vectors: FloatArray, query: FloatArray, candidates: IndexArray, k: int
) -> RankedRows:
    """The best `k` of some rows.

    Parameters
    ----------
    vectors : (n, dim) float32
    query : (dim,) float32
    candidates : (m,) int64
        Row numbers without repeats, in any order.
    k : int

    Returns
    -------
    rows : (min(k, m),) int64
        Best first; equal scores by row number.
    scores : (min(k, m),) float64
    """
    products = vectors[candidates] * query.astype(np.float64)
    scores = np.add.reduce(products, axis=1)
    order = np.lexsort((candidates, -scores))[:k]
    return candidates[order], scores[order]


def exact_top_k(
    vectors: FloatArray, queries: FloatArray, k: int, rows: IndexArray | None = None
) -> list[RankedRows]:
    """The true best `k` rows for each query.

    A float32 matrix product, whose result depends on the shapes, only narrows the choice: its
    error for vectors of length 1 is at most dim * 2^-24 (Cauchy-Schwarz), so every row that could
    be among the best is within twice that of the k-th score and is scored again.

    Parameters
    ----------
    vectors : (n, dim) float32, rows of length at most 1
    queries : (q, dim) float32, rows of length at most 1
    k : int
    rows : (m,) int64, optional
        The rows to choose from; all if None.

    Returns
    -------
    list of (rows, scores)
        As from :func:`rank_candidates`, one pair per query.
    """
    num_rows = len(vectors) if rows is None else len(rows)
    if num_rows == 0:
        empty = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64)
        return [empty for _ in queries]
    rough = np.empty((len(queries), num_rows), dtype=np.float32)
    for begin in range(0, num_rows, _CHUNK_ROWS):
        end = min(begin + _CHUNK_ROWS, num_rows)
        part = vectors[begin:end] if rows is None else vectors[rows[begin:end]]
        rough[:, begin:end] = queries @ part.T
    slack = 2.0 * vectors.shape[1] * 2.0**-24
    results = []
    for query, scores in zip(queries, rough, strict=True):
        if k < num_rows:
            kth = np.partition(scores, num_rows - k)[num_rows - k]
            chosen = np.flatnonzero(scores >= kth - slack)
        else:
            chosen = np.arange(num_rows)
        results.append(rank_candidates(
            vectors, query, chosen if rows is None else rows[chosen], k))
    return results
