"""Prompts as token ids: what the user asked, and where passages stand in it.

A prompt is three runs of ids: `head` (instruction, exemplars, earlier turns), `question`, and
`opening` (what opens the answer). With `answer` for the ids accepted so far, the layouts are::

    no evidence           head question opening answer
    prefix                head EVIDENCE question opening answer
    boundary, no answer   head question EVIDENCE opening
    boundary, at b > 0    head question opening answer[:b] EVIDENCE answer[b:]
    parallel              head question opening answer, and EVIDENCE attached behind head

where a chat closes the assistant's turn before EVIDENCE of the last kind and opens one after it.
All of it is put together from ids; text that was encoded once is never encoded again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flarecore.errors import ConfigError
from flarecore.loop.evidence import Evidence

__all__ = ["Block", "Placed", "Prompt", "PromptInput", "View"]

PromptInput = str | Sequence[Mapping[str, str]] | Sequence[int]
"""A question, chat messages, or token ids."""


@dataclass(frozen=True)
class Block:
    """Ids around the passages of an evidence block, or around a message."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens besides what stands between."""
        return len(self.before) + len(self.after)


@dataclass(frozen=True)
class Placed:
    """Evidence and the boundary it was retrieved at.

    Parameters
    ----------
    evidence : Evidence
        The passages.
    boundary : int
        Number of answer tokens before it (placement ``boundary``).
    """

    evidence: Evidence
    boundary: int


@dataclass(frozen=True)
class View:
    """The context of a pass.

    Parameters
    ----------
    placed : Placed or None
        Evidence in view.
    token_ids : list of int
        The context.
    max_tokens : int
        Most tokens to generate; below 1 if there is no room.
    sees_from : int or None
        Index of the first token that sees the evidence, where it is attached (placement
        ``parallel``) and not among `token_ids`.
    """

    placed: Placed | None
    token_ids: list[int]
    max_tokens: int
    sees_from: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens in view, attached ones included."""
        if self.placed is None or self.sees_from is None:
            return len(self.token_ids)
        return len(self.token_ids) + self.placed.evidence.num_tokens


@dataclass(frozen=True)
class Prompt:
    """A prompt, ready to be laid out with and without evidence.

    Parameters
    ----------
    token_ids : tuple of int
        The prompt without evidence.
    head, question, opening : tuple of int
        Its runs, for the layouts with evidence.
    prefix_block, first_block, boundary_block : Block
        What stands around the passages in the three layouts with evidence.
    question_text : str or None
        What the user asked, for queries.
    turn : Block or None
        Chat: what closes the answer's turn and opens a message of the user, and what ends that and
        opens the next answer. `boundary_block` includes it.
    stop : tuple of str
        The template's stop strings.
    """

    token_ids: tuple[int, ...]
    head: tuple[int, ...]
    question: tuple[int, ...]
    opening: tuple[int, ...]
    prefix_block: Block
    first_block: Block
    boundary_block: Block
    question_text: str | None
    turn: Block | None
    stop: tuple[str, ...]

    @property
    def reopens_turn(self) -> bool:
        """Whether a sentence after `boundary_block` begins a turn.

        It then begins without the white space that joins it to the answer.
        """
        return self.turn is not None

    def layout(self, placement: str, placed: Placed | None, answer: Sequence[int]) -> list[int]:
        """Context ids for the next sentence.

        Parameters
        ----------
        placement : {"prefix", "boundary", "parallel"}
            Where evidence stands.
        placed : Placed or None
            Evidence in view.
        answer : sequence of int
            Ids accepted so far.
        """
        if placement == "parallel":
            return [*self.head, *self.question, *self.opening, *answer]
        if placed is None:
            return [*self.token_ids, *answer]
        passages = placed.evidence.token_ids
        if placement == "prefix":
            block = self.prefix_block
            return [*self.head, *block.before, *passages, *block.after, *self.question,
                    *self.opening, *answer]
        if placement != "boundary":
            raise ConfigError(
                f"placement must be 'prefix', 'boundary' or 'parallel', got {placement!r}")
        if placed.boundary == 0:
            block = self.first_block
            return [*self.head, *self.question, *block.before, *passages, *block.after,
                    *self.opening, *answer]
        block = self.boundary_block
        return [*self.token_ids, *answer[:placed.boundary], *block.before, *passages, *block.after,
                *answer[placed.boundary:]]

    @property
    def num_attach_head(self) -> int:
        """Tokens before attached passages: the head, or less if nothing is behind it."""
        num_tokens = len(self.head) + len(self.question) + len(self.opening)
        return min(len(self.head), num_tokens - 1)

    def first_seeing(self, placed: Placed, num_recomputed: int | None) -> int:
        """Index of the first token that sees attached evidence.

        Parameters
        ----------
        placed : Placed
            The evidence.
        num_recomputed : int or None
            Tokens before its boundary that see it, at least 1; None: all behind the head.
        """
        if num_recomputed is None:
            return self.num_attach_head
        end = len(self.head) + len(self.question) + len(self.opening) + placed.boundary
        return max(self.num_attach_head, end - num_recomputed)

    def max_block_tokens(self, placement: str) -> int:
        """Most tokens that evidence adds besides its passages."""
        if placement == "prefix":
            return self.prefix_block.num_tokens
        return max(self.first_block.num_tokens, self.boundary_block.num_tokens)
