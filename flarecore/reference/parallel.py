"""Attached passages the slow way: one plain forward pass with explicit positions and masks.

Placement ``parallel`` approximates; this is what exactly. With a head of H tokens, R
reserved positions, passages P1, P2, … and the tokens Q behind the head:

* token i of a passage has the position H + i, and sees the head and its own passage up to itself;
* token j of Q has the position H + R + j, and sees the head and Q up to itself;
* those of Q from the index `sees_from` of the sequence on (head included) see all passages too.

Parallel context windows: Ratner et al. 2023, arXiv 2212.10947.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["LaidOut", "MaskedDecoder", "lay_out", "open_parallel", "parallel_logits"]

Ids = Sequence[int]


class MaskedDecoder(Protocol):
    """A forward pass that is told positions and masks."""

    def logits(
        self, token_ids: Ids, *, last: int | None = None, positions: Ids | None = None,
        visible: npt.NDArray[np.bool_] | None = None,
    ) -> npt.NDArray[Any]:
        """(T, V) or (last, V) logits."""
        ...


@dataclass(frozen=True)
class LaidOut:
    """T tokens for one forward pass: head, passages, the other tokens.

    Attributes
    ----------
    token_ids, positions
        (T,) ids and rotary positions.
    visible
        (T, T) bool: what each token (row) sees.
    """

    token_ids: list[int]
    positions: list[int]
    visible: npt.NDArray[np.bool_]


def lay_out(
    token_ids: Ids, num_head: int, num_reserved: int, passages: Sequence[Ids], sees_from: int
) -> LaidOut:
    """What a sequence with attached passages is.

    Parameters
    ----------
    token_ids
        The sequence, head included.
    num_head, num_reserved
        Tokens of the head, positions reserved behind it.
    passages
        Ids of each.
    sees_from
        Index into `token_ids` of the first token that sees them.
    """
    ids, positions = list(token_ids[:num_head]), list(range(num_head))
    owner = [0] * num_head  # 0: the sequence; n: passage n
    for number, passage in enumerate(passages, start=1):
        ids += passage
        positions += range(num_head, num_head + len(passage))
        owner += [number] * len(passage)
    first_rest = len(ids)
    ids += token_ids[num_head:]
    positions += [num_reserved + i for i in range(num_head, len(token_ids))]
    owner += [0] * (len(token_ids) - num_head)
    visible = np.zeros((len(ids), len(ids)), dtype=bool)
    for row in range(len(ids)):
        sees_passages = row >= first_rest and row - first_rest + num_head >= sees_from
        for column in range(row + 1):
            is_own = column < num_head or owner[column] == owner[row]
            visible[row, column] = is_own or (sees_passages and owner[column] > 0)
    return LaidOut(ids, positions, visible)


def parallel_logits(
    decoder: MaskedDecoder, token_ids: Ids, num_head: int, num_reserved: int,
    passages: Sequence[Ids], sees_from: int, *, last: int,
) -> npt.NDArray[Any]:
    """(last, V) logits of the last tokens of a sequence; arguments as for :func:`lay_out`."""
    laid = lay_out(token_ids, num_head, num_reserved, passages, sees_from)
    return decoder.logits(
        laid.token_ids, last=last, positions=laid.positions, visible=laid.visible)


def open_parallel(
    decoder: MaskedDecoder, token_ids: Ids, num_head: int, num_reserved: int,
    passages: Sequence[Ids], sees_from: int,
) -> Callable[[int | None], npt.NDArray[Any]]:
    """Step through a sequence with passages: see `flarecore.reference.token_source`."""
    ids = list(token_ids)

    def step(token_id: int | None) -> npt.NDArray[Any]:
        if token_id is not None:
            ids.append(token_id)
        return np.asarray(parallel_logits(
            decoder, ids, num_head, num_reserved, passages, sees_from, last=1)[0])

    return step
