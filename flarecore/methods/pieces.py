"""What methods share that write an answer in pieces shorter than a sentence."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from flarecore.errors import ConfigError
from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.answer_text import token_pieces
from flarecore.loop.candidate import Candidate
from flarecore.loop.controller import AnswerLoop
from flarecore.loop.effects import Steps
from flarecore.loop.prompt import View
from flarecore.loop.query import Query
from flarecore.loop.recorder import Pass, SentenceStep

__all__ = ["PieceLoop", "ended", "joined_candidate", "joined_pass", "text_bytes_of"]


class PieceLoop(AnswerLoop):
    """Writes pieces; the passages of the last search stay in view of all that follow it.

    A piece is a sentence of the trace whether it ends one or not.
    """

    def __init__(self, setup: AnswerSetup) -> None:
        super().__init__(setup)
        self._num_whole = 0  # pieces that ended a sentence
        # What of the current piece enters the answer; None: all of it.
        self._kept: tuple[tuple[int, ...], bytes] | None = None
        self._last: frozenset[str] = frozenset()  # the last queries

    def _joined(self, step: SentenceStep) -> tuple[tuple[int, ...], bytes]:
        return super()._joined(step) if self._kept is None else self._kept

    def _num_sentences(self) -> int:
        return self._num_whole

    def _view(self) -> View:
        """The context of the next piece."""
        view = self._decode.fit(self._placed, self._answer, self._max_tokens())
        if view.max_tokens >= 1:
            self._placed = view.placed
        return view

    def _more(self, view: View, piece: Pass | None, **how: Any) -> Steps[Pass]:
        """A piece written on: the pass after it."""
        if piece is not None:
            ids = piece.candidate.token_ids
            view = dataclasses.replace(
                view, token_ids=[*view.token_ids, *ids], max_tokens=view.max_tokens - len(ids))
        if (limit := how.pop("max_tokens", None)) is not None:
            view = dataclasses.replace(view, max_tokens=min(limit, view.max_tokens))
        # Pieces after different searches must not share random numbers: which tokens were thrown
        # away depends on them.
        how.setdefault("is_tested", False)
        how.setdefault("may_stop", False)
        return self._decode.draft(
            view, self._index, self._text.text, pass_index=self._searches.num_searches, **how)

    def _search(self, step: SentenceStep, query: Query | None) -> Steps[str]:
        """Puts the passages of a query in view; returns what to do with the piece.

        ``step.unsupported_because`` tells why nothing was found, if so. Only a query that is new is
        searched: the passages of the others were there already.
        """
        if self._record.gate == "never":
            return "accept"
        because = self._searches.budget_used_up(self._index, 0)
        if because is None and query is None:
            because = "empty_query"
        new = () if query is None else tuple(
            text for text in query.texts if text.casefold() not in self._last)
        if because is None and not new:
            because = "repeated_query"
        step.unsupported_because = because
        if because is not None or query is None:
            return "accept"
        self._last = frozenset(text.casefold() for text in query.texts)
        placed = yield from self._searches.ahead(
            query, self._index, self._placed, len(self._answer), step.retrievals.append)
        if placed is not None:
            self._placed = placed
            return "accept"
        step.unsupported_because = "no_evidence"
        verdict = self._revision.no_evidence(None)
        if verdict == "omit":
            raise ConfigError(
                f"no_evidence: method {self._setup.method!r} searches inside sentences and can "
                "leave none out; return 'accept_draft' or 'stop'")
        return verdict


def text_bytes_of(candidate: Candidate) -> bytes:
    """The bytes of a text's tokens, special ones left out."""
    return b"".join(data for data, special in zip(
        candidate.token_bytes, candidate.is_special, strict=True) if not special)


def ended(piece: Pass, reason: str, **changes: Any) -> Pass:
    """A pass with another reason for its end, and other fields of its trace."""
    return dataclasses.replace(
        piece, candidate=dataclasses.replace(piece.candidate, stop_reason=reason),
        trace=dataclasses.replace(piece.trace, stop_reason=reason, **changes))


def joined_candidate(first: Candidate, more: Candidate) -> Candidate:
    """Two texts that follow each other as one."""
    token_bytes = first.token_bytes + more.token_bytes
    return dataclasses.replace(
        first, text=first.text + more.text, token_ids=first.token_ids + more.token_ids,
        token_bytes=token_bytes, is_special=first.is_special + more.is_special,
        probs=np.concatenate([first.probs, more.probs]), stop_reason=more.stop_reason)


def joined_pass(first: Pass | None, more: Pass) -> Pass:
    """Two passes of which the second wrote on what the first had written."""
    if first is None:
        return more
    data = first.text_bytes + more.text_bytes
    candidate = dataclasses.replace(
        joined_candidate(first.candidate, more.candidate), text=data.decode("utf-8", "replace"))
    a, b = first.trace, more.trace
    trace = dataclasses.replace(
        b, text=candidate.text, token_ids=candidate.token_ids,
        tokens=token_pieces(candidate.token_bytes), probs=a.probs + b.probs, low=a.low + b.low,
        num_context=a.num_context, num_reused=a.num_reused, num_prefilled=a.num_prefilled,
        num_decoded=a.num_decoded + b.num_decoded, num_proposed=a.num_proposed + b.num_proposed,
        num_accepted=a.num_accepted + b.num_accepted, num_encoded=a.num_encoded + b.num_encoded,
        time_ms=a.time_ms + b.time_ms)
    return Pass(first.view, candidate, data, trace, more.attached)
