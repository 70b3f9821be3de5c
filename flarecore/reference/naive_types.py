"""What the naive loop takes and gives: a source of tokens, options, sentences, the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

__all__ = [
    "NaiveAnswer",
    "NaiveAttached",
    "NaiveOptions",
    "NaivePass",
    "NaiveSentence",
    "TokenSource",
]


@dataclass(frozen=True)
class NaiveAttached:
    """Passages beside a context, and positions reserved for them; see ``reference.parallel``."""

    num_head: int
    num_reserved: int
    passages: tuple[list[int], ...]
    sees_from: int


class TokenSource(Protocol):
    """A model, asked from scratch for each sentence."""

    def stream(
        self, token_ids: Sequence[int], pass_index: int, attached: NaiveAttached | None = None
    ) -> Callable[[], tuple[int | None, float]]:
        """Prefill a context into a new sequence, with passages attached to it if any are given.

        Each call of what is returned appends one more token and gives its id and confidence; None
        for the id is the end of the text.
        """
        ...


@dataclass(frozen=True)
class NaiveOptions:
    """Options, named and meant as in ``FlareConfig``.

    ``search`` takes a query and gives passages with ``id``, ``title`` and ``text``, best first.
    ``greedy`` says that the token source is: what it wrote with some passages it would write again.
    """

    search: Callable[[str], Sequence[Any]]
    theta: float = 0.8
    beta: float = 0.4
    trigger: str = "min"
    min_span_chars: int = 4
    evidence_policy: str = "replace"
    placement: str = "prefix"
    recompute_tokens: int | None = 64
    draft_context: str = "none"
    initial_retrieval: bool = True
    trigger_punctuation: bool = False
    mask_unit: str = "auto"
    max_query_tokens: int = 64
    max_passage_tokens: int = 160
    max_draft_tokens: int = 64
    max_new_tokens: int = 256
    max_sentences: int | None = None
    greedy: bool = False


@dataclass(frozen=True)
class NaivePass:
    """A sentence as written once.

    ``token_ids`` (n,), ``probs`` (n,) float32; ``stop_reason`` is ``sentence``, ``eos`` or
    ``max_tokens``.
    """

    token_ids: tuple[int, ...]
    probs: np.ndarray[Any, np.dtype[np.float32]]
    stop_reason: str


@dataclass(frozen=True)
class NaiveSentence:
    """A draft and what became of it.

    ``query`` is None if nothing was searched, ``regenerated`` if no passage was found.
    ``token_ids`` entered the answer.
    """

    draft: NaivePass
    triggered: bool
    query: str | None
    passage_ids: tuple[str, ...]
    regenerated: NaivePass | None
    token_ids: tuple[int, ...]
    stop_reason: str


@dataclass
class NaiveAnswer:
    """The answer and the way to it; ``num_prefilled`` counts the tokens of all contexts."""

    sentences: list[NaiveSentence] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: bytes = b""
    stop_reason: str = ""
    initial_passage_ids: tuple[str, ...] = ()
    num_prefilled: int = 0
