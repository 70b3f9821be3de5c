"""Contexts of the naive loop: whole lists of ids, put together anew for every sentence.

The layouts::

    no evidence           head asked opening answer
    prefix                head EVIDENCE asked opening answer
    boundary, no answer   head asked EVIDENCE opening
    boundary, at b > 0    head asked opening answer[:b] EVIDENCE answer[b:]
    parallel              head asked opening answer, EVIDENCE attached behind head
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flarecore.errors import ConfigError

__all__ = ["NaiveEvidence", "NaivePrompt", "NaiveTemplate", "NaiveTokenizer", "base_prompt"]

Ids = Sequence[int]


class NaiveTokenizer(Protocol):
    """What the loop needs of a tokenizer."""

    @property
    def adds_bos(self) -> bool:
        """Whether a prompt begins with a begin-of-sequence token."""
        ...

    @property
    def token_table(self) -> list[bytes]:
        """Exact bytes of every token."""
        ...

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that are control, not text."""
        ...

    def encode(self, text: str, *, add_bos: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of a text."""
        ...


class NaiveTemplate(Protocol):
    """Pieces of a prompt; the fields of ``PromptTemplate``."""

    @property
    def head(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def passage(self) -> str: ...
    @property
    def prefix_evidence(self) -> str: ...
    @property
    def first_evidence(self) -> str: ...
    @property
    def boundary_evidence(self) -> str: ...
    @property
    def parallel_passage(self) -> str: ...


@dataclass(frozen=True)
class NaiveEvidence:
    """Rendered passages, and the answer length at which they were retrieved."""

    passages: tuple[Any, ...]
    rendered: tuple[list[int], ...]
    boundary: int

    @property
    def token_ids(self) -> list[int]:
        """Ids of all passages."""
        return [token_id for run in self.rendered for token_id in run]

    @property
    def passage_ids(self) -> tuple[str, ...]:
        """Ids of the passages, in order."""
        return tuple(passage.id for passage in self.passages)


@dataclass(frozen=True)
class NaivePrompt:
    """The runs of a prompt.

    Attributes
    ----------
    head, asked, opening
        Ids before the evidence, of the question, and of what opens the answer.
    prefix_block, first_block, boundary_block
        (before, after) ids around the passages in the three layouts with evidence.
    passage
        How a passage is rendered: ``{number}``, ``{title}``, ``{text}``, ``{id}``.
    parallel_passage
        The same for placement ``parallel``; without ``{number}``.
    question
        The question as text: the first query.
    reopens_turn
        Whether what follows the boundary block begins a turn of a chat.
    """

    head: Ids
    asked: Ids
    opening: Ids
    prefix_block: tuple[Ids, Ids]
    first_block: tuple[Ids, Ids]
    boundary_block: tuple[Ids, Ids]
    passage: str
    question: str
    reopens_turn: bool = False
    parallel_passage: str = "Search result: {text}\n"

    def context(
        self, placement: str, evidence: NaiveEvidence | None, answer: list[int]
    ) -> list[int]:
        """Everything before the next sentence.

        Parameters
        ----------
        placement
            ``"prefix"``, ``"boundary"`` or ``"parallel"``.
        evidence
            Passages in view, if any.
        answer
            Accepted ids.
        """
        head, asked, opening = list(self.head), list(self.asked), list(self.opening)
        if evidence is None or placement == "parallel":
            return head + asked + opening + answer
        if placement == "prefix":
            return head + _around(self.prefix_block, evidence) + asked + opening + answer
        if placement != "boundary":
            raise ConfigError(
                f"placement must be 'prefix', 'boundary' or 'parallel', got {placement!r}")
        if evidence.boundary == 0:
            return head + asked + _around(self.first_block, evidence) + opening + answer
        before, after = answer[: evidence.boundary], answer[evidence.boundary :]
        block = _around(self.boundary_block, evidence)
        return head + asked + opening + before + block + after


def _around(block: tuple[Ids, Ids], evidence: NaiveEvidence) -> list[int]:
    return [*block[0], *evidence.token_ids, *block[1]]


def base_prompt(tokenizer: NaiveTokenizer, template: NaiveTemplate, question: str) -> NaivePrompt:
    """The prompt of a base model, each piece encoded by itself.

    Parameters
    ----------
    tokenizer
        The model's tokenizer.
    template
        ``PromptTemplate.base()`` or a change of it.
    question
        What is asked.
    """

    def block(piece: str) -> tuple[Ids, Ids]:
        before, after = piece.split("{passages}")
        return tokenizer.encode(before), tokenizer.encode(after)

    return NaivePrompt(
        head=tokenizer.encode(template.head, add_bos=tokenizer.adds_bos, parse_special=True),
        asked=tokenizer.encode(template.question.format(question=question)),
        opening=tokenizer.encode(template.answer),
        prefix_block=block(template.prefix_evidence),
        first_block=block(template.first_evidence),
        boundary_block=block(template.boundary_evidence),
        passage=template.passage,
        parallel_passage=template.parallel_passage,
        question=question,
    )
