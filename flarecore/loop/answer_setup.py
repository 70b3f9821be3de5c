"""What the loop of an answer starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flarecore.config import FlareConfig
from flarecore.loop.attaching import Reserved
from flarecore.loop.evidence import EvidenceMaker
from flarecore.loop.interfaces import EngineLike
from flarecore.loop.joint import Joint
from flarecore.loop.pieces import PieceEncoder
from flarecore.loop.prompt import Prompt
from flarecore.templates import PromptTemplate

__all__ = ["AnswerSetup"]


@dataclass(frozen=True)
class AnswerSetup:
    """Engine, options and request; everything is checked before the loop begins.

    Parameters
    ----------
    engine : EngineLike
        Runs the sequences.
    config : FlareConfig
        Options.
    prompt : Prompt
        The request's prompt.
    template : PromptTemplate
        The template it was built with.
    pieces : PieceEncoder
        Encodes pieces of the template.
    maker : EvidenceMaker
        Renders passages for this prompt.
    joint : Joint
        Joins sentences to the answer.
    scope : str or None
        Text put before every query.
    filter : Mapping or None
        Metadata conditions for every search.
    filter_shown : Mapping or None
        The same as JSON values, for events and trace.
    clock : callable
        Monotonic seconds.
    started : float
        When the answer was asked for, by that clock; ``deadline_ms`` counts from there.
    method, method_options : str, Mapping
        Name of the method that writes the answer, and its own options, see
        :mod:`flarecore.methods`.
    reserved : Reserved or None
        Where passages are attached (placement ``parallel``).
    """

    engine: EngineLike
    config: FlareConfig
    prompt: Prompt
    template: PromptTemplate
    pieces: PieceEncoder
    maker: EvidenceMaker
    joint: Joint
    scope: str | None
    filter: Mapping[str, Any] | None
    filter_shown: Mapping[str, Any] | None
    clock: Callable[[], float]
    started: float
    method: str = "flare"
    method_options: Mapping[str, Any] = field(default_factory=dict)
    reserved: Reserved | None = None

    @property
    def context_length(self) -> int:
        """Tokens that a sequence can hold, reserved positions left out."""
        num_reserved = 0 if self.reserved is None else self.reserved.num_positions
        return self.engine.model.config.context_length - num_reserved
