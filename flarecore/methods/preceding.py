"""Retrieval at fixed places with what was written last: no draft, no look ahead.

The paper's multi-time baselines (section 4.1): every sentence with the previous sentence as query,
or every n tokens with the last n tokens (IC-RALM, RETRO). The passages stand before the question
until the next retrieval.
"""

from __future__ import annotations

from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.controller import AnswerLoop
from flarecore.loop.effects import Steps
from flarecore.trace import RetrievalTrace

__all__ = ["PrecedingLoop"]


class PrecedingLoop(AnswerLoop):
    """Searches before each piece with the piece before it.

    Parameters
    ----------
    setup : AnswerSetup
        Engine, options and request.
    source : str
        Name of the query's source in the trace.
    until : {"sentence", "eos"}
        What a piece is: a sentence, or ``max_draft_tokens`` tokens.
    """

    def __init__(self, setup: AnswerSetup, source: str, until: str) -> None:
        super().__init__(setup)
        self._source = source
        self._until = until
        self._previous = ""
        self._searched: tuple[str, ...] = ()
        self._retrievals: list[RetrievalTrace] = []
        self._unsupported: str | None = None

    def _write_sentence(self) -> Steps[str | None]:
        self._retrievals, self._unsupported, verdict = [], None, "accept"
        if self._index > 0 and self._record.gate != "never":
            verdict = yield from self._look_back()
        view = self._decode.fit(self._placed, self._answer, self._max_tokens())
        if view.max_tokens < 1:
            return "context_length"
        self._placed = view.placed
        # An answer that ends here still tells of the search it ended for.
        drafting = self._decode.nothing(view, self._index) if verdict == "stop" else \
            self._decode.draft(view, self._index, self._text.text, is_tested=False,
                               may_stop=False, until=self._until)
        step = yield from self._begin(view, drafting)
        step.retrievals += self._retrievals
        step.unsupported_because = self._unsupported
        # A piece may begin and end inside a character.
        self._previous = step.current.text_bytes.decode("utf-8", "ignore")
        return (yield from self._end_sentence(step, verdict))

    def _look_back(self) -> Steps[str]:
        """Searches with the last piece; returns what to do with the next one."""
        self._unsupported = self._searches.budget_used_up(self._index, 0)
        if self._unsupported is not None:
            return "accept"
        query = self._queries.from_text(self._previous, self._source)
        if query is None:
            self._unsupported = "empty_query"
        elif query.texts == self._searched:
            self._unsupported = "repeated_query"
        else:
            self._searched = query.texts
            placed = yield from self._searches.ahead(
                query, self._index, self._placed, len(self._answer), self._retrievals.append)
            if placed is not None:
                self._placed = placed
                return "accept"
            self._unsupported = "no_evidence"
            return self._revision.no_evidence(None)
        return "accept"
