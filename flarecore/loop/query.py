"""From a sentence that triggered to search queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from flarecore.callables import call_option
from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.loop.asking import Asker
from flarecore.loop.candidate import Candidate
from flarecore.loop.effects import Steps
from flarecore.loop.interfaces import TokenizerLike
from flarecore.loop.pieces import encodable
from flarecore.loop.recorder import SentenceStep
from flarecore.loop.spans import low_texts
from flarecore.text import MaskUnit, is_punctuation_or_space, mask_to_query

__all__ = ["Query", "QueryMaker"]


@dataclass(frozen=True)
class Query:
    """What to search for.

    Parameters
    ----------
    texts : tuple of str
        One or more queries, scope included, none twice.
    source : {"question", "mask", "sentence", "questions", "keywords", "callable"}
        Where they came from.
    kept : tuple of bool or None
        (n,) for a masked query: the sentence's tokens that stayed in it.
    """

    texts: tuple[str, ...]
    source: str
    kept: tuple[bool, ...] | None = None


class QueryMaker:
    """Makes the queries of one answer.

    Parameters
    ----------
    tokenizer : TokenizerLike
        Counts ``max_query_tokens``.
    config : FlareConfig
        ``query``, ``beta``, ``mask_unit``, ``span_gap``, ``empty_query``, ``max_query_tokens``.
    question, scope : str or None
        What the user asked; text put before every query, which no draft can change.
    asker : Asker
        Has the model write queries.
    """

    def __init__(
        self, tokenizer: TokenizerLike, config: FlareConfig, question: str | None,
        scope: str | None, asker: Asker,
    ) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._question = question
        self._scope = scope
        self._asker = asker

    def from_question(self) -> Query | None:
        """The question as a query; None if there is none."""
        return self._finish([self._question or ""], "question", None)

    def from_candidate(self, candidate: Candidate) -> Query | None:
        """The query for a text of the answer, by the application, or of the text itself."""
        kind = self._config.query
        if callable(kind):
            query = self._finish(_texts(call_option("query", kind, candidate)), "callable", None)
        else:
            query = self._from_text(candidate, kind)
        return self._or_question(query)

    def from_text(self, text: str, source: str) -> Query | None:
        """A text as a query; where it has no word, what ``empty_query`` says."""
        return self._or_question(self._finish([text], source, None))

    def from_step(self, step: SentenceStep) -> Steps[Query | None]:
        """The queries for a sentence; None if no word is left and nothing stands in for it.

        Raises
        ------
        ConfigError
            A callable returned something else than text.
        CallbackError
            It raised.
        """
        kind = self._config.query
        if callable(kind) or kind in ("mask", "sentence"):
            return self.from_candidate(step.current.candidate)
        return self._or_question((yield from self._asked(step, kind)))

    def _or_question(self, query: Query | None) -> Query | None:
        """What stands in for a query without a word, as ``empty_query`` says."""
        if query is None and self._config.empty_query == "question":
            return self.from_question()
        return query

    def _from_text(self, candidate: Candidate, kind: str) -> Query | None:
        """The sentence, without its tokens below β if it is masked."""
        masks = kind == "mask"
        text, flags = mask_to_query(
            list(candidate.token_bytes), candidate.probs, self._config.beta if masks else 0.0,
            unit=cast(MaskUnit, self._config.mask_unit),
            inclusive=self._config.beta_inclusive and masks, special=list(candidate.is_special))
        return self._finish([text], kind, tuple(bool(f) for f in flags) if masks else None)

    def _asked(self, step: SentenceStep, kind: str) -> Steps[Query | None]:
        """What the model wrote; the whole sentence where it wrote nothing of use."""
        texts: list[str] = []
        if kind == "keywords":
            texts = yield from self._asker.keywords(step)
        elif spans := low_texts(step.current.candidate, self._config):
            texts = yield from self._asker.questions(step, spans)
        source = "keywords" if kind == "keywords" else "questions"
        query = self._finish(texts, source, None)
        return query or self._from_text(step.current.candidate, "sentence")

    def _finish(
        self, texts: Sequence[str], source: str, kept: tuple[bool, ...] | None
    ) -> Query | None:
        whole = [f"{self._scope} {text}" if self._scope else text
                 for text in map(self._cut, texts) if not is_punctuation_or_space(text.encode())]
        return Query(tuple(dict.fromkeys(whole)), source, kept) if whole else None

    def _cut(self, text: str) -> str:
        """The text on one line, the last ``max_query_tokens`` of it."""
        text = " ".join(encodable(text).split())
        ids = self._tokenizer.encode(text)
        if len(ids) <= self._config.max_query_tokens:
            return text
        tail = ids[-self._config.max_query_tokens:]
        data = b"".join(self._tokenizer.token_bytes(i) for i in tail)
        # The cut may leave the end of a character at the start.
        return data.decode("utf-8", "ignore").strip()


def _texts(made: object) -> list[str]:
    """What a callable returned: one query or several."""
    texts = [made] if isinstance(made, str) else made
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(
            "query: the callable must return a string or a sequence of strings, got "
            f"{type(made).__name__}")
    return list(texts)
