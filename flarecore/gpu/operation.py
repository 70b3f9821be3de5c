"""One unit of work on a sequence of a GPU engine: extend, decode (after an extend), score, encode.

The counterpart of ``csrc/engine/operation``, with the same life: the engine's worker drives it step
by step (plan, take, commit) and completes it, any thread may wait for it or cancel it, and the
sequence's tokens change only when it succeeds. The text side of a decode is in decoding.py.

Which product computes a position is fixed by what the position holds, not by how the operation was
cut (products.py): tokens that were sampled, and the last given one before the first of them, run as
decode rows; other given tokens as prefill rows. What a run of steps samples beyond the end of the
decode counts as not computed, so that speculation and runs leave the same keys and values behind.
"""

from __future__ import annotations

import dataclasses
import time

from flarecore import _C
from flarecore.errors import CancelledError, DeadlineExceeded, FlarecoreError
from flarecore.gpu.decoding import Decoding, valid_rows
from flarecore.gpu.kv_cache import BLOCK_TOKENS, KvCache
from flarecore.gpu.passages import GpuPassage, PassageBlocks
from flarecore.gpu.pending import Pending, milliseconds_since
from flarecore.gpu.row_sampling import RowRequest
from flarecore.gpu.run_bucket import RunRequest, RunResult
from flarecore.gpu.state import (
    HeldTokens,
    OperationRequest,
    Sampled,
    SequenceState,
    StepLimits,
    StepPart,
)

__all__ = ["GpuOperation"]


class GpuOperation(Pending):
    """See the module. Waiting and results are those of the native ``Operation``."""

    def __init__(self, sequence: SequenceState, request: OperationRequest, model: _C.Model,
                 context_length: int) -> None:
        super().__init__()
        self.sequence = sequence
        self.request = request
        self.has_begun = False
        self.passage: PassageBlocks | None = None  # that it fills
        self._tokens = [*sequence.tokens, *request.token_ids]  # the sequence's as they will be
        self._start_tokens = len(sequence.tokens)
        self._start_computed = sequence.kv.num_computed
        self._probs: list[float] = []  # of scored tokens
        self._submitted = self._begun = time.perf_counter()
        self._stats = {name: 0 for name in ("num_reused", "num_prefilled", "num_decoded",
                                            "num_proposed", "num_accepted", "num_steps")}
        self._decoding: Decoding | None = None
        if request.kind == "decode":
            self._decoding = Decoding(request, model, self._tokens,
                                      context_length - sequence.kv.num_reserved, self._stats)

    # --- the engine's worker, under the engine's lock ---

    def check_limits(self) -> None:
        """Raises CancelledError or DeadlineExceeded."""
        if self._is_cancelled:
            raise CancelledError("the operation was cancelled; the sequence is as it was before it")
        if self.is_overdue:
            raise DeadlineExceeded(f"the deadline of {self.request.deadline_ms} ms passed; the "
                                   "sequence is as it was before the operation")

    @property
    def is_overdue(self) -> bool:
        """Whether check_limits() would raise. Any thread may ask."""
        deadline = self.request.deadline_ms
        return self._is_cancelled or (
            deadline is not None and milliseconds_since(self._submitted) >= deadline)

    def begin(self, cache: KvCache) -> bool:
        """Takes cached prefixes and held tokens. True if that already finished it."""
        self._begun = time.perf_counter()
        self.has_begun = True
        kv, request = self.sequence.kv, self.request
        if request.kind == "score":
            # The row before the first scored token must be fed for its logits.
            cache.truncate(kv, self._start_tokens - 1)
            self._stats["num_reused"] = kv.num_computed
            return not request.token_ids
        if request.kind == "encode":  # its blocks are there or not before anything is computed
            self.passage = cache.new_passage(self._tokens[: self._start_tokens],
                                             request.token_ids)
        cache.attach_prefix(kv, self._tokens)
        self._stats["num_reused"] = kv.num_computed
        if self._decoding is None:
            return request.kind == "extend" and kv.num_computed >= len(self._tokens) - 1
        if not request.token_ids and self._decoding.replay(self.sequence.held):
            return True
        cache.truncate(kv, len(self._tokens) - 1)
        return False

    def plan(self, cache: KvCache, limits: StepLimits) -> StepPart:
        """Rows of the next step, with blocks reserved. Raises OutOfBlocksError."""
        kv, tokens = self.sequence.kv, self._tokens
        begin = kv.num_computed
        first_decode_row = max(begin, self._first_decode_row())
        end = min(first_decode_row, begin + limits.prefill_rows)
        part = StepPart(self, begin, prefill_ids=tokens[begin:end])
        if end == first_decode_row:
            if self._decoding is not None:
                self._plan_decode(self._decoding, cache, part, end, limits)
            elif self.request.kind == "score":
                self._plan_score(part, end, limits)
        cache.reserve(kv, self._end_of(part))
        self._count(part)
        return part

    def lengthen_run(self, cache: KvCache, part: StepPart, limits: StepLimits, num_sharing: int,
                     ) -> None:
        """Lets a run go on for as long as the record has room, where nothing else waits for it.

        The free blocks are shared with the operations still to come, `num_sharing` with this one.
        """
        run, decoding = part.run, self._decoding
        # Where text is known that may recur, it is asked for a proposal after every replay.
        if run is None or decoding is None or decoding.has_sources:
            return
        blocks, num_free = self.sequence.kv.blocks, cache.pool.num_available
        room = (len(blocks) + num_free // num_sharing) * BLOCK_TOKENS - run.position
        steps = min(decoding.most_steps(limits.run_steps), room)
        if steps > run.num_steps:
            part.run = dataclasses.replace(run, num_steps=steps)
            cache.reserve(self.sequence.kv, self._end_of(part))

    def take(self, part: StepPart, rows: list[Sampled], run: RunResult | None) -> None:
        """Takes what the step's rows gave. Raises FlarecoreError if that is not numbers."""
        num_tokens = len(self._tokens)
        part.computed = part.position + part.num_rows
        if self._decoding is None:
            self._probs.extend(prob for _, prob in valid_rows(rows))
        elif run is not None:
            taken = self._decoding.take_run(run)
            part.computed = num_tokens - 1 + taken
            part.num_run_rows = len(run.token_ids)
            self._stats["num_steps"] += taken
        elif rows:
            taken = self._decoding.take_rows(rows, part.row_ids[part.num_unread + 1 :])
            part.computed = num_tokens - 1 + taken

    def commit(self, cache: KvCache, part: StepPart) -> bool:
        """Books the step. True when the operation is finished."""
        computed = min(part.computed, len(self._tokens))
        cache.commit(self.sequence.kv, self._tokens, computed)
        if part.run is not None:  # what was reserved for steps that were not needed
            cache.truncate(self.sequence.kv, computed)
        if self._decoding is not None:
            return self._decoding.is_finished
        return computed >= len(self._tokens) - (self.passage is None)

    def succeed(self, cache: KvCache) -> None:
        """Applies the result to the sequence."""
        sequence, request = self.sequence, self.request
        if request.kind == "score":
            self._fill(request.token_ids, self._probs, request.beta)
            cache.truncate(sequence.kv, self._start_tokens)
        elif self.passage is not None:
            cache.fill_passage(self.passage, sequence.kv)
            cache.close(sequence.kv)
        else:
            if self._decoding is not None:
                kept, sequence.held = self._decoding.finish(sequence.held)
                self._fill([token for token, _ in kept], [prob for _, prob in kept], request.beta)
                self._result |= self._decoding.fields()
            elif request.token_ids:
                sequence.held = HeldTokens()
            sequence.tokens = self._tokens
            cache.truncate(sequence.kv, len(sequence.tokens))
        self._result["stats"] = {**self._stats, "time_ms": milliseconds_since(self._begun)}
        sequence.operation = None

    def give_passage(self, passage: GpuPassage) -> None:
        """What it filled is the result's from now on."""
        self._result["passage"] = passage

    def fail(self, cache: KvCache, error: FlarecoreError) -> None:
        """Takes everything back."""
        cache.truncate(self.sequence.kv, self._start_computed)
        if self.request.kind == "encode":
            cache.close(self.sequence.kv)
            if self.passage is not None:
                cache.release_passage(self.passage)
        self._error = error
        self.sequence.operation = None

    # --- parts of the above ---

    def _first_decode_row(self) -> int:
        if self._decoding is not None:
            return self._decoding.start - 1
        if self.request.kind == "score":
            return self._start_tokens - 1
        if self.request.kind == "encode":
            return len(self._tokens)  # nothing is sampled: its last token is as the others
        return len(self._tokens) - 1  # the last token's row is fed when its logits are asked for

    def _plan_score(self, part: StepPart, begin: int, limits: StepLimits) -> None:
        tokens = self._tokens
        end = min(len(tokens) - 1, begin + limits.decode_rows)
        part.row_ids = tokens[begin:end]
        part.row_requests = [RowRequest(p, given=tokens[p + 1]) for p in range(begin, end)]

    def _plan_decode(self, decoding: Decoding, cache: KvCache, part: StepPart, begin: int,
                     limits: StepLimits) -> None:
        tokens, num_tokens, settings = self._tokens, len(self._tokens), decoding.settings
        pending = num_tokens - begin
        proposal = decoding.propose(limits.decode_rows - pending)
        if pending == 1 and not proposal and limits.run_steps > 1:
            # A budget that is nearly used up is no reason to fail while single steps still fit.
            room = cache.num_reservable(self.sequence.kv) - (num_tokens - 1)
            steps = min(decoding.most_steps(limits.replay_steps), room)
            if steps >= 1:
                part.run = RunRequest(tokens[-1], num_tokens - 1, self.sequence.kv.blocks, steps,
                                      settings, decoding.run_ends,
                                      tokens if settings.adjusts_logits else (),
                                      self.sequence.kv.view)
                return
        fed = [*tokens, *proposal]
        end = min(len(fed), begin + limits.decode_rows)
        part.row_ids = fed[begin:end]
        part.row_requests = [
            RowRequest(p, settings, fed[: p + 1] if settings.adjusts_logits else ())
            for p in range(max(begin, num_tokens - 1), end)]  # what comes next is known before

    def _end_of(self, part: StepPart) -> int:
        return part.position + part.num_rows + (part.run.num_steps if part.run is not None else 0)

    def _count(self, part: StepPart) -> None:
        end, num_tokens = part.position + part.num_rows, len(self._tokens)
        proposed = max(0, end - num_tokens)
        decodes = self._decoding is not None and bool(part.row_ids)
        decoded = int(decodes and end >= num_tokens)
        self._stats["num_proposed"] += proposed
        self._stats["num_prefilled"] += part.num_rows - proposed - decoded
        self._stats["num_steps"] += int(part.num_rows > 0)
