"""The text side of a decode: what steps sampled becomes its tokens, until it is over.

What was sampled beyond its end is held, and begins the next decode with the same sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flarecore import _C
from flarecore.errors import FlarecoreError
from flarecore.gpu.row_sampling import INVALID_LOGITS
from flarecore.gpu.run_bucket import RunEnds, RunResult
from flarecore.gpu.state import HeldTokens, OperationRequest, Sampled

__all__ = ["Decoding", "valid_rows"]


def valid_rows(rows: list[Sampled]) -> list[Sampled]:
    """The rows. Raises FlarecoreError if one of them comes from logits that are not numbers."""
    if any(token < 0 for token, _ in rows):
        raise FlarecoreError(INVALID_LOGITS)
    return rows


class Decoding:
    """One decode; the operation decides what its steps compute.

    Parameters
    ----------
    request
        The decode, with settings of its sampling.
    model
        For the text.
    tokens
        What the sequence holds before the first sampled token; those are appended to it.
    context_length
        Most tokens of the sequence.
    stats
        The operation's counts.
    """

    def __init__(self, request: OperationRequest, model: _C.Model, tokens: list[int],
                 context_length: int, stats: dict[str, int]) -> None:
        if request.settings is None:
            raise FlarecoreError("a decode without sampling settings")
        self.request = request
        self.settings = request.settings
        self.start = len(tokens)  # of the first sampled one
        self._tokens = tokens
        self._context_length = context_length
        self._stats = stats
        self._surplus: list[Sampled] = []
        self._eos_prob: float | None = None
        self._state = _C.DecodeState(
            model, request.max_tokens, request.until_sentence, self.settings.ignore_eos,
            list(request.stop), request.stop_below, request.stop_at_punctuation)
        sources: list[list[int]] = []
        if request.proposal or request.lookup:  # plain decoding stays plain
            sources = [list(request.lookup), request.token_ids, list(request.proposal)]
        self.has_sources = bool(sources)
        self._proposer = _C.Proposer(list(request.proposal), sources)

    @property
    def is_finished(self) -> bool:
        return self._state.is_finished

    @property
    def run_ends(self) -> RunEnds:
        """Where a run has to stop for this decode."""
        request, is_looking_ahead = self.request, self._state.is_looking_ahead
        return RunEnds(request.until_sentence or is_looking_ahead, is_looking_ahead, request.stop,
                       request.stop_below)

    def most_steps(self, limit: int) -> int:
        """Steps of a run: no more tokens than may still be sampled."""
        num_tokens = len(self._tokens)
        return min(limit, self.request.max_tokens - (num_tokens - self.start),
                   self._context_length - num_tokens)

    def propose(self, most_rows: int) -> list[int]:
        """What may follow, of at most so many rows."""
        if not self.has_sources:
            return []
        num_sampled = len(self._tokens) - self.start
        # n fed rows of a proposal give n + 1 tokens: no more of them than may still be sampled.
        return self._proposer.propose(self._tokens[-max(num_sampled, 3):], num_sampled,
                                      self.most_steps(most_rows + 1) - 1)

    def replay(self, held: HeldTokens) -> bool:
        """Takes tokens that an earlier decode left; True when that ends this one."""
        if held.settings != self.settings:
            return False
        return any(self._take(sampled) for sampled in held.tokens)

    def take_run(self, run: RunResult) -> int:
        """Takes what a run sampled; how many rows of it count as computed.

        Raises
        ------
        FlarecoreError
            The decode goes on behind logits that are not numbers.
        """
        sampled = list(zip(run.token_ids, run.probs, strict=True))
        num_valid = len(sampled) - run.is_invalid
        taken = 0
        while taken < num_valid and not self._take(sampled[taken]):
            taken += 1
        if self.is_finished:
            taken += 1
            self._surplus = sampled[taken:num_valid]
        elif run.is_invalid:
            raise FlarecoreError(INVALID_LOGITS)
        return taken

    def take_rows(self, rows: list[Sampled], proposal: list[int]) -> int:
        """Takes rows of a verification: as many as the proposal was right, and one.

        Returns
        -------
        int
            How many of them were taken.

        Raises
        ------
        FlarecoreError
            One of them comes from logits that are not numbers.
        """
        accepted = taken = 0
        for sampled in self._valid_one_by_one(rows):
            is_over = self._take(sampled)
            was_right = taken < len(proposal) and proposal[taken] == sampled[0]
            accepted += was_right
            taken += 1
            if is_over or not was_right:
                break
        if proposal:
            self._proposer.report(len(proposal), accepted)
            self._stats["num_accepted"] += accepted
        return taken

    def finish(self, held: HeldTokens) -> tuple[list[Sampled], HeldTokens]:
        """The result's tokens, and what is held now; `held` is what was before the decode.

        The tokens of the sequence end with those of the result.
        """
        state = self._state
        kept = state.tokens()[: state.num_kept]
        rest: list[Sampled] = []
        if state.stop_reason not in ("eos", "stop_string"):
            rest = [*state.held(), *self._surplus]
            # What was held and not reached yet still follows what is held now.
            if not self.request.token_ids and held.settings == self.settings:
                rest += held.tokens[self._stats["num_decoded"] :]
        del self._tokens[self.start + state.num_kept :]
        return kept, HeldTokens(tuple(rest), self.settings)

    def fields(self) -> dict[str, Any]:
        """Of the result, beside tokens and confidences."""
        return {"eos_prob": self._eos_prob, "text_bytes": self._state.text,
                "stop_reason": self._state.stop_reason}

    def _valid_one_by_one(self, rows: list[Sampled]) -> Iterator[Sampled]:
        """What lies behind the last one taken does not matter."""
        for index in range(len(rows)):
            yield valid_rows(rows[index : index + 1])[0]

    def _take(self, sampled: Sampled) -> bool:
        """Takes a sampled token into the result; True when the decode is over."""
        state = self._state
        self._stats["num_decoded"] += 1
        token, prob = sampled
        state.accept([token], [prob])
        if state.num_tokens > len(self._tokens) - self.start:
            self._tokens.append(token)
        if state.is_finished:
            if state.stop_reason == "eos":
                self._eos_prob = prob
            return True
        if len(self._tokens) >= self._context_length:
            state.end_at_context()
            return True
        return False
