"""Tokens from a reference decoder and the reference sampler, for the naive loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from flarecore.reference.naive_types import NaiveAttached
from flarecore.reference.parallel import MaskedDecoder, open_parallel
from flarecore.reference.sampler import sample

__all__ = ["ReferenceTokenSource", "SteppingDecoder"]


class SteppingDecoder(Protocol):
    """A decoder that can go through a sequence token by token."""

    def open(
        self, token_ids: Sequence[int]
    ) -> Callable[[int | None], npt.NDArray[np.floating[Any]]]:
        """Begin with some tokens.

        What is returned appends a token (None at the first call: nothing) and gives the (V,) logits
        of what comes next.
        """
        ...


class ReferenceTokenSource:
    """A `flarecore.reference.naive_loop.TokenSource`.

    Parameters
    ----------
    decoder
        `ReferenceDecoder` or `TransformersDecoder`; with attached passages it must take masks.
    end_of_text
        Token ids that end the text.
    sampling
        Options of `flarecore.reference.sampler.sample`.
    """

    def __init__(
        self,
        decoder: SteppingDecoder,
        end_of_text: Collection[int],
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self._decoder = decoder
        self._end_of_text = frozenset(end_of_text)
        self._sampling = dict(sampling or {})

    def stream(
        self, token_ids: Sequence[int], pass_index: int, attached: NaiveAttached | None = None
    ) -> Callable[[], tuple[int | None, float]]:
        """See `TokenSource.stream`."""
        ids = list(token_ids)
        if attached is None:
            step = self._decoder.open(ids)
        else:
            step = open_parallel(
                cast(MaskedDecoder, self._decoder), ids, attached.num_head, attached.num_reserved,
                attached.passages, attached.sees_from)
        last: int | None = None

        def next_token() -> tuple[int | None, float]:
            nonlocal last
            drawn = sample(
                step(last),
                position=len(ids),
                pass_index=pass_index,
                history=ids,
                **self._sampling,
            )
            if drawn.token_id in self._end_of_text:
                return None, drawn.prob
            last = drawn.token_id
            ids.append(last)
            return last, drawn.prob

        return next_token
