"""The GPU engine behind :class:`flarecore.Engine`, with the native engine's interface.

One worker thread launches everything, in the order of one stream. Every step merges the next part
of all running operations: prefill rows (each sequence's in passes of its own), then the decode rows
of all verifications in one pass, then all runs of decode steps. One lock guards sequences, cache
and queue; it is not held while the device works.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore import _C
from flarecore.errors import (
    CancelledError,
    ConfigError,
    ContextOverflowError,
    FlarecoreError,
    PassageFileError,
    SequenceBusyError,
    UnsupportedError,
)
from flarecore.gpu.kv_cache import KvCache, KvSequence, blocks_for
from flarecore.gpu.operation import GpuOperation
from flarecore.gpu.passages import GpuPassage, PassageBlocks
from flarecore.gpu.state import (
    HeldTokens,
    OperationRequest,
    SequenceState,
    StepLimits,
    StepPart,
    check_ids,
    check_request,
)
from flarecore.gpu.stepper import Stepper

__all__ = ["Core", "EngineSetup"]


class _Job:
    """Something for the worker to do between two steps, and what came of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.is_done = threading.Event()
        self.result: Any = None
        self.error: FlarecoreError | None = None


@dataclass(frozen=True)
class EngineSetup:
    """What a core is made of. `block_size_bytes` is all layers' K and V of one block."""

    model: _C.Model
    stepper: Stepper
    num_blocks: int
    block_size_bytes: int
    weights_size_bytes: int
    context_length: int
    vocab_size: int
    limits: StepLimits
    max_decode_rows: int


class Core:
    """Sequences, cache and worker of one engine; see flarecore.gpu.handles for what users hold."""

    def __init__(self, setup: EngineSetup) -> None:
        self._setup = setup
        self._cache = KvCache(setup.num_blocks, setup.stepper.copy_blocks)
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)  # work for the worker
        self._idle = threading.Condition(self._lock)  # an operation has ended
        self._running: list[GpuOperation] = []
        self._completed: list[GpuOperation] = []
        # What was garbage collected, maybe inside a critical section: closed when it is safe.
        self._dropped: deque[SequenceState | KvSequence | PassageBlocks] = deque()
        self._jobs: deque[_Job] = deque()
        self._is_stopping = False
        self._num_sequences = 0
        self._num_steps = 0
        self._num_rows = 0
        self._worker = threading.Thread(target=self._run, name="flarecore-gpu", daemon=True)
        self._worker.start()

    # --- any thread ---

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The lock, with dropped objects closed. Raises after fork() and after shutdown()."""
        if os.getpid() != self._process_id:
            raise UnsupportedError(
                f"the engine belongs to process {self._process_id} and cannot be used after "
                f"fork(); make a new engine in process {os.getpid()}")
        with self._lock:
            if self._is_stopping:
                raise ConfigError("the engine is closed")
            self._close_dropped()
            yield

    def shutdown(self) -> None:
        """Stops the worker; running operations fail with CancelledError. May be repeated."""
        if os.getpid() != self._process_id:
            return
        with self._lock:
            self._is_stopping = True
            self._wake.notify_all()
        if threading.current_thread() is not self._worker:
            self._worker.join()

    @property
    def block_size_bytes(self) -> int:
        return self._setup.block_size_bytes

    def drop(self, owned: SequenceState | KvSequence | PassageBlocks) -> None:
        """Closes it later: from destructors, which may run anywhere."""
        self._dropped.append(owned)

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

    def _call(self, function: Callable[[], Any]) -> Any:
        """Runs it in the order of the worker's stream, before its next step."""
        if threading.current_thread() is self._worker:
            return function()
        job = _Job(function)
        with self.locked():
            self._jobs.append(job)
            self._wake.notify_all()
        job.is_done.wait()
        if job.error is not None:
            raise job.error
        return job.result

    # --- under the lock ---

    def _start(self, sequence: SequenceState, request: OperationRequest) -> GpuOperation:
        operation = GpuOperation(sequence, request, self._setup.model, self._setup.context_length)
        sequence.operation = operation
        self._running.append(operation)
        self._wake.notify_all()
        return operation

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

    def _close_now(self, sequence: SequenceState) -> None:
        if not sequence.is_closed and not sequence.is_busy:
            self._cache.close(sequence.kv)
            sequence.is_closed = True
            self._num_sequences -= 1

    def _close_dropped(self) -> None:
        for _ in range(len(self._dropped)):
            owned = self._dropped.popleft()
            if isinstance(owned, KvSequence):
                self._cache.close(owned)
            elif isinstance(owned, PassageBlocks):
                self._cache.release_passage(owned)
            elif owned.operation is not None:
                owned.operation.cancel()
                self._dropped.append(owned)  # closed when that has ended
            else:
                self._close_now(owned)

    def _check_usable(self, sequence: SequenceState) -> None:
        if sequence.is_closed:
            raise ConfigError("the sequence is closed")
        if sequence.is_busy:
            raise SequenceBusyError(
                "an operation still runs on the sequence; wait for it or cancel it first")

    # --- the worker ---

    def _run(self) -> None:
        with self._setup.stepper.stream():
            while True:
                with self._lock:
                    while not (self._is_stopping or self._running or self._jobs):
                        self._wake.wait()
                    self._run_jobs()
                    parts = [] if self._is_stopping else self._plan()
                    if self._is_stopping:
                        for operation in list(self._running):
                            self._fail(operation, CancelledError("the engine was closed"))
                if parts:
                    self._step(parts)
                with self._lock:
                    self._commit(parts)
                    completed, self._completed = self._completed, []
                    self._close_dropped()
                    self._idle.notify_all()
                    is_over = self._is_stopping and not self._running
                for operation in completed:
                    operation.notify()
                del parts, completed
                if is_over:
                    return

    def _run_jobs(self) -> None:
        while self._jobs:
            job = self._jobs.popleft()
            try:
                job.result = job.function()
            except Exception as error:  # whatever it is, the waiter must hear of it
                job.error = FlarecoreError(f"blocks could not be moved: {error}")
            job.is_done.set()

    def _plan(self) -> list[StepPart]:
        setup = self._setup
        parts: list[StepPart] = []
        prefill_rows = decode_rows = num_runs = 0
        for operation in list(self._running):
            if (prefill_rows >= setup.limits.prefill_rows or num_runs >= setup.max_decode_rows
                    or decode_rows + setup.limits.decode_rows > setup.max_decode_rows):
                break
            try:
                operation.check_limits()
                if not operation.has_begun and operation.begin(self._cache):
                    self._succeed(operation)
                    continue
                part = operation.plan(self._cache, setup.limits)
            except FlarecoreError as error:
                self._fail(operation, error)
                continue
            except Exception as error:
                self._fail(operation, FlarecoreError(f"blocks could not be copied: {error}"))
                continue
            parts.append(part)
            prefill_rows += len(part.prefill_ids)
            decode_rows += len(part.row_ids)
            num_runs += part.run is not None
        # Whoever was served goes to the back, so that a long prefill cannot starve the others.
        for part in parts:
            self._running.remove(part.operation)
            self._running.append(part.operation)
        return parts

    def _step(self, parts: Sequence[StepPart]) -> None:
        try:
            results = self._setup.stepper.step(parts)
        except Exception as error:  # whatever it is, waiters must hear of it
            for part in parts:
                part.error = FlarecoreError(f"the forward pass failed: {error}")
            return
        for part, (rows, run) in zip(parts, results, strict=True):
            try:
                part.operation.take(part, rows, run)
            except FlarecoreError as error:
                part.error = error
            except Exception as error:
                part.error = FlarecoreError(f"taking the sampled tokens failed: {error!r}")

    def _commit(self, parts: Sequence[StepPart]) -> None:
        self._num_steps += bool(parts)
        for part in parts:
            self._num_rows += part.num_rows + (part.run.num_steps if part.run is not None else 0)
            if part.error is not None:
                self._fail(part.operation, part.error)
            else:
                try:
                    if part.operation.commit(self._cache, part):
                        self._succeed(part.operation)
                except Exception as error:  # the device refused a copy
                    self._fail(part.operation, FlarecoreError(f"the step failed: {error}"))

    def _succeed(self, operation: GpuOperation) -> None:
        operation.succeed(self._cache)
        if operation.passage is not None:
            operation.give_passage(GpuPassage(self, operation.passage))
        self._running.remove(operation)
        self._completed.append(operation)

    def _fail(self, operation: GpuOperation, error: FlarecoreError) -> None:
        operation.fail(self._cache, error)
        self._running.remove(operation)
        self._completed.append(operation)

