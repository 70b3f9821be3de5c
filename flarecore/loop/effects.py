"""What the loop asks its driver to do.

The loop of an answer is a generator: it yields effects and is sent their results (or has their
errors thrown in). It never waits itself, so that one body of logic serves blocking and asyncio
callers alike.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flarecore.events import Event
from flarecore.loop.interfaces import OperationLike

__all__ = [
    "Effect", "EmitEvent", "Pause", "RunOperation", "RunOperations", "RunSearch", "Steps"]


@dataclass(frozen=True)
class RunOperation:
    """Start an operation of the engine and wait for it; the answer is its result."""

    start: Callable[[], OperationLike[Any]]


@dataclass(frozen=True)
class RunOperations:
    """Start operations on several sequences at once; the answer is the list of their results.

    The engine merges their steps. If one fails, the others are cancelled and its error is thrown
    in.
    """

    starts: tuple[Callable[[], OperationLike[Any]], ...]


@dataclass(frozen=True)
class RunSearch:
    """Ask the retriever; the answer is what it returned.

    Where the driver can give up waiting, it throws DeadlineExceeded in after `timeout_ms`.
    """

    queries: tuple[str, ...]
    k: int
    filter: Mapping[str, Any] | None
    timeout_ms: float | None


@dataclass(frozen=True)
class Pause:
    """Go on after so many seconds; there is no answer."""

    seconds: float


@dataclass(frozen=True)
class EmitEvent:
    """Hand an event to the consumer; there is no answer."""

    event: Event


Effect = RunOperation | RunOperations | RunSearch | Pause | EmitEvent

T = TypeVar("T")
Steps = Generator[Effect, Any, T]
"""A part of the loop that ends with a value of type T."""
