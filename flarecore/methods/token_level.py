"""Token-level active retrieval: as the simple published loop, inside the sentence.

Text is written up to the first token with a confidence below θ; what there is of the sentence is
the query; writing goes on from before that token with the passages in view. The first token after a
search is taken as it comes, so every search is followed by progress.
"""

from __future__ import annotations

import dataclasses

from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.candidate import Candidate
from flarecore.loop.effects import Steps
from flarecore.loop.prompt import View
from flarecore.loop.query import Query
from flarecore.loop.recorder import Pass
from flarecore.methods.pieces import (
    PieceLoop,
    ended,
    joined_candidate,
    joined_pass,
    text_bytes_of,
)

__all__ = ["TokenLevelLoop"]


class TokenLevelLoop(PieceLoop):
    """Searches at low tokens, see the module's docstring."""

    def __init__(self, setup: AnswerSetup) -> None:
        super().__init__(setup)
        self._sentence: Candidate | None = None  # the sentence so far
        self._has_searched = False  # the last piece ended with a search

    def _write_sentence(self) -> Steps[str | None]:
        view = self._view()
        if view.max_tokens < 1:
            return "context_length"
        self._kept, num_taken = None, int(self._has_searched)
        step = yield from self._begin(view, self._draft(view))
        piece, verdict = step.draft, "accept"
        self._has_searched = False
        if piece.trace.triggered:
            low = self._first_low(piece, num_taken)
            verdict = yield from self._search(step, self._query(piece, low + 1))
            if step.unsupported_because is None:
                self._has_searched = True
                kept = _leading(piece.candidate, _character_start(piece.candidate, low, num_taken))
                self._kept = kept.token_ids, text_bytes_of(kept)
                # However the piece ended, the answer goes on before the low token.
                step.current = ended(piece, "low_confidence")
                piece = dataclasses.replace(piece, candidate=kept)
        is_whole = step.draft.candidate.stop_reason == "sentence" and self._kept is None
        self._sentence = None if is_whole else self._so_far(piece.candidate)
        self._num_whole += is_whole
        return (yield from self._end_sentence(step, verdict))

    def _draft(self, view: View) -> Steps[Pass]:
        """The next piece; triggered if a token that may be looked up is low."""
        is_open = self._record.gate != "never" and \
            self._searches.budget_used_up(self._index, 0) is None
        first: Pass | None = None
        if self._has_searched:
            first = yield from self._more(view, None, max_tokens=1)
            if first.candidate.stop_reason != "max_tokens" or view.max_tokens == 1:
                return first
        more = yield from self._more(view, first, is_tested=is_open, may_stop=is_open)
        return joined_pass(first, more)

    def _query(self, piece: Pass, num_tokens: int) -> Query | None:
        """The query for the sentence up to and with the first tokens of a piece."""
        query = self._queries.from_candidate(
            self._so_far(_leading(piece.candidate, num_tokens)))
        if query is None or query.kept is None:
            return query
        # The trace speaks of the tokens of the piece.
        kept = query.kept[len(query.kept) - num_tokens:]
        num_left = len(piece.candidate.token_ids) - num_tokens
        return dataclasses.replace(query, kept=kept + (False,) * num_left)

    def _so_far(self, candidate: Candidate) -> Candidate:
        return candidate if self._sentence is None else joined_candidate(self._sentence, candidate)

    def _first_low(self, piece: Pass, begin: int) -> int:
        """The first low token; the last one where all are looked up whatever their confidence."""
        low = piece.trace.low
        return next((n for n in range(begin, len(low)) if low[n]), len(low) - 1)


def _character_start(candidate: Candidate, position: int, begin: int) -> int:
    """The first token of the character that a token is part of, not before `begin`."""
    pieces = candidate.token_bytes
    while position > begin and pieces[position] and pieces[position][0] & 0xC0 == 0x80:
        position -= 1
    return position


def _leading(candidate: Candidate, num_tokens: int) -> Candidate:
    """The first tokens of a text."""
    part = dataclasses.replace(
        candidate, token_ids=candidate.token_ids[:num_tokens],
        token_bytes=candidate.token_bytes[:num_tokens],
        is_special=candidate.is_special[:num_tokens], probs=candidate.probs[:num_tokens])
    return dataclasses.replace(part, text=text_bytes_of(part).decode("utf-8", "replace"))
