"""How a hybrid takes and asks its retrievers; failures name the retriever by its number."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from flarecore.errors import ConfigError, FlarecoreError, RetrievalError
from flarecore.retrieval.passage import Filter, Passage, Retriever, check_results

__all__ = ["asearched", "check_retrievers", "check_weights", "positive", "searched"]


def searched(
    position: int, retriever: Retriever, texts: list[str], depth: int, filter: Filter | None
) -> list[list[Passage]]:
    """What one retriever found, once it is known to keep the protocol; its failures by number."""
    try:
        found = retriever.search(texts, depth, filter)
    except FlarecoreError:
        raise
    except Exception as error:
        raise RetrievalError(f"hybrid: retriever {position} failed: {error}") from error
    return _checked(position, found, len(texts), depth)


async def asearched(
    position: int, retriever: Retriever, texts: list[str], depth: int, filter: Filter | None
) -> list[list[Passage]]:
    """As :func:`searched`, by the retriever's own ``asearch`` or on a thread."""
    own = getattr(retriever, "asearch", None)
    try:
        found = (await asyncio.to_thread(retriever.search, texts, depth, filter) if own is None
                 else await own(texts, depth, filter))
    except FlarecoreError:
        raise
    except Exception as error:
        raise RetrievalError(f"hybrid: retriever {position} failed: {error}") from error
    return _checked(position, found, len(texts), depth)


def _checked(position: int, found: object, num_queries: int, depth: int) -> list[list[Passage]]:
    try:
        return check_results(found, num_queries, depth)
    except RetrievalError as error:
        raise RetrievalError(f"hybrid: retriever {position}: {error}") from error


def check_retrievers(retrievers: Sequence[Retriever]) -> tuple[Retriever, ...]:
    """The retrievers, once there is at least one, each can search and none comes twice."""
    if isinstance(retrievers, Retriever) or not isinstance(retrievers, Sequence):
        raise ConfigError(
            f"hybrid: retrievers must be a list, got {type(retrievers).__name__}")
    if not retrievers:
        raise ConfigError("hybrid: needs at least one retriever")
    for position, retriever in enumerate(retrievers):
        if isinstance(retriever, type) or not isinstance(retriever, Retriever):
            raise ConfigError(
                f"hybrid: retriever {position} must have search(queries, k, filter), got "
                f"{retriever!r:.100}")
    if len({id(retriever) for retriever in retrievers}) != len(retrievers):
        raise ConfigError("hybrid: a retriever is there twice; give it a weight of 2 instead")
    return tuple(retrievers)


def check_weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """One weight for each retriever."""
    if weights is None:
        return (1.0,) * count
    if isinstance(weights, (str, bytes)) or not isinstance(weights, Sequence) or len(
            weights) != count:
        raise ConfigError(f"weights must be {count} numbers, one a retriever, got {weights!r:.100}")
    return tuple(positive("a weight", weight) for weight in weights)


def positive(name: str, value: object) -> float:
    """A number above 0 as a float, else a ConfigError that names it."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < 1e6 or not math.isfinite(value):  # type: ignore[operator, arg-type]
        raise ConfigError(f"{name} must be a number above 0 and below 1e6, got {value!r:.100}")
    return float(value)  # type: ignore[arg-type]
