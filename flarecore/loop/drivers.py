"""Runs the loop of an answer for blocking and for asyncio callers.

Whatever ends the consumer's interest (closing the stream, Ctrl-C, cancelling the task) cancels the
running operation, waits until it has ended, and closes the loop, which closes its sequences.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from typing import Any, Generic, TypeVar

from flarecore.errors import CancelledError, DeadlineExceeded, RetrievalError
from flarecore.events import Event
from flarecore.loop.effects import EmitEvent, Pause, RunOperation, RunOperations, RunSearch, Steps
from flarecore.loop.interfaces import OperationLike
from flarecore.retrieval.passage import Passage, Retriever

__all__ = ["Outcome", "drive", "drive_async"]

T = TypeVar("T")


class Outcome(Generic[T]):
    """Where a driver leaves the loop's value when it has ended."""

    value: T | None = None


class _Reply:
    """What goes back into the loop: a value or an error."""

    value: Any = None
    error: BaseException | None = None

    def advance(self, steps: Steps[Any]) -> Any:
        """The loop's next effect."""
        value, error = self.value, self.error
        self.value = self.error = None
        return steps.send(value) if error is None else steps.throw(error)


def drive(
    steps: Steps[T], retriever: Retriever | None, outcome: Outcome[T]
) -> Generator[Event, None, None]:
    """The events of a loop, blocking between them."""
    reply = _Reply()
    try:
        while True:
            try:
                effect = reply.advance(steps)
            except StopIteration as end:
                outcome.value = end.value
                return
            if isinstance(effect, EmitEvent):
                yield effect.event
                continue
            if isinstance(effect, Pause):
                time.sleep(effect.seconds)
                continue
            try:
                reply.value = _search(retriever, effect) if isinstance(effect, RunSearch) \
                    else _run(effect)
            except Exception as error:
                reply.error = error
    finally:
        steps.close()


def _run(effect: RunOperation | RunOperations) -> Any:
    operations: list[OperationLike[Any]] = []
    try:
        _start(effect, operations)
        results = [operation.result() for operation in operations]
    finally:
        # Ctrl-C while waiting: an operation must end before its sequence can be closed.
        _settle(operations)
    return results if isinstance(effect, RunOperations) else results[0]


def _start(
    effect: RunOperation | RunOperations, operations: list[OperationLike[Any]]
) -> None:
    """Starts everything; what was started is in `operations` also when a later one is refused."""
    for start in effect.starts if isinstance(effect, RunOperations) else (effect.start,):
        operations.append(start())


def _settle(operations: list[OperationLike[Any]]) -> None:
    interrupt: KeyboardInterrupt | None = None
    for operation in operations:
        if not operation.done():
            operation.cancel()
    for operation in operations:
        while not operation.done():
            try:
                operation.result()
            except KeyboardInterrupt as error:
                interrupt = error
                operation.cancel()
            except Exception:
                # Its outcome no longer matters; the loop checks whether it has ended.
                continue
    if interrupt is not None:
        raise interrupt


def _search(retriever: Retriever | None, effect: RunSearch) -> list[list[Passage]]:
    assert retriever is not None, "Flare refuses options that search without a retriever"
    try:
        return retriever.search(list(effect.queries), effect.k, effect.filter)
    except CancelledError:
        raise
    except Exception as error:
        raise _retrieval_error(retriever, "search", effect, error) from error


def _retrieval_error(
    retriever: Retriever, method: str, effect: RunSearch, error: Exception
) -> RetrievalError:
    return RetrievalError(
        f"{type(retriever).__name__}.{method} raised {type(error).__name__}: {error} (queries "
        f"{list(effect.queries)!r}, k {effect.k}, filter {effect.filter!r}); the answer so far is "
        "in the error's attribute 'partial'")


async def drive_async(
    steps: Steps[T], retriever: Retriever | None, outcome: Outcome[T]
) -> AsyncGenerator[Event, None]:
    """The events of a loop, leaving the event loop free between them."""
    reply = _Reply()
    try:
        while True:
            try:
                effect = reply.advance(steps)
            except StopIteration as end:
                outcome.value = end.value
                return
            if isinstance(effect, EmitEvent):
                yield effect.event
                continue
            if isinstance(effect, Pause):
                await asyncio.sleep(effect.seconds)
                continue
            try:
                reply.value = await (
                    _search_async(retriever, effect) if isinstance(effect, RunSearch)
                    else _run_async(effect))
            except Exception as error:
                reply.error = error
    finally:
        steps.close()


async def _run_async(effect: RunOperation | RunOperations) -> Any:
    operations: list[OperationLike[Any]] = []
    try:
        _start(effect, operations)
        results = [await operation for operation in operations]
    finally:
        await _settle_async(operations)
    return results if isinstance(effect, RunOperations) else results[0]


async def _settle_async(operations: list[OperationLike[Any]]) -> None:
    cancelled: asyncio.CancelledError | None = None
    for operation in operations:
        if not operation.done():
            operation.cancel()
    while not all(operation.done() for operation in operations):
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _search_async(retriever: Retriever | None, effect: RunSearch) -> list[list[Passage]]:
    assert retriever is not None, "Flare refuses options that search without a retriever"
    asearch = getattr(retriever, "asearch", None)
    if asearch is None:
        # A thread cannot be stopped: after a cancellation it ends on its own, its result unused.
        found = asyncio.to_thread(_search, retriever, effect)
    else:
        found = _asearch(asearch, retriever, effect)
    timeout_s = None if effect.timeout_ms is None else effect.timeout_ms / 1000.0
    try:
        return await asyncio.wait_for(found, timeout_s)
    except asyncio.TimeoutError:
        raise DeadlineExceeded(
            f"the search was not done after {effect.timeout_ms:.0f} ms, what was left of "
            "deadline_ms") from None


async def _asearch(asearch: Any, retriever: Retriever, effect: RunSearch) -> list[list[Passage]]:
    try:
        found: list[list[Passage]] = await asearch(
            list(effect.queries), effect.k, effect.filter)
    except CancelledError:
        raise
    except Exception as error:
        raise _retrieval_error(retriever, "asearch", effect, error) from error
    return found
