"""The worker behind a GPU engine: what waits for the device, and the steps that run on it.

One thread launches everything, in the order of one stream. Every step merges the next part of all
running operations: prefill rows (each sequence's in passes of its own), then the decode rows of all
verifications in one pass, then all runs of decode steps. Beside other work a run has a few steps,
alone it goes on up to the end of a sentence or until other work comes. One lock guards sequences,
cache and queue; it is not held while a step runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flarecore import _C
from flarecore.errors import ClosedError, FlarecoreError, UnsupportedError
from flarecore.gpu.kv_cache import KvCache, KvSequence
from flarecore.gpu.operation import GpuOperation
from flarecore.gpu.passages import PassageBlocks
from flarecore.gpu.state import OperationRequest, SequenceState, StepLimits, StepPart
from flarecore.gpu.stepper import Stepper

__all__ = ["EngineSetup", "Worker"]


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


class Worker:
    """Runs operations on one thread; the core of an engine adds what is asked of it (engine.py)."""

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
                raise ClosedError("the engine is closed; make a new one")
            self._close_dropped()
            yield

    def shutdown(self) -> None:
        """Stops the worker; running operations fail with ClosedError. May be repeated."""
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

    def _finished(self, operation: GpuOperation) -> None:
        """Called when it has succeeded, before anyone hears of it."""

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
                            self._fail(operation, ClosedError("the engine was closed"))
                if parts:
                    self._step(parts)
                with self._lock:
                    self._commit(parts)
                    completed, self._completed = self._completed, []
                    self._close_dropped()
                    self._idle.notify_all()
                    # A job that came during the step still has its waiter.
                    is_over = self._is_stopping and not (self._running or self._jobs)
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
        if len(parts) == len(self._running) and all(part.run is not None for part in parts):
            for index, part in enumerate(parts):
                part.operation.lengthen_run(self._cache, part, setup.limits, len(parts) - index)
        # Whoever was served goes to the back, so that a long prefill cannot starve the others.
        for part in parts:
            self._running.remove(part.operation)
            self._running.append(part.operation)
        return parts

    def _step(self, parts: Sequence[StepPart]) -> None:
        try:
            results = self._setup.stepper.step(parts, lambda: self._is_wanted(parts))
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

    def _is_wanted(self, parts: Sequence[StepPart]) -> bool:
        """Whether runs should make way. Without the lock: what it misses it sees a replay later."""
        return (self._is_stopping or bool(self._completed) or bool(self._jobs)
                or len(self._running) > len(parts)
                or any(part.operation.is_overdue for part in parts))

    def _commit(self, parts: Sequence[StepPart]) -> None:
        self._num_steps += bool(parts)
        for part in parts:
            self._num_rows += part.num_rows + part.num_run_rows
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
        self._finished(operation)
        self._running.remove(operation)
        self._completed.append(operation)

    def _fail(self, operation: GpuOperation, error: FlarecoreError) -> None:
        operation.fail(self._cache, error)
        self._running.remove(operation)
        self._completed.append(operation)

