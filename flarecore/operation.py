"""Operations on a sequence: what they return, what they cost, and how to wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from flarecore import _C
from flarecore.validation import check_number

__all__ = ["Decoded", "Operation", "OperationStats", "Scored"]

T = TypeVar("T")


@dataclass(frozen=True)
class OperationStats:
    """What an operation did, in tokens and milliseconds.

    ``num_reused`` positions had their KV when it began, ``num_prefilled`` rows were fed for given
    tokens, ``num_decoded`` tokens were sampled, ``num_proposed`` rows of a proposal were fed and
    ``num_accepted`` of them were right, in ``num_steps`` forward passes.
    """

    num_reused: int = 0
    num_prefilled: int = 0
    num_decoded: int = 0
    num_proposed: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    time_ms: float = 0.0


@dataclass(frozen=True)
class Decoded:
    """Result of a decode.

    Attributes
    ----------
    token_ids : tuple of int
        The decoded tokens. An end-of-text token is not among them, nor are tokens of a stop string
        or tokens that were only looked at to find the end of the sentence.
    probs : numpy.ndarray
        (n,) float32 confidences: softmax of the raw logits at temperature 1 (design 3.2).
    min_prob : float
        The smallest of them; 1.0 if there is none.
    mask : numpy.ndarray
        (n,) bool, confidence < beta.
    eos_prob : float or None
        Confidence of the end-of-text token, if that ended the decode.
    text_bytes : bytes
        Exact bytes of the tokens, a stop string cut off. May end inside a UTF-8 character.
    stop_reason : str
        ``"sentence"``, ``"eos"``, ``"stop_string"``, ``"max_tokens"``, ``"context_length"`` or
        ``"low_confidence"``.
    stats : OperationStats
    triggered : bool or None
        A confidence is below `theta` (compared in float32); None if no `theta` was given.
    """

    token_ids: tuple[int, ...]
    probs: npt.NDArray[np.float32]
    min_prob: float
    mask: npt.NDArray[np.bool_]
    eos_prob: float | None
    text_bytes: bytes
    stop_reason: str
    stats: OperationStats
    triggered: bool | None = None

    @property
    def text(self) -> str:
        """The bytes as text; what is not valid UTF-8 becomes U+FFFD."""
        return self.text_bytes.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class Scored:
    """Confidences of given tokens: ``probs`` is (n,) float32, one per id of ``token_ids``."""

    token_ids: tuple[int, ...]
    probs: npt.NDArray[np.float32]
    min_prob: float
    mask: npt.NDArray[np.bool_]
    stats: OperationStats


class Operation(Generic[T]):
    """A running unit of work. Wait with :meth:`result`, or ``await`` it on any asyncio loop.

    A failed or cancelled operation leaves its sequence as it was before it.
    """

    def __init__(
        self, native: _C.Operation, convert: Callable[[dict[str, Any]], T], owner: object
    ) -> None:
        self._native = native
        self._convert = convert
        self._owner = owner  # the sequence: dropped before the end, it would cancel the operation

    def done(self) -> bool:
        """True once it has succeeded, failed or been cancelled."""
        return self._native.is_done()

    def cancel(self) -> None:
        """Asks it to stop before its next forward pass; it then fails with CancelledError."""
        self._native.cancel()

    def result(self, timeout: float | None = None) -> T:
        """Waits for the result.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait, none if it is 0 or below; None waits until the end.

        Raises
        ------
        ConfigError
            `timeout` is no number.
        TimeoutError
            It is not done yet; it goes on running.
        FlarecoreError
            What the operation failed with.
        KeyboardInterrupt
            Ctrl-C; the operation has been cancelled and has ended.
        """
        timeout_ms = None if timeout is None else max(0.0, 1000.0 * _check_timeout(timeout))
        try:
            if not self._native.wait(timeout_ms):
                raise TimeoutError(f"the operation is not done after {timeout} s")
        except BaseException as error:
            if not isinstance(error, TimeoutError):
                self._abandon()
            raise
        return self._convert(self._native.result())

    def _abandon(self) -> None:
        """The one who waited does not want it any more."""
        self._native.cancel()
        self._native.wait()

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    async def _wait(self) -> T:
        loop = asyncio.get_running_loop()
        finished = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(finished.set)

        self._native.on_done(wake)
        try:
            await finished.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._convert(self._native.result())


def _check_timeout(timeout: float) -> float:
    # Waiting for ever may be written as infinity, too.
    return timeout if timeout == math.inf else check_number("timeout", timeout)


def to_stats(raw: dict[str, Any]) -> OperationStats:
    return OperationStats(**raw["stats"])


def to_decoded(raw: dict[str, Any], theta: float | None) -> Decoded:
    triggered = None if theta is None else bool((raw["probs"] < np.float32(theta)).any())
    return Decoded(raw["token_ids"], raw["probs"], raw["min_prob"], raw["mask"], raw["eos_prob"],
                   raw["text_bytes"], raw["stop_reason"], to_stats(raw), triggered)


def to_scored(raw: dict[str, Any]) -> Scored:
    return Scored(raw["token_ids"], raw["probs"], raw["min_prob"], raw["mask"], to_stats(raw))
