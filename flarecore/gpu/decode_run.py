"""Several decode steps in a row without the host: captured in CUDA graphs, or called one by one.

Token, position, confidence, minimum and flags of every row live in device memory and move on at
each step. The sampler itself halts a row where the host has to look (run_bucket.RunEnds): from then
on the row's steps change nothing that counts, so any number of them may be queued. A run is a
series of replays of a few steps each. After the last two steps of each the rows' flags and counts
are copied to the host, which reads them without waiting, and queues the next replay while the last
step of the one before is under way: the device never waits for the host, and the host waits for the
device once, at the end of the run.

A graph is captured per batch bucket, number of steps and run_bucket.StepVariant, when it is first
needed. Without graphs the same steps are called directly: the slow twin, and the only way on CPU
tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flarecore.gpu.captures import Captures
from flarecore.gpu.forward import Forward
from flarecore.gpu.fused_sampler import FusedSampler
from flarecore.gpu.passages import bucket_width
from flarecore.gpu.run_adjustments import RunAdjustments
from flarecore.gpu.run_bucket import RunBucket, RunRequest, RunResult, StepVariant
from flarecore.gpu.token_flags import TokenFlagTable

__all__ = ["DecodeRun", "DecodeRunner"]


class DecodeRun:
    """A run under way; made by :meth:`DecodeRunner.launch`, with its first replay queued.

    Attributes
    ----------
    num_queued
        Steps that the device was given.
    """

    def __init__(self, runner: DecodeRunner, bucket: RunBucket, num_steps: Sequence[int],
                 variant: StepVariant) -> None:
        self._runner = runner
        self._bucket = bucket
        self._num_steps = num_steps
        self._variant = variant
        self._event: Any = torch.cuda.Event() if runner.is_cuda else None  # type: ignore[no-untyped-call]
        self.num_queued = 0

    def advance(self, is_wanted: Callable[[], bool]) -> bool:
        """Queues more steps where they are needed, and never waits.

        A run is over when half of its rows have stopped (alone: the only one), so that they need
        not wait for the longest; when a row has made all the steps it was to make; or when
        `is_wanted` says that the host has something else to do.

        Returns
        -------
        bool
            Whether nothing more will be queued.
        """
        # Asked before the flags are read: they are the last step's then. Raises what went wrong.
        is_through = self._event is None or self._event.query()
        seen = self._bucket.look(len(self._num_steps))
        left = min(self._num_steps) - self.num_queued
        if left <= 0 or 2 * seen.num_running <= len(self._num_steps):
            return True
        looks_only = seen.num_looking == seen.num_running
        pending = 0 if is_through else self.num_queued - self._num_done()
        if pending > (0 if looks_only else 1):
            return False
        if is_wanted():
            return True
        self.queue(1 if looks_only else min(left, self._runner.steps_per_replay))
        return False

    def queue(self, most: int) -> None:
        """Queues one replay of about `most` steps."""
        self.num_queued += self._runner.replay(self._bucket, most, self._variant)
        if self._event is not None:
            self._event.record()

    def collect(self) -> None:
        """Queues the way of the record to the host."""
        self._bucket.history.download()

    def results(self) -> list[RunResult]:
        """What every row has sampled, once the stream has been synchronised."""
        return [self._bucket.result(row, steps) for row, steps in enumerate(self._num_steps)]

    def _num_done(self) -> int:
        """Steps that have reported: rows that run go side by side."""
        sampled = self._bucket.progress.host["num_sampled"]
        return max(int(sampled[row]) - (self._bucket.capacity - steps)
                   for row, steps in enumerate(self._num_steps))


class DecodeRunner:
    """Runs batches of decodes for many steps.

    Parameters
    ----------
    forward, sampler
        The model and the fused sampler.
    token_flags
        The sampler's table; without one, a row with stop strings runs for one replay only.
    steps_per_replay, steps_per_run
        Steps of one replay, and most of a run.
    use_graphs
        Capture the steps; False calls them one by one.

    Attributes
    ----------
    captures
        Of the engine's graphs, also of others than those of runs.
    num_captures, num_replays
        Graphs captured and replays queued so far (without graphs: series of direct calls).
    """

    def __init__(self, forward: Forward, sampler: FusedSampler,
                 token_flags: TokenFlagTable | None = None, *,
                 steps_per_replay: int, steps_per_run: int, use_graphs: bool) -> None:
        self._forward = forward
        self._sampler = sampler
        self._token_flags = token_flags
        self.steps_per_replay = steps_per_replay
        self.steps_per_run = steps_per_run
        self.use_graphs = use_graphs
        self.is_cuda = forward.device.type == "cuda"
        self.captures = Captures(forward.device)
        self.num_captures = 0
        self.num_replays = 0
        self._adjustments = RunAdjustments(
            forward.max_decode_rows, forward.shape.vocab_size, forward.device)
        self._buckets: dict[int, RunBucket] = {}

    def launch(self, requests: Sequence[RunRequest]) -> DecodeRun:
        """Begins a run of at most the engine's rows. One at a time."""
        num_rows = 1
        while num_rows < len(requests):
            num_rows *= 2
        bucket = self._buckets.get(num_rows)
        if bucket is None:
            bucket = RunBucket(num_rows, self.steps_per_run, self._forward)
            self._buckets[num_rows] = bucket
        variant = StepVariant(
            self._forward.context_bucket(max(r.position + r.num_steps for r in requests)),
            filters=any(request.settings.has_filters for request in requests),
            adjusts=any(request.settings.adjusts_logits for request in requests),
            width=bucket_width([request.view for request in requests]))
        if self.use_graphs:
            for steps in self._graph_sizes():  # before the rows are filled: a capture runs padding
                self._graph(bucket, steps, variant)
        num_steps = self._fill(bucket, requests)
        bucket.set_views(variant.width, [request.view for request in requests])
        if variant.adjusts:
            self._adjustments.fill(requests)
        run = DecodeRun(self, bucket, num_steps, variant)
        looks_only = all(r.ends.at_sentence and r.ends.is_looking_ahead for r in requests)
        run.queue(1 if looks_only else min(*num_steps, self.steps_per_replay))
        return run

    def replay(self, bucket: RunBucket, most: int, variant: StepVariant) -> int:
        """Queues up to `most` steps or a few more, which find their rows halted; how many."""
        self.num_replays += 1
        if not self.use_graphs:
            self._steps(bucket, most, variant)
            return most
        steps = next(steps for steps in self._graph_sizes() if steps >= most)
        self._graph(bucket, steps, variant).replay()
        return steps

    def _fill(self, bucket: RunBucket, requests: Sequence[RunRequest]) -> list[int]:
        """Puts the requests into the bucket's rows; the most steps of each."""
        bits = (self._token_flags.stop_bits(request.ends.stop for request in requests)
                if self._token_flags is not None else {})
        bucket.clear()
        num_steps = []
        for row, request in enumerate(requests):
            stop, steps = request.ends.stop, request.num_steps
            if stop and stop not in bits:  # no room in the table: the host looks often instead
                steps = min(steps, self.steps_per_replay)
            bucket.fill(row, request, steps, bits.get(stop, 0))
            num_steps.append(steps)
        bucket.upload()
        return num_steps

    def _graph_sizes(self) -> list[int]:
        """Few, so that few graphs are captured."""
        return sorted({1, max(1, self.steps_per_replay // 2), self.steps_per_replay})

    def _step(self, bucket: RunBucket, variant: StepVariant) -> None:
        logits = self._forward.decode(bucket.rows(variant))
        choice = self._adjustments.choice(logits) if variant.adjusts else None
        self._sampler(logits, bucket.state, filters=variant.filters, choice_logits=choice)
        if variant.adjusts:
            self._adjustments.add(bucket.state.tokens)

    def _steps(self, bucket: RunBucket, num_steps: int, variant: StepVariant) -> None:
        for index in range(num_steps):
            self._step(bucket, variant)
            if index >= num_steps - 2:  # earlier the host could do nothing with it
                bucket.progress.download()

    def _graph(self, bucket: RunBucket, steps: int, variant: StepVariant) -> Any:
        key = (steps, variant)
        graph = bucket.graphs.get(key)
        if graph is None:
            graph = self.captures.capture(lambda: self._step_over_padding(bucket, variant),
                                          lambda: self._steps(bucket, steps, variant))
            bucket.graphs[key] = graph
            self.num_captures += 1
        return graph

    def _step_over_padding(self, bucket: RunBucket, variant: StepVariant) -> None:
        bucket.clear()
        bucket.set_views(variant.width, ())
        bucket.upload()
        self._step(bucket, variant)
