"""Several decode steps in a row without the host: captured in CUDA graphs, or called one by one.

Token, position, confidence, minimum and flags of every row live in device memory and move on at
each step, so a run of steps needs nothing from the host. A graph is captured per batch bucket,
number of steps, context bucket and use of filters, when it is first needed. Without graphs the
same steps are called directly: the slow twin, and the only way on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flarecore.gpu.device import load_kernels
from flarecore.gpu.forward import Forward, Rows
from flarecore.gpu.fused_sampler import FusedSampler
from flarecore.gpu.kv_cache import blocks_for
from flarecore.gpu.mirrored import Mirrored
from flarecore.gpu.passages import PassageView, bucket_width, fill_table, table_fields
from flarecore.gpu.row_sampling import RowSettings, fill_settings, state_fields, state_of

__all__ = ["DecodeRunner", "RunRequest", "RunResult"]


@dataclass(frozen=True)
class RunRequest:
    """Up to `num_steps` tokens after `token` at `position`, whose own K and V are still missing."""

    token: int
    position: int
    blocks: Sequence[int]
    num_steps: int
    settings: RowSettings
    view: PassageView | None = None


@dataclass(frozen=True)
class RunResult:
    """Sampled tokens and confidences, (n,) each; an end-of-text token is the last one.

    `is_invalid`: the last token comes from logits that are not numbers.
    """

    token_ids: list[int]
    probs: list[float]
    is_invalid: bool


class _Bucket:
    """Static buffers of one batch size, and the graphs captured over them."""

    def __init__(self, num_rows: int, capacity: int, forward: Forward) -> None:
        self.num_rows = num_rows
        device = forward.device
        self.fields = Mirrored(state_fields(num_rows, capacity), device)
        self.state = state_of(self.fields)
        width = blocks_for(forward.shape.context_length)
        self.table = Mirrored({"blocks": (np.int32, (num_rows, width))}, device)
        self.table_rows = torch.arange(num_rows, dtype=torch.int32, device=device)
        self.query_begin = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        self.passages: dict[int, Mirrored] = {}  # by width of the table
        self.graphs: dict[tuple[int, bool, int, int], Any] = {}
        self._scratch_block = forward.kv.scratch_block
        host = self.fields.host
        for row in range(num_rows):
            fill_settings(host, row, None)
        host["positions"][:] = -1
        host["min_prob"][:] = 1.0
        self._padding = self.fields.snapshot()

    def clear(self) -> None:
        """All rows padding."""
        self.fields.restore(self._padding)
        # What a row needs behind its reserved blocks, once it has halted, is nobody's.
        self.table.host["blocks"][:] = self._scratch_block

    def fill(self, row: int, request: RunRequest, capacity: int) -> None:
        host = self.fields.host
        fill_settings(host, row, request.settings)
        host["positions"][row] = request.position
        host["tokens"][row] = request.token
        # The history is full after num_steps more tokens: that halts the row.
        host["num_sampled"][row] = capacity - request.num_steps
        self.table.host["blocks"][row, : len(request.blocks)] = request.blocks

    def set_views(self, width: int, views: Sequence[PassageView | None]) -> None:
        """What the rows reserve and see; rows behind them nothing."""
        if width:
            if width not in self.passages:
                fields = table_fields(self.num_rows, width)
                self.passages[width] = Mirrored(fields, self.table_rows.device)
            fill_table(self.passages[width], views)
            self.passages[width].upload()

    def rows(self, max_context: int, width: int) -> Rows:
        passages = None
        if width:
            passages = load_kernels().attention.PassageTable(**self.passages[width].device)
        return Rows(self.state.tokens, self.state.positions, self.table_rows,
                    self.table.device["blocks"], self.query_begin, 1, max_context,
                    passages=passages)


class DecodeRunner:
    """Runs batches of decodes for several steps.

    Parameters
    ----------
    forward, sampler
        The model and the fused sampler.
    steps_per_replay
        Most steps of one run.
    use_graphs
        Capture the steps; False calls them one by one.

    Attributes
    ----------
    num_captures, num_replays
        Graphs captured and replayed so far.
    """

    def __init__(self, forward: Forward, sampler: FusedSampler, *,
                 steps_per_replay: int, use_graphs: bool) -> None:
        self._forward = forward
        self._sampler = sampler
        self.steps_per_replay = steps_per_replay
        self.use_graphs = use_graphs
        self.num_captures = 0
        self.num_replays = 0
        self._buckets: dict[int, _Bucket] = {}
        self._pool: Any = None

    def launch(self, requests: Sequence[RunRequest]) -> _Bucket:
        """Queues the run of at most the engine's rows; :meth:`results` after a synchronise."""
        num_rows = 1
        while num_rows < len(requests):
            num_rows *= 2
        bucket = self._buckets.get(num_rows)
        if bucket is None:
            bucket = _Bucket(num_rows, self.steps_per_replay, self._forward)
            self._buckets[num_rows] = bucket
        most = max(request.num_steps for request in requests)
        filters = any(request.settings.has_filters for request in requests)
        context = self._forward.context_bucket(
            max(request.position + request.num_steps for request in requests))
        views = [request.view for request in requests]
        width = bucket_width(views)
        steps = self._graph_steps(most) if self.use_graphs else most
        graph = self._graph(bucket, steps, filters, context, width) if self.use_graphs else None
        bucket.clear()
        bucket.set_views(width, views)
        for row, request in enumerate(requests):
            bucket.fill(row, request, self.steps_per_replay)
        bucket.fields.upload()
        bucket.table.upload()
        if graph is not None:
            graph.replay()
            self.num_replays += 1
        else:
            for _ in range(steps):
                self._step(bucket, filters, context, width)
        bucket.fields.download()
        return bucket

    def results(self, bucket: _Bucket, requests: Sequence[RunRequest]) -> list[RunResult]:
        """What the last launch over the bucket sampled, once the stream has been synchronised."""
        invalid = int(load_kernels().sampling.TokenFlag.INVALID)
        host = bucket.fields.host
        out = []
        for row, request in enumerate(requests):
            part = slice(self.steps_per_replay - request.num_steps, int(host["num_sampled"][row]))
            flags = host["history_flags"][row, part]
            out.append(RunResult(host["history_tokens"][row, part].tolist(),
                                 host["history_probs"][row, part].tolist(),
                                 bool(len(flags)) and bool(flags[-1] & invalid)))
        return out

    def _graph_steps(self, most: int) -> int:
        """Few step counts, so that few graphs are captured."""
        return next((steps for steps in (1, self.steps_per_replay // 2) if steps >= most),
                    self.steps_per_replay)

    def _step(self, bucket: _Bucket, filters: bool, context: int, width: int) -> None:
        logits = self._forward.decode(bucket.rows(context, width))
        self._sampler(logits, bucket.state, filters=filters)

    def _graph(self, bucket: _Bucket, steps: int, filters: bool, context: int,
               width: int) -> Any:
        key = (steps, filters, context, width)
        graph = bucket.graphs.get(key)
        if graph is not None:
            return graph
        # Padding rows change nothing, so everything can be compiled and captured over them.
        bucket.clear()
        bucket.set_views(width, ())
        bucket.fields.upload()
        bucket.table.upload()
        self._step(bucket, filters, context, width)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile: only this one's calls are watched.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            for _ in range(steps):
                self._step(bucket, filters, context, width)
        self._pool = graph.pool()
        self.num_captures += 1
        bucket.graphs[key] = graph
        return graph
