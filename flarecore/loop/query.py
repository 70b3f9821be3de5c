"""From a sentence that triggered to a search query (design 3.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.loop.candidate import Candidate
from flarecore.loop.interfaces import TokenizerLike
from flarecore.text import MaskUnit, is_punctuation_or_space, mask_to_query

__all__ = ["Query", "QueryMaker"]


@dataclass(frozen=True)
class Query:
    """A query.

    Parameters
    ----------
    text : str
        Scope included.
    source : {"question", "mask", "sentence", "callable"}
        Where it came from.
    kept : tuple of bool or None
        (n,) for a masked query: the sentence's tokens that stayed in it.
    """

    text: str
    source: str
    kept: tuple[bool, ...] | None = None


class QueryMaker:
    """Makes the queries of one answer.

    Parameters
    ----------
    tokenizer : TokenizerLike
        Counts ``max_query_tokens``.
    config : FlareConfig
        ``query``, ``beta``, ``mask_unit``, ``empty_query``, ``max_query_tokens``.
    question, scope : str or None
        What the user asked; text put before every query, which no draft can change.
    """

    def __init__(
        self, tokenizer: TokenizerLike, config: FlareConfig, question: str | None,
        scope: str | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._question = question
        self._scope = scope

    def from_question(self) -> Query | None:
        """The question as a query; None if there is none."""
        return self._finish(self._question or "", "question", None)

    def from_candidate(self, candidate: Candidate) -> Query | None:
        """The query for a sentence; None if no word is left and nothing stands in for it.

        Raises
        ------
        ConfigError
            A callable returned something else than a string.
        """
        kind = self._config.query
        kept: tuple[bool, ...] | None = None
        if callable(kind):
            text, source = kind(candidate), "callable"
            if not isinstance(text, str):
                raise ConfigError(
                    f"query: the callable must return a string, got {type(text).__name__}")
        else:
            text, flags = mask_to_query(
                list(candidate.token_bytes), candidate.probs,
                self._config.beta if kind == "mask" else 0.0,
                unit=cast(MaskUnit, self._config.mask_unit),
                inclusive=self._config.beta_inclusive and kind == "mask",
                special=list(candidate.is_special))
            source = kind
            kept = tuple(bool(flag) for flag in flags) if kind == "mask" else None
        query = self._finish(text, source, kept)
        if query is None and self._config.empty_query == "question":
            query = self.from_question()
        return query

    def _finish(self, text: str, source: str, kept: tuple[bool, ...] | None) -> Query | None:
        text = " ".join(text.encode("utf-8", "replace").decode("utf-8").split())
        ids = self._tokenizer.encode(text)
        if len(ids) > self._config.max_query_tokens:
            tail = ids[-self._config.max_query_tokens:]
            data = b"".join(self._tokenizer.token_bytes(i) for i in tail)
            # The cut may leave the end of a character at the start.
            text = data.decode("utf-8", "ignore").strip()
        if not text or is_punctuation_or_space(text.encode()):
            return None
        return Query(f"{self._scope} {text}" if self._scope else text, source, kept)
