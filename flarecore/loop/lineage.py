"""Lineages: paths of token ids whose K/V is cached. The only place that touches sequences.

Two lineages alternate over one trunk: drafts run without evidence, regenerations with it. Each is
brought to the context it needs by its longest common prefix with what it holds, and a lineage that
shares more with the other one starts as a fork of it, so nothing is prefilled twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from flarecore.loop.attaching import Attached, Reserved
from flarecore.loop.cache_room import CacheRoom
from flarecore.loop.effects import RunOperation, Steps
from flarecore.loop.interfaces import (
    DecodedLike,
    EngineLike,
    OperationLike,
    ParallelEngineLike,
    ParallelSequenceLike,
    SequenceLike,
)

__all__ = ["AlignStats", "Lineage", "Lineages", "common_prefix"]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading ids that are equal."""
    length = min(len(a), len(b))
    differs = np.asarray(a[:length]) != np.asarray(b[:length])
    return int(differs.argmax()) if differs.any() else length


@dataclass(frozen=True)
class AlignStats:
    """What aligning a lineage found.

    Parameters
    ----------
    num_reused : int
        Tokens that were there already.
    rest : tuple of int
        Ids that have yet to be prefilled; the next operation does it.
    """

    num_reused: int
    rest: tuple[int, ...]


class Lineage:
    """One sequence and how it follows the context wanted next."""

    def __init__(self, sequence: SequenceLike, attached: Attached | None = None) -> None:
        self._sequence = sequence
        self._attached = attached
        self._rest: tuple[int, ...] = ()

    @property
    def sequence(self) -> SequenceLike:
        """The engine's sequence."""
        return self._sequence

    def num_shared(self, ids: Sequence[int], attached: Attached | None = None) -> int:
        """Leading ids that need no prefill here, with these passages in view."""
        num_shared = common_prefix(self._sequence.token_ids, ids)
        if attached != self._attached:
            # Before their first reader, sequences with other passages are alike.
            num_shared = min(num_shared, *(
                a.from_token for a in (attached, self._attached) if a is not None))
        return num_shared

    def align(self, ids: Sequence[int], attached: Attached | None = None) -> AlignStats:
        """Makes the lineage a prefix of `ids` that the next :meth:`decode` completes.

        A sequence that is one already is not touched, so that a token looked at after the last
        sentence is still there for the next. `attached` are the passages that are in view.
        """
        num_shared = self.num_shared(ids, attached)
        changes = attached != self._attached
        # Only what meets ParallelSequenceLike is asked to attach anything.
        sequence = cast(ParallelSequenceLike, self._sequence)
        if changes and self._attached is not None:
            sequence.detach()
        if num_shared < self._sequence.num_tokens:
            self._sequence.truncate(num_shared)
        if changes and attached is not None:
            sequence.attach(attached.passages, from_token=attached.from_token)
        self._attached = attached
        self._rest = tuple(ids[num_shared:])
        return AlignStats(num_shared, self._rest)

    def complete(
        self, ids: Sequence[int], attached: Attached | None, deadline_ms: float | None
    ) -> Steps[int]:
        """Computes what is missing of `ids`, with these passages in view; the tokens prefilled."""
        if self.num_shared(ids, attached) == len(ids):
            return 0
        rest = self.align(ids, attached).rest
        # Only engines that attach passages, or whose cache can be full, come here: theirs can.
        sequence = cast(ParallelSequenceLike, self._sequence)
        stats = yield RunOperation(lambda: sequence.extend_async(rest, deadline_ms=deadline_ms))
        return int(stats.num_prefilled)

    def decode(self, *, max_tokens: int, **options: Any) -> OperationLike[DecodedLike]:
        """Starts the operation that prefills what :meth:`align` left and decodes a sentence."""
        rest, self._rest = self._rest, ()
        if rest:
            return self._sequence.regenerate_async(rest, max_tokens=max_tokens, **options)
        return self._sequence.decode_async(max_tokens, **options)

    def fork(self) -> Lineage:
        """Another lineage with the same cached tokens."""
        return Lineage(self._sequence.fork(), self._attached)

    def close(self) -> None:
        """Gives the cached blocks back."""
        self._sequence.close()


class Lineages:
    """The lineages of one answer, by name, opened when they are first needed."""

    def __init__(self, engine: EngineLike, reserved: Reserved | None = None) -> None:
        self._engine = engine
        self._reserved = reserved
        self._open: dict[str, Lineage] = {}
        self.room = CacheRoom(engine, self.close)

    def take(
        self, name: str, ids: Sequence[int], attached: Attached | None = None
    ) -> Lineage:
        """The lineage of that name, holding as much of `ids` as any lineage does."""
        own = self._open.get(name)
        num_own = -1 if own is None else own.num_shared(ids, attached)
        others = [line for other, line in self._open.items() if other != name]
        best = max(others, key=lambda line: line.num_shared(ids, attached), default=None)
        if best is not None and best.num_shared(ids, attached) > num_own:
            previous, own = own, best.fork()
            self._open[name] = own
            if previous is not None:
                previous.close()
        if own is None:
            self._open[name] = own = self._opened()
        return own

    def branch(self, ids: Sequence[int], attached: Attached | None = None) -> Lineage:
        """A lineage for one use, forked off the one that holds most of `ids`; close it."""
        best = max(
            self._open.values(), key=lambda line: line.num_shared(ids, attached), default=None)
        return self._opened() if best is None else best.fork()

    def restore(
        self, ids: Sequence[int], attached: Attached | None, deadline_ms: float | None
    ) -> Steps[bool]:
        """Computes what several branches will share, if :attr:`room` gave everything back."""
        if self._open:
            return False
        yield from self.take("draft", ids, attached).complete(ids, attached, deadline_ms)
        return True

    def _opened(self) -> Lineage:
        reserved = self._reserved
        self.room.enter()
        if reserved is None:
            return Lineage(self._engine.sequence())
        engine = cast(ParallelEngineLike, self._engine)
        return Lineage(engine.sequence(
            num_head_tokens=reserved.num_head, num_reserved=reserved.num_positions))

    def release(self, name: str) -> None:
        """Closes the lineage of that name, if it is open."""
        line = self._open.pop(name, None)
        if line is not None:
            line.close()

    def close(self) -> None:
        """Closes all lineages, also those after one that fails to close; may be repeated."""
        try:
            while self._open:
                self._open.popitem()[1].close()
        finally:
            if self._open:
                self.close()
            self.room.leave()
