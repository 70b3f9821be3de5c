"""FLARE-instruct: the model itself writes ``[Search(query)]`` where it wants to know (paper 3.1).

The logit of tokens that open a call is raised. When a call is complete it is searched and taken out
of the answer; the passages stand before the question until the next call, and the next few tokens
may not open a bracket. What only looks like a call, or is never closed, is text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.candidate import Candidate
from flarecore.loop.effects import Steps
from flarecore.loop.interfaces import TokenizerLike
from flarecore.loop.prompt import View
from flarecore.loop.recorder import Pass, SentenceStep
from flarecore.methods.brackets import CALL, Bracket, cut_out
from flarecore.methods.pieces import PieceLoop, ended, joined_pass
from flarecore.sampling import SamplingParams

__all__ = ["BracketTokens", "InstructLoop", "bracket_tokens", "writes_call"]

_FORBIDDEN = -1e6  # added to a logit: never chosen


def writes_call(candidate: Candidate) -> bool:
    """The trigger: the text holds a complete call."""
    return CALL.find(candidate.text.encode("utf-8", "replace")) is not None


class BracketTokens:
    """The tokens of a vocabulary that can open a call.

    Parameters
    ----------
    tokenizer : TokenizerLike
        Looked through once.
    """

    def __init__(self, tokenizer: TokenizerLike) -> None:
        special = tokenizer.special_token_ids
        table = [(i, data) for i, data in enumerate(tokenizer.token_table) if i not in special]
        self.with_bracket = tuple(i for i, data in table if b"[" in data)
        """Tokens with an opening bracket anywhere."""
        self.opening = tuple(
            i for i, data in table
            if (bare := data.lstrip(b" ")) and CALL.opening.startswith(bare) and bare[:1] == b"[")
        """Tokens that begin a call, with or without a space before it."""

    def biased(self, sampling: SamplingParams, bias: float) -> SamplingParams:
        """Sampling with the opening tokens' logits raised."""
        return _with_bias(sampling, dict.fromkeys(self.opening, bias))

    def forbidden(self, sampling: SamplingParams) -> SamplingParams:
        """Sampling without any opening bracket."""
        return _with_bias(sampling, dict.fromkeys(self.with_bracket, _FORBIDDEN))


def _with_bias(sampling: SamplingParams, more: Mapping[int, float]) -> SamplingParams:
    given = sampling.logit_bias
    return dataclasses.replace(sampling, logit_bias={
        **given, **{i: given.get(i, 0.0) + bias for i, bias in more.items()}})


class InstructLoop(PieceLoop):
    """Writes up to the end of a sentence or of a call, see the module's docstring.

    Parameters
    ----------
    setup : AnswerSetup
        Engine, options and request.
    brackets : BracketTokens
        Of the engine's vocabulary.
    bias : float
        Added to the logits of tokens that open a call.
    num_quiet : int
        Tokens after a call that may not open a bracket.
    """

    def __init__(
        self, setup: AnswerSetup, brackets: BracketTokens, bias: float, num_quiet: int
    ) -> None:
        super().__init__(setup)
        self._stop = (*setup.config.stop, *setup.prompt.stop)
        self._biased = brackets.biased(setup.config.sampling, bias)
        self._forbidden = brackets.forbidden(setup.config.sampling)
        self._num_quiet = num_quiet
        self._quiet_left = 0

    def _write_sentence(self) -> Steps[str | None]:
        view = self._view()
        if view.max_tokens < 1:
            return "context_length"
        self._kept, verdict = None, "accept"
        step = yield from self._begin(view, self._draft(view))
        call = CALL.find(step.draft.text_bytes)
        if call is not None:
            verdict = yield from self._answer_call(step, call)
        elif step.current.candidate.stop_reason == "max_tokens":
            self._put_off_open_call(step)
        self._num_whole += step.current.candidate.stop_reason == "sentence"
        return (yield from self._end_sentence(step, verdict))

    def _answer_call(self, step: SentenceStep, call: Bracket) -> Steps[str]:
        """Searches, and leaves of the piece what stands before the call."""
        verdict = yield from self._search(step, self._queries.from_text(call.content, "call"))
        self._keep_before(step, call.begin)
        self._quiet_left = self._num_quiet
        return verdict

    def _keep_before(self, step: SentenceStep, begin: int) -> None:
        data = step.draft.text_bytes
        self._kept = cut_out(
            self._setup.engine.tokenizer, step.draft.candidate.token_ids, data,
            [(begin, len(data))])

    def _put_off_open_call(self, step: SentenceStep) -> None:
        """A piece that reached its limit inside a call ends before it: the next one begins there.

        A call that is as long as a piece may be is text.
        """
        begin = CALL.open_at(step.draft.text_bytes)
        if begin is None or self._num_new + len(step.draft.candidate.token_ids) \
                >= self._config.max_new_tokens:
            return
        candidate = step.draft.candidate
        num_bytes = num_tokens = 0
        for data, special in zip(candidate.token_bytes, candidate.is_special, strict=True):
            size = 0 if special else len(data)
            if num_bytes + size > begin:
                break
            num_bytes, num_tokens = num_bytes + size, num_tokens + 1
        if num_tokens:
            self._kept = candidate.token_ids[:num_tokens], step.draft.text_bytes[:num_bytes]

    def _draft(self, view: View) -> Steps[Pass]:
        """Writes up to a complete call, or else the end of the sentence."""
        piece: Pass | None = None
        if self._quiet_left > 0:
            piece = yield from self._more(
                view, None, max_tokens=self._quiet_left, sampling=self._forbidden)
            num_written = len(piece.candidate.token_ids)
            self._quiet_left -= num_written
            if piece.candidate.stop_reason != "max_tokens" or num_written >= view.max_tokens:
                return piece
        while True:
            part, is_closed = yield from self._part(view, piece)
            piece = joined_pass(piece, part)
            if is_closed:
                # The stop was the end of a call: it belongs to the text of the piece.
                data = piece.text_bytes + CALL.closing
                piece = dataclasses.replace(piece, text_bytes=data)
            if CALL.find(piece.text_bytes) is not None:
                text = piece.text_bytes.decode("utf-8", "replace")
                return ended(piece, "call", triggered=True, text=text)
            is_open = CALL.open_at(piece.text_bytes) is not None
            room = view.max_tokens - len(piece.candidate.token_ids)
            if piece.candidate.stop_reason != "sentence" or not is_open or room < 1:
                return piece

    def _part(self, view: View, piece: Pass | None) -> Steps[tuple[Pass, bool]]:
        """Writes on to the end of the sentence; whether it stopped where a call closes."""
        part = yield from self._more(
            view, piece, sampling=self._biased, stop=(*self._stop, CALL.closing.decode()))
        if part.candidate.stop_reason != "stop_string":
            return part, False
        whole = joined_pass(piece, part)
        if not (yield from self._is_at_closing(view, whole)):
            return part, False
        if CALL.find(whole.text_bytes + CALL.closing) is not None:
            return part, True
        # A bracket that closes no call: the same tokens once more, without stopping there.
        return (yield from self._more(
            view, piece, sampling=self._biased, stop=self._stop,
            proposal=part.candidate.token_ids if self._config.speculative else ())), False

    def _is_at_closing(self, view: View, piece: Pass) -> Steps[bool]:
        """Which stop string ended a piece is not told: the tokens that follow say it."""
        if not self._stop:
            return True
        whole = b"".join(piece.candidate.token_bytes)
        tail = whole[len(piece.text_bytes):]
        room = view.max_tokens - len(piece.candidate.token_ids)
        if len(tail) < len(CALL.closing) and room > 0:
            more = yield from self._more(
                view, piece, sampling=self._biased, stop=(), until="eos", max_tokens=2)
            tail += more.text_bytes
        return tail.startswith(CALL.closing)


def bracket_tokens(tokenizer: TokenizerLike) -> dict[str, Any]:
    """What is prepared once for a vocabulary."""
    return {"brackets": BracketTokens(tokenizer)}
