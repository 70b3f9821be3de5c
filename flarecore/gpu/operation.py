"""One unit of work on a sequence of a GPU engine: extend, decode (after an extend), score, encode.

The counterpart of ``csrc/engine/operation``, with the same life: the engine's worker drives it step
by step (plan, take, commit) and completes it, any thread may wait for it or cancel it, and the
sequence's tokens change only when it succeeds. The text side of a decode and the proposals are the
native ones.

Which product computes a position is fixed by what the position holds, not by how the operation was
cut (products.py): tokens that were sampled, and the last given one before the first of them, run as
decode rows; other given tokens as prefill rows. What a run of steps samples beyond the end of the
decode counts as not computed, so that speculation and runs leave the same keys and values behind.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

from flarecore import _C
from flarecore.errors import CancelledError, DeadlineExceeded, FlarecoreError
from flarecore.gpu.kv_cache import BLOCK_TOKENS, KvCache
from flarecore.gpu.passages import GpuPassage, PassageBlocks
from flarecore.gpu.pending import Pending, milliseconds_since
from flarecore.gpu.row_sampling import INVALID_LOGITS, RowRequest
from flarecore.gpu.run_bucket import RunEnds, RunRequest, RunResult
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
        self._context_length = context_length - sequence.kv.num_reserved
        self._tokens = list(sequence.tokens)  # the sequence's as they will be
        self._start_tokens = len(self._tokens)
        self._start_computed = sequence.kv.num_computed
        self._decode_start = 0  # tokens before the first sampled one
        self._state: _C.DecodeState | None = None
        self._surplus: list[Sampled] = []
        self._probs: list[float] = []  # of scored tokens
        self._eos_prob: float | None = None
        self._submitted = self._begun = time.perf_counter()
        self._stats = {name: 0 for name in ("num_reused", "num_prefilled", "num_decoded",
                                            "num_proposed", "num_accepted", "num_steps")}
        sources: list[list[int]] = []
        if request.proposal or request.lookup:  # plain decoding stays plain
            sources = [list(request.lookup), request.token_ids, list(request.proposal)]
        self._has_sources = bool(sources)
        self._proposer = _C.Proposer(list(request.proposal), sources)
        if request.kind == "decode":
            settings = request.settings
            self._state = _C.DecodeState(
                model, request.max_tokens, request.until_sentence,
                settings is not None and settings.ignore_eos, list(request.stop),
                request.stop_below, request.stop_at_punctuation)

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
        self._tokens.extend(request.token_ids)
        self._decode_start = len(self._tokens)
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
        if self._state is None:
            return request.kind == "extend" and kv.num_computed >= len(self._tokens) - 1
        if not request.token_ids and self._replay_held():
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
        if end == first_decode_row and self.request.kind in ("decode", "score"):
            self._plan_decode(cache, part, end, limits)
        cache.reserve(kv, self._end_of(part))
        self._count(part)
        return part

    def lengthen_run(self, cache: KvCache, part: StepPart, limits: StepLimits, num_sharing: int,
                     ) -> None:
        """Lets a run go on for as long as the record has room, where nothing else waits for it.

        The free blocks are shared with the operations still to come, `num_sharing` with this one.
        """
        run = part.run
        # Where text is known that may recur, it is asked for a proposal after every replay.
        if run is None or self._has_sources:
            return
        blocks, num_free = self.sequence.kv.blocks, cache.pool.num_available
        room = (len(blocks) + num_free // num_sharing) * BLOCK_TOKENS - run.position
        steps = min(self._most_steps(limits.run_steps), room)
        if steps > run.num_steps:
            part.run = dataclasses.replace(run, num_steps=steps)
            cache.reserve(self.sequence.kv, self._end_of(part))

    def take(self, part: StepPart, rows: list[Sampled], run: RunResult | None) -> None:
        """Takes what the step's rows gave. Raises FlarecoreError if that is not numbers."""
        part.computed = part.position + part.num_rows
        if run is not None:
            self._take_run(part, run)
        elif self.request.kind == "score":
            self._probs.extend(prob for _, prob in self._valid(rows))
        elif rows:
            self._take_rows(part, rows)

    def commit(self, cache: KvCache, part: StepPart) -> bool:
        """Books the step. True when the operation is finished."""
        computed = min(part.computed, len(self._tokens))
        cache.commit(self.sequence.kv, self._tokens, computed)
        if part.run is not None:  # what was reserved for steps that were not needed
            cache.truncate(self.sequence.kv, computed)
        if self._state is not None:
            return self._state.is_finished
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
            if self._state is not None:
                self._finish_decode(self._state)
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
        if self.request.kind == "decode":
            return self._decode_start - 1
        if self.request.kind == "score":
            return self._start_tokens - 1
        if self.request.kind == "encode":
            return len(self._tokens)  # nothing is sampled: its last token is as the others
        return len(self._tokens) - 1  # the last token's row is fed when its logits are asked for

    def _plan_decode(self, cache: KvCache, part: StepPart, begin: int, limits: StepLimits) -> None:
        tokens, num_tokens = self._tokens, len(self._tokens)
        if self.request.kind == "score":
            end = min(num_tokens - 1, begin + limits.decode_rows)
            part.row_ids = tokens[begin:end]
            part.row_requests = [RowRequest(p, given=tokens[p + 1]) for p in range(begin, end)]
            return
        settings = self.request.settings
        if settings is None:
            raise FlarecoreError("a decode without sampling settings")
        pending = num_tokens - begin
        num_sampled = num_tokens - self._decode_start
        # n fed rows of a proposal give n + 1 tokens: no more of them than may still be sampled.
        room = min(self.request.max_tokens - num_sampled - 1,
                   self._context_length - 1 - num_tokens, limits.decode_rows - pending)
        proposal = self._proposer.propose(
            tokens[-max(num_sampled, 3):], num_sampled, room) if self._has_sources else []
        if pending == 1 and not proposal and limits.run_steps > 1:
            # A budget that is nearly used up is no reason to fail while single steps still fit.
            room = cache.num_reservable(self.sequence.kv) - (num_tokens - 1)
            steps = min(self._most_steps(limits.replay_steps), room)
            if steps >= 1:
                part.run = RunRequest(tokens[-1], num_tokens - 1, self.sequence.kv.blocks, steps,
                                      settings, self._run_ends(),
                                      tokens if settings.adjusts_logits else (),
                                      self.sequence.kv.view)
                return
        fed = [*tokens, *proposal]
        end = min(len(fed), begin + limits.decode_rows)
        part.row_ids = fed[begin:end]
        part.row_requests = [
            RowRequest(p, settings, fed[: p + 1] if settings.adjusts_logits else ())
            for p in range(max(begin, num_tokens - 1), end)]  # what comes next is known before

    def _most_steps(self, limit: int) -> int:
        """Steps of a run: no more tokens than may still be sampled."""
        num_tokens = len(self._tokens)
        num_sampled = num_tokens - self._decode_start
        return min(limit, self.request.max_tokens - num_sampled,
                   self._context_length - num_tokens)

    def _run_ends(self) -> RunEnds:
        request, state = self.request, self._state
        is_looking_ahead = state is not None and state.is_looking_ahead
        return RunEnds(request.until_sentence or is_looking_ahead, is_looking_ahead, request.stop,
                       request.stop_below)

    def _end_of(self, part: StepPart) -> int:
        return part.position + part.num_rows + (part.run.num_steps if part.run is not None else 0)

    def _count(self, part: StepPart) -> None:
        proposed = max(0, part.position + part.num_rows - len(self._tokens))
        end = part.position + part.num_rows
        decoded = int(self._state is not None and bool(part.row_ids) and end >= len(self._tokens))
        self._stats["num_proposed"] += proposed
        self._stats["num_prefilled"] += part.num_rows - proposed - decoded
        self._stats["num_steps"] += int(part.num_rows > 0)

    def _valid(self, rows: list[Sampled]) -> list[Sampled]:
        if any(token < 0 for token, _ in rows):
            raise FlarecoreError(INVALID_LOGITS)
        return rows

    def _valid_one_by_one(self, rows: list[Sampled]) -> Iterator[Sampled]:
        """What lies behind the last one taken does not matter."""
        for index in range(len(rows)):
            yield self._valid(rows[index : index + 1])[0]

    def _take_run(self, part: StepPart, run: RunResult) -> None:
        begin = len(self._tokens) - 1
        sampled = list(zip(run.token_ids, run.probs, strict=True))
        num_valid = len(sampled) - run.is_invalid
        taken = 0
        while taken < num_valid and not self._take(sampled[taken]):
            taken += 1
        state = self._state
        if state is not None and state.is_finished:
            taken += 1
            self._surplus = sampled[taken:num_valid]
        elif run.is_invalid:
            raise FlarecoreError(INVALID_LOGITS)
        part.computed = begin + taken
        part.num_run_rows = len(sampled)
        self._stats["num_steps"] += taken

    def _take_rows(self, part: StepPart, rows: list[Sampled]) -> None:
        """Rows of a verification: as many as their proposal was right, and one."""
        num_tokens = len(self._tokens)
        proposed = len(rows) - 1
        accepted = 0
        for row, sampled in enumerate(self._valid_one_by_one(rows)):
            is_over = self._take(sampled)
            part.computed = num_tokens + row
            was_right = row < proposed and part.row_ids[part.num_unread + row + 1] == sampled[0]
            accepted += was_right
            if is_over or not was_right:
                break
        if proposed > 0:
            self._proposer.report(proposed, accepted)
            self._stats["num_accepted"] += accepted

    def _replay_held(self) -> bool:
        held = self.sequence.held
        if held.settings != self.request.settings:
            return False
        return any(self._take(sampled) for sampled in held.tokens)

    def _take(self, sampled: Sampled) -> bool:
        """Takes a sampled token into the result; True when the decode is over."""
        state = self._state
        if state is None:
            raise FlarecoreError("a token was sampled for an operation that decodes nothing")
        self._stats["num_decoded"] += 1
        token, prob = sampled
        state.accept([token], [prob])
        if state.num_tokens > len(self._tokens) - self._decode_start:
            self._tokens.append(token)
        if state.is_finished:
            if state.stop_reason == "eos":
                self._eos_prob = prob
            return True
        if len(self._tokens) >= self._context_length:
            state.end_at_context()
            return True
        return False

    def _finish_decode(self, state: _C.DecodeState) -> None:
        kept = state.tokens()[: state.num_kept]
        self._fill([token for token, _ in kept], [prob for _, prob in kept], self.request.beta)
        self._result |= {"eos_prob": self._eos_prob, "text_bytes": state.text,
                         "stop_reason": state.stop_reason}
        sequence, settings = self.sequence, self.request.settings
        held: list[Sampled] = []
        if state.stop_reason not in ("eos", "stop_string"):
            held = [*state.held(), *self._surplus]
            # What was held and not reached yet still follows what is held now.
            if not self.request.token_ids and sequence.held.settings == settings:
                held += sequence.held.tokens[self._stats["num_decoded"] :]
        sequence.held = HeldTokens(tuple(held), settings)
        del self._tokens[self._decode_start + state.num_kept :]
