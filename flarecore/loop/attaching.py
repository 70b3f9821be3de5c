"""Passages that are attached instead of placed in the context (placement ``parallel``).

The trunk (prompt and answer) keeps positions free behind the prompt's head. A passage is encoded
on its own behind that head, once, and attached there; only the last tokens of the trunk are
computed again with it in view (``FlareConfig.recompute_tokens``). So a retrieval of passages that
are known prefills no evidence, and costs the same however long the answer is. An approximation:
passages do not see each other, and the trunk's earlier tokens did not see them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flarecore.loop.effects import RunOperations, Steps

if TYPE_CHECKING:
    from flarecore.loop.answer_setup import AnswerSetup
    from flarecore.loop.lineage import Lineages
    from flarecore.loop.prompt import View

__all__ = ["Attached", "Attaching", "Reserved", "Taken"]


@dataclass(frozen=True)
class Reserved:
    """Positions kept free for passages.

    Parameters
    ----------
    num_head : int
        Tokens before them.
    num_positions : int
        Tokens of the longest passage that fits.
    """

    num_head: int
    num_positions: int


@dataclass(frozen=True)
class Attached:
    """What a sequence sees besides its tokens.

    Parameters
    ----------
    passages : tuple
        What the engine's passage cache gave, in the order of the evidence.
    from_token : int
        Index of the first token that sees them.
    """

    passages: tuple[Any, ...]
    from_token: int


@dataclass(frozen=True)
class Taken:
    """Passages ready to be attached, and what that cost.

    Parameters
    ----------
    attached : Attached or None
        None: nothing is to be attached.
    num_prefilled, num_encoded : int
        Tokens that went through a forward pass for it; passages among them.
    """

    attached: Attached | None = None
    num_prefilled: int = 0
    num_encoded: int = 0


class Attaching:
    """Gets the passages of a view, encoding those that the engine does not know.

    Parameters
    ----------
    setup : AnswerSetup
        Engine and request.
    lineages : Lineages
        The trunk, behind whose head passages are encoded.
    """

    def __init__(self, setup: AnswerSetup, lineages: Lineages) -> None:
        self._reserved = setup.reserved
        self._cache: Any = getattr(setup.engine, "passages", None)
        self._lineages = lineages

    def take(self, view: View, deadline_ms: float | None) -> Steps[Taken]:
        """The passages of a view; other placements have none to attach."""
        if self._reserved is None or view.placed is None or view.sees_from is None:
            return Taken()
        head = view.token_ids[:self._reserved.num_head]
        runs = [item.token_ids for item in view.placed.evidence.items]
        known = {run: self._cache.get(head, run) for run in dict.fromkeys(runs)}
        # Passages are encoded behind the trunk's head and lineages with passages fork off the
        # trunk: what of it is not there yet is computed first.
        ids = view.token_ids[:view.sees_from]
        trunk = self._lineages.take("draft", ids)
        num_prefilled = yield from trunk.complete(ids, None, deadline_ms)
        missing = [run for run, passage in known.items() if passage is None]
        if missing:
            encoded = yield RunOperations(tuple(
                functools.partial(self._cache.fetch_async, trunk.sequence, run)
                for run in missing))
            known |= {run: one.passage for run, one in zip(missing, encoded, strict=True)}
            num_prefilled += sum(one.num_prefilled for one in encoded)
        attached = Attached(tuple(known[run] for run in runs), view.sees_from)
        return Taken(attached, num_prefilled, len(missing))
