"""The GPU engine behind :class:`flarecore.Engine`: what may be asked of its sequences.

The native engine's interface and rules. Everything here only changes what the engine's lock guards
and may be called from any thread; the worker (worker.py) does the work.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flarecore.errors import (
    ClosedError,
    ConfigError,
    ContextOverflowError,
    PassageFileError,
    SequenceBusyError,
)
from flarecore.gpu.kv_cache import KvSequence, blocks_for
from flarecore.gpu.operation import GpuOperation
from flarecore.gpu.passages import GpuPassage, PassageBlocks
from flarecore.gpu.state import (
    HeldTokens,
    OperationRequest,
    SequenceState,
    check_ids,
    check_request,
)
from flarecore.gpu.worker import EngineSetup, Worker

__all__ = ["Core", "EngineSetup"]


class Core(Worker):
    """Sequences, cache and worker of one engine; see flarecore.gpu.handles for what users hold."""

    def open_sequence(self, num_head: int, num_reserved: int) -> SequenceState:
        context = self._setup.context_length
        if num_head + num_reserved >= context:
            raise ContextOverflowError(
                f"a head of {num_head} tokens and {num_reserved} reserved positions leave no room "
                f"in the context of {context} tokens")
        with self.locked():
            sequence = self._new_sequence()
            sequence.kv.num_head, sequence.kv.num_reserved = num_head, num_reserved
            return sequence

    def close(self, sequence: SequenceState) -> None:
        """Cancels its operation, waits for its end and gives the blocks back."""
        if os.getpid() != self._process_id:
            return
        with self._lock:
            if sequence.operation is not None:
                sequence.operation.cancel()
            if threading.current_thread() is not self._worker:
                self._idle.wait_for(lambda: not sequence.is_busy)
            self._close_now(sequence)

    def fork(self, sequence: SequenceState) -> SequenceState:
        with self.locked():
            self._check_usable(sequence)
            child = self._new_sequence()
            child.tokens, child.held = list(sequence.tokens), sequence.held
            self._cache.fork(sequence.kv, child.kv)
            return child

    def truncate(self, sequence: SequenceState, num_tokens: int) -> None:
        with self.locked():
            self._check_usable(sequence)
            size = len(sequence.tokens)
            if not 0 <= num_tokens <= size:
                raise ConfigError(
                    f"cannot truncate to {num_tokens} tokens; the sequence has {size}")
            num_head = sequence.kv.num_head
            if sequence.kv.passages and num_tokens < num_head:
                raise ConfigError(
                    f"cannot truncate to {num_tokens} tokens, inside the head of {num_head} tokens "
                    "that the attached passages belong to; detach them first")
            if num_tokens < size:
                del sequence.tokens[num_tokens:]
                sequence.held = HeldTokens()
                self._cache.truncate(sequence.kv, num_tokens)

    def save(self, sequence: SequenceState) -> tuple[list[int], KvSequence, HeldTokens]:
        """Everything that a rollback brings back; the KV holds its blocks until it is dropped."""
        with self.locked():
            self._check_usable(sequence)
            kv = KvSequence()
            self._cache.open(kv)
            self._cache.fork(sequence.kv, kv)
            return list(sequence.tokens), kv, sequence.held

    def restore(self, sequence: SequenceState, tokens: list[int], kv: KvSequence,
                held: HeldTokens) -> None:
        with self.locked():
            self._check_usable(sequence)
            self._cache.truncate(sequence.kv, 0)
            self._cache.fork(kv, sequence.kv)
            sequence.tokens, sequence.held = list(tokens), held

    def submit(self, sequence: SequenceState, request: OperationRequest) -> GpuOperation:
        """Validates everything first: a refused request changes nothing."""
        with self.locked():
            self._check_usable(sequence)
            check_request(sequence, request, self._setup.vocab_size, self._setup.context_length)
            return self._start(sequence, request)

    def encode(self, sequence: SequenceState, request: OperationRequest) -> GpuOperation:
        """Starts a passage behind the head of a sequence, which stays as it is."""
        with self.locked():
            self._check_usable(sequence)
            check_ids(request.token_ids, self._setup.vocab_size)
            kv, size = sequence.kv, len(request.token_ids)
            if not 1 <= size <= kv.num_reserved:
                raise ConfigError(f"a passage of {size} tokens; the sequence reserves positions "
                                  f"for 1 to {kv.num_reserved} (num_reserved)")
            self._check_head(sequence, "encoded")
            alone = SequenceState(sequence.tokens[: kv.num_head])
            self._cache.open(alone.kv)
            self._cache.fork(kv, alone.kv)
            self._cache.truncate(alone.kv, kv.num_head)
            self._cache.attach(alone.kv, (), 0)
            # The passage follows the head at once, and its copy is what others share.
            alone.kv.num_head, alone.kv.num_reserved, alone.kv.private_from = 0, 0, kv.num_head
            return self._start(alone, request)

    def attach(self, sequence: SequenceState, passages: Sequence[PassageBlocks],
               sees_from: int) -> None:
        """Lets tokens see these passages and no others."""
        with self.locked():
            self._check_usable(sequence)
            kv = sequence.kv
            if passages:
                if not kv.num_reserved:
                    raise ConfigError("the sequence reserves no positions for passages; open it "
                                      "with num_head_tokens and num_reserved")
                self._check_head(sequence, "attached")
                if sees_from < kv.num_head:
                    raise ConfigError(f"from_token must be at least {kv.num_head} (tokens of the "
                                      f"head), got {sees_from}")
            for passage in passages:
                if list(passage.head) != sequence.tokens[: kv.num_head]:
                    raise ConfigError(
                        "the passage was encoded behind another head than the sequence has")
                if len(passage.tokens) > kv.num_reserved:
                    raise ConfigError(
                        f"a passage of {len(passage.tokens)} tokens; the sequence reserves "
                        f"{kv.num_reserved} positions (num_reserved)")
            if self._cache.attach(kv, passages, sees_from):
                sequence.held = HeldTokens()

    def load_passage(self, head: Sequence[int], tokens: Sequence[int],
                     data: npt.NDArray[np.uint8]) -> PassageBlocks:
        """A passage whose blocks are there already, as :meth:`read_passage` gave them."""
        for ids in (head, tokens):
            check_ids(ids, self._setup.vocab_size)
        size = blocks_for(len(tokens)) * self.block_size_bytes
        if not len(tokens) or data.size != size:
            raise PassageFileError(
                f"a passage of {len(tokens)} tokens takes {size} bytes, got {data.size}")
        with self.locked():
            passage = self._cache.new_passage(head, tokens)
        try:
            self._call(lambda: self._setup.stepper.forward.kv.write_blocks(passage.blocks, data))
        except BaseException:
            self.drop(passage)
            raise
        return passage

    def read_passage(self, passage: PassageBlocks) -> npt.NDArray[np.uint8]:
        """(size_bytes,) the bytes of its blocks."""
        kv = self._setup.stepper.forward.kv
        values: npt.NDArray[np.uint8] = self._call(lambda: kv.read_blocks(passage.blocks))
        return values

    def is_attached(self, passage: PassageBlocks) -> bool:
        with self._lock:
            return self._cache.is_attached(passage)

    def check_integrity(self) -> None:
        with self.locked():
            self._cache.check_integrity()

    def stats(self) -> dict[str, int]:
        with self.locked():
            pool, setup = self._cache.pool, self._setup
            return {"num_blocks": pool.num_blocks, "num_held_blocks": pool.num_held,
                    "num_cached_blocks": pool.num_cached,
                    "block_size_bytes": setup.block_size_bytes,
                    "weights_size_bytes": setup.weights_size_bytes,
                    "num_sequences": self._num_sequences, "num_steps": self._num_steps,
                    "num_rows": self._num_rows}

    # --- under the lock ---

    def _check_head(self, sequence: SequenceState, what: str) -> None:
        num_head, size = sequence.kv.num_head, len(sequence.tokens)
        if num_head > size:
            raise ConfigError(f"the sequence has {size} tokens, its head {num_head}; extend it "
                              f"before passages are {what}")

    def _new_sequence(self) -> SequenceState:
        sequence = SequenceState()
        self._cache.open(sequence.kv)
        self._num_sequences += 1
        return sequence

    def _check_usable(self, sequence: SequenceState) -> None:
        if sequence.is_closed:
            raise ClosedError("the sequence is closed; open a new one")
        if sequence.is_busy:
            raise SequenceBusyError(
                "an operation still runs on the sequence; wait for it or cancel it first")

    def _finished(self, operation: GpuOperation) -> None:
        if operation.passage is not None:
            operation.give_passage(GpuPassage(self, operation.passage))
