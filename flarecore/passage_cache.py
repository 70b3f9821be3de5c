"""Passage KV of an engine, kept under a byte budget (placement ``parallel``)."""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flarecore.errors import CancelledError
from flarecore.operation import Operation
from flarecore.passage_kv import PassageKv, to_passage

if TYPE_CHECKING:
    from flarecore.passage_file import PassageKvFile
    from flarecore.sequence import Sequence as EngineSequence

__all__ = ["EncodedPassage", "PassageCache", "PassageCacheStats"]

_Key = tuple[bytes, bytes]


@dataclass(frozen=True)
class PassageCacheStats:
    """What a cache holds, and what was asked of it.

    Parameters
    ----------
    num_passages, size_bytes, budget_bytes : int
        Passages in memory and their size; the most that are kept. Passages that sequences see
        stay, also where they exceed it.
    num_hits, num_misses : int
        Lookups that found a passage (in memory or in a file), and the others.
    num_encoded, num_joined, num_evicted, num_loaded : int
        Passages that were computed; requests that waited for a computation someone else had begun;
        passages dropped from memory; passages taken from a file.
    """

    num_passages: int
    size_bytes: int
    budget_bytes: int
    num_hits: int
    num_misses: int
    num_encoded: int
    num_joined: int
    num_evicted: int
    num_loaded: int


@dataclass(frozen=True)
class EncodedPassage:
    """A passage and what it cost the one who asked: tokens prefilled, 0 if others computed it."""

    passage: PassageKv
    num_prefilled: int


class _Work:
    """A passage that is being computed, and how many wait for it."""

    def __init__(self, key: _Key, operation: Operation[PassageKv], size_bytes: int) -> None:
        self.key = key
        self.operation = operation
        self.size_bytes = size_bytes
        self.num_waiting = 1
        self.passage: PassageKv | None = None


class _Ready(Operation[EncodedPassage]):
    """What is there already, as an operation."""

    def __init__(self, passage: PassageKv) -> None:
        self._encoded = EncodedPassage(passage, 0)

    def done(self) -> bool:
        return True

    def cancel(self) -> None:
        return None

    def result(self, timeout: float | None = None) -> EncodedPassage:
        return self._encoded

    async def _wait(self) -> EncodedPassage:
        return self._encoded


class PassageOperation(Operation[EncodedPassage]):
    """One request's share in a computation. It is cancelled when all who wait for it are gone."""

    def __init__(self, cache: PassageCache, work: _Work, is_first: bool) -> None:
        self._cache = cache
        self._work = work
        self._has_left = False

        def convert(raw: dict[str, Any]) -> EncodedPassage:
            cost = raw["stats"]["num_prefilled"] if is_first else 0
            return EncodedPassage(cache._take(work, raw), cost)

        super().__init__(work.operation._native, convert, work.operation)

    def done(self) -> bool:
        """True once it has ended, or this request was cancelled."""
        return self._has_left or super().done()

    def cancel(self) -> None:
        """Ends this request; the computation only if nobody else waits for it."""
        if not self._has_left:
            self._has_left = True
            self._cache._leave(self._work)

    def result(self, timeout: float | None = None) -> EncodedPassage:
        """As :meth:`Operation.result`; CancelledError once this request was cancelled."""
        if self._has_left:
            raise CancelledError("the request for the passage was cancelled")
        return super().result(timeout)

    def _abandon(self) -> None:
        self.cancel()


class PassageCache:
    """Passage KV by head and passage, the least recently used dropped first.

    Usable from any thread. A passage that several want at once is computed once.

    Parameters
    ----------
    budget_bytes : int
        Most memory of passages that no sequence sees; 0 keeps none.
    block_size_bytes : int, optional
        Size of a block of 32 tokens, if passages take the blocks of the engine's KV cache (on a
        GPU): what is over the budget is then dropped before a passage is computed, not after.
    """

    def __init__(self, budget_bytes: int, block_size_bytes: int | None = None) -> None:
        self._budget_bytes = budget_bytes
        self._block_size_bytes = block_size_bytes
        self._lock = threading.RLock()
        self._kept: OrderedDict[_Key, PassageKv] = OrderedDict()
        self._size_bytes = 0
        self._running: dict[_Key, _Work] = {}
        self._files: list[PassageKvFile] = []
        self._counts = dict.fromkeys(
            ("hits", "misses", "encoded", "joined", "evicted", "loaded"), 0)

    def get(self, head_ids: Sequence[int], token_ids: Sequence[int]) -> PassageKv | None:
        """The passage, if it is in memory or in an attached file.

        Raises
        ------
        IndexFileError
            The passage's blocks in the file are damaged.
        """
        key = _key(head_ids, token_ids)
        with self._lock:
            passage, files = self._kept.get(key), list(self._files)
        # Not under the lock: a GPU engine's worker, which does the reading, may be waiting for it.
        for file in files if passage is None else ():
            if not file.is_mapped:
                with self._lock:
                    self._make_room(len(token_ids))
            passage, is_new = file._find(head_ids, token_ids)
            if passage is not None:
                with self._lock:
                    self._counts["loaded"] += is_new
                    if not file.is_mapped:
                        passage = self._keep(key, passage)
                break
        with self._lock:
            self._counts["misses" if passage is None else "hits"] += 1
            if key in self._kept:
                self._kept.move_to_end(key)
        return passage

    def fetch_async(
        self, sequence: EngineSequence, token_ids: Sequence[int]
    ) -> Operation[EncodedPassage]:
        """Computes a passage behind the head of a sequence and keeps it.

        Joins the computation of the same passage that is running already. It has no deadline of
        its own, since others may wait for it. Errors as for :meth:`Sequence.encode_passage`.
        """
        key = _key(sequence.token_ids[:sequence.num_head_tokens], token_ids)
        with self._lock:
            passage = self._kept.get(key)
            if passage is not None:
                return _Ready(passage)
            work = self._running.get(key)
            if work is not None:
                work.num_waiting += 1
                self._counts["joined"] += 1
                return PassageOperation(self, work, is_first=False)
            size = self._make_room(len(token_ids))
            operation = sequence.encode_passage_async(token_ids)
            work = self._running[key] = _Work(key, operation, size)
        # Outside of the lock: it may be done already, and then calls back at once.
        operation._native.on_done(lambda: self._ended(work))
        return PassageOperation(self, work, is_first=True)

    def add(self, passage: PassageKv) -> None:
        """Keeps a passage that was encoded elsewhere, as far as the budget allows."""
        with self._lock:
            self._keep(_key(passage.head_ids, passage.token_ids), passage)

    def attach_file(self, file: PassageKvFile) -> None:
        """Looks passages up in a file as well.

        Its blocks are used where they are mapped; a GPU engine copies them and keeps the copies
        under its budget.
        """
        with self._lock:
            self._files.append(file)

    def passages(self) -> list[PassageKv]:
        """The passages in memory, the least recently used first."""
        with self._lock:
            return list(self._kept.values())

    def clear(self) -> None:
        """Forgets all passages and files. Sequences that see passages keep them."""
        with self._lock:
            self._kept.clear()
            self._files.clear()
            self._size_bytes = 0

    def stats(self) -> PassageCacheStats:
        """What it holds and what was asked of it."""
        with self._lock:
            return PassageCacheStats(
                num_passages=len(self._kept), size_bytes=self._size_bytes,
                budget_bytes=self._budget_bytes,
                **{f"num_{name}": count for name, count in self._counts.items()})

    def _make_room(self, num_tokens: int) -> int:
        """Drops passages so that one of so many tokens fits besides; its size, 0 if it has its own
        memory."""
        if self._block_size_bytes is None:
            return 0
        size = -(-num_tokens // 32) * self._block_size_bytes
        coming = size + sum(work.size_bytes for work in self._running.values())
        self._drop(list(self._over_budget(None, coming)))
        return size

    def _drop(self, keys: Iterable[_Key]) -> None:
        for key in keys:
            self._size_bytes -= self._kept.pop(key).size_bytes
            self._counts["evicted"] += 1

    def _keep(self, key: _Key, passage: PassageKv) -> PassageKv:
        known = self._kept.get(key)
        if known is not None:
            return known
        self._kept[key] = passage
        self._size_bytes += passage.size_bytes
        self._drop(list(self._over_budget(passage)))
        return passage

    def _over_budget(self, newest: PassageKv | None, coming_bytes: int = 0) -> Iterator[_Key]:
        """Passages to drop, the least recently used first, if so many bytes are still to come."""
        surplus = self._size_bytes + coming_bytes - self._budget_bytes
        for key, passage in self._kept.items():
            if surplus <= 0:
                return
            # The newest is shared with the result that brought it, which says nothing.
            if passage is newest or not passage.is_attached:
                surplus -= passage.size_bytes
                yield key

    def _take(self, work: _Work, raw: dict[str, Any]) -> PassageKv:
        """Keeps the result of a computation, once; all who wait get the same object."""
        with self._lock:
            if self._running.get(work.key) is work:
                del self._running[work.key]
                self._counts["encoded"] += 1
                work.passage = self._keep(work.key, to_passage(raw))
            return work.passage or to_passage(raw)

    def _ended(self, work: _Work) -> None:
        """Called when the computation has ended, in whatever way."""
        with contextlib.suppress(Exception):  # who waits for it is told
            self._take(work, work.operation._native.result())
        with self._lock:
            if self._running.get(work.key) is work:
                del self._running[work.key]

    def _leave(self, work: _Work) -> None:
        with self._lock:
            work.num_waiting -= 1
            if work.num_waiting > 0:
                return
            if self._running.get(work.key) is work:
                del self._running[work.key]  # who comes later begins anew
        work.operation.cancel()


def _key(head_ids: Sequence[int], token_ids: Sequence[int]) -> _Key:
    return array("i", head_ids).tobytes(), array("i", token_ids).tobytes()
