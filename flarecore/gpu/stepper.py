"""One step of the engine on the device: what the operations planned, launched and read back."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from flarecore.gpu.captures import capture_lock
from flarecore.gpu.decode_run import DecodeRun, DecodeRunner
from flarecore.gpu.forward import Forward
from flarecore.gpu.pass_rows import make_rows
from flarecore.gpu.row_sampling import RowSampler
from flarecore.gpu.run_bucket import RunResult
from flarecore.gpu.state import Sampled, StepPart
from flarecore.gpu.verification import VerificationRunner

__all__ = ["Stepper"]

# Triton's interpreter patches its own modules while a kernel runs: one thread at a time.
_interpreter_lock = threading.Lock()


class Stepper:
    """Launches steps. Used by the engine's worker only.

    Parameters
    ----------
    is_deterministic
        Prefill rows run as decode rows: in the same products and the same order of attention.

    Attributes
    ----------
    num_waits
        How often the host has waited for the device: once a step.
    """

    def __init__(self, forward: Forward, sampler: RowSampler, runner: DecodeRunner,
                 *, is_deterministic: bool) -> None:
        self.forward = forward
        self.runner = runner
        self.verification = VerificationRunner(forward, runner.captures,
                                               use_graphs=runner.use_graphs)
        self.sampler = sampler
        self.copy_blocks = forward.kv.copy_blocks
        self.num_waits = 0
        self._is_deterministic = is_deterministic
        self._is_cuda = forward.device.type == "cuda"
        self._stream: Any = None
        if self._is_cuda:
            self._stream = torch.cuda.Stream(forward.device)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """What the worker launches inside is in the order of the engine's own stream."""
        with torch.inference_mode():
            if self._stream is None:
                yield
                return
            # The weights and the cache were written in the stream of the thread that made them.
            with capture_lock:
                torch.cuda.synchronize(self.forward.device)
            with torch.cuda.device(self.forward.device), torch.cuda.stream(self._stream):
                yield
                # Copies of the last step: their memory is about to be others'.
                self._stream.synchronize()

    def step(self, parts: Sequence[StepPart], is_wanted: Callable[[], bool],
             ) -> list[tuple[list[Sampled], RunResult | None]]:
        """Sampled or scored rows, and the run, of each part.

        Runs go on until they have to stop, or at the end of a replay if `is_wanted`.
        """
        with contextlib.nullcontext() if self._is_cuda else _interpreter_lock, self._settled():
            for part in parts:
                if part.prefill_ids:
                    self._prefill(part)
            finish_rows = self._verify([part for part in parts if part.row_ids])
            runs = [part for part in parts if part.run is not None]
            run = self._run(runs, is_wanted) if runs else None
            self._wait()
            rows = finish_rows()
            results = {} if run is None else {
                id(part): result for part, result in zip(runs, run.results(), strict=True)}
        return [(rows.get(id(part), []), results.get(id(part))) for part in parts]

    @contextlib.contextmanager
    def _settled(self) -> Iterator[None]:
        """What fails half way leaves nothing under way: the next step fills the same host memory.
        """
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                self._wait()
            raise

    def _wait(self) -> None:
        self.num_waits += 1
        if self._stream is not None:
            self._stream.synchronize()

    def _prefill(self, part: StepPart) -> None:
        kv = part.operation.sequence.kv
        blocks, views = kv.blocks, [kv.view]
        if not self._is_deterministic:
            self.forward.prefill(make_rows([(part.position, part.prefill_ids, blocks)],
                                           self.forward, views=views))
            return
        chunk = self.forward.max_decode_rows
        for begin in range(0, len(part.prefill_ids), chunk):
            ids = part.prefill_ids[begin : begin + chunk]
            rows = make_rows([(part.position + begin, ids, blocks)], self.forward, views=views)
            self.forward.decode(rows, with_logits=False)

    def _verify(self, parts: Sequence[StepPart]) -> Callable[[], dict[int, list[Sampled]]]:
        """Queues the pass; what is returned reads its results after a synchronise."""
        if not parts:
            return dict
        logits = self.verification.launch(
            [(part.row_position, part.row_ids, part.operation.sequence.kv.blocks)
             for part in parts], [part.num_unread for part in parts],
            [part.operation.sequence.kv.view for part in parts])
        requests = [request for part in parts for request in part.row_requests]
        if not requests:  # nothing but held tokens whose keys and values were missing
            return dict
        # Behind the pass and not within its graph: queued while the device is at work on that.
        state = self.sampler.launch(logits, requests)

        def finish() -> dict[int, list[Sampled]]:
            sampled = self.sampler.results(state, logits, requests)
            out, begin = {}, 0
            for part in parts:
                out[id(part)] = sampled[begin : begin + len(part.row_requests)]
                begin += len(part.row_requests)
            return out

        return finish

    def _run(self, parts: Sequence[StepPart], is_wanted: Callable[[], bool]) -> DecodeRun:
        """All steps of the runs, queued; their results are there after a synchronise."""
        run = self.runner.launch([part.run for part in parts if part.run is not None])
        while not run.advance(is_wanted):
            time.sleep(0)  # other threads' turn; the device reports every step
        run.collect()
        return run
