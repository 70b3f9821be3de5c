"""Engine, sequences and operations: the typed face of the native core.

Per-token work never enters Python: an operation runs to its end in native code on the engine's own
thread with the GIL released, and completes a future.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import weakref
from collections.abc import Callable, Generator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from flarecore import _C
from flarecore.errors import ConfigError
from flarecore.model import Model
from flarecore.sampling import SamplingParams
from flarecore.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Checkpoint", "DecodeOptions", "Decoded", "Engine", "EngineStats", "Operation",
           "OperationStats", "Scored", "Sequence"]

T = TypeVar("T")
TokenIds = SequenceOf[int]


class DecodeOptions(TypedDict, total=False):
    """Options of :meth:`Sequence.decode` and :meth:`Sequence.regenerate`.

    Attributes
    ----------
    sampling : SamplingParams
        Greedy by default.
    until : {"sentence", "eos"}
        Where to stop at the latest. With ``"sentence"`` (default) the sequence ends exactly at the
        sentence's end; a token looked at to find it begins the next decode.
    stop : sequence of str
        Text that ends the decode and is cut off. It may begin in one token and end in another.
    beta : float
        Mask threshold: ``Decoded.mask`` marks tokens with a confidence below it.
    pass_index : int
        Which random numbers are drawn: 0 for a draft, 1 (default) for a regeneration.
    proposal : sequence of int
        Guessed continuation. It is verified in the same forward passes: the result is the same with
        or without it, only faster if it is right.
    lookup : sequence of int
        Text whose wording may recur (evidence, question). Where the last tokens are found in it, or
        in the proposal, what follows there is proposed next.
    ignore_eos : bool
        Decode through end-of-text tokens.
    deadline_ms : float
        Fails with DeadlineExceeded when this many milliseconds have passed.
    """

    sampling: SamplingParams
    until: str
    stop: SequenceOf[str]
    beta: float | None
    pass_index: int
    proposal: TokenIds
    lookup: TokenIds
    ignore_eos: bool
    deadline_ms: float | None


_DECODE_DEFAULTS: dict[str, Any] = {
    "sampling": SamplingParams(), "until": "sentence", "stop": (), "beta": None, "pass_index": 1,
    "proposal": (), "lookup": (), "ignore_eos": False, "deadline_ms": None}


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
        ``"sentence"``, ``"eos"``, ``"stop_string"``, ``"max_tokens"`` or ``"context_length"``.
    stats : OperationStats
    """

    token_ids: tuple[int, ...]
    probs: npt.NDArray[np.float32]
    min_prob: float
    mask: npt.NDArray[np.bool_]
    eos_prob: float | None
    text_bytes: bytes
    stop_reason: str
    stats: OperationStats

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


@dataclass(frozen=True)
class EngineStats:
    """State of an engine's KV cache and what it has run so far."""

    num_blocks: int
    num_held_blocks: int
    num_cached_blocks: int
    block_size_bytes: int
    weights_size_bytes: int
    num_sequences: int
    num_steps: int
    num_rows: int


def _to_stats(raw: dict[str, Any]) -> OperationStats:
    return OperationStats(**raw["stats"])


def _to_decoded(raw: dict[str, Any]) -> Decoded:
    return Decoded(raw["token_ids"], raw["probs"], raw["min_prob"], raw["mask"], raw["eos_prob"],
                   raw["text_bytes"], raw["stop_reason"], _to_stats(raw))


def _to_scored(raw: dict[str, Any]) -> Scored:
    return Scored(raw["token_ids"], raw["probs"], raw["min_prob"], raw["mask"], _to_stats(raw))


class Operation(Generic[T]):
    """A running unit of work. Wait with :meth:`result`, or ``await`` it on any asyncio loop.

    A failed or cancelled operation leaves its sequence as it was before it.
    """

    def __init__(self, native: _C.Operation, convert: Callable[[dict[str, Any]], T]) -> None:
        self._native = native
        self._convert = convert

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
            Seconds to wait; None waits until the end.

        Raises
        ------
        TimeoutError
            It is not done yet; it goes on running.
        FlarecoreError
            What the operation failed with.
        KeyboardInterrupt
            Ctrl-C; the operation has been cancelled and has ended.
        """
        try:
            if not self._native.wait(None if timeout is None else timeout * 1000.0):
                raise TimeoutError(f"the operation is not done after {timeout} s")
        except BaseException as error:
            if not isinstance(error, TimeoutError):
                self._native.cancel()
                self._native.wait()
            raise
        return self._convert(self._native.result())

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
            self._native.cancel()
            raise
        return self._convert(self._native.result())


class Checkpoint:
    """A moment of a sequence that :meth:`Sequence.rollback` brings back, whatever came after."""

    def __init__(self, native: _C.Checkpoint) -> None:
        self._native = native

    @property
    def num_tokens(self) -> int:
        return self._native.num_tokens


class Sequence:
    """A list of token ids with a KV cache behind it. Made by :meth:`Engine.sequence`.

    One operation may run at a time; a second one raises SequenceBusyError. Usable as a context
    manager that closes it.
    """

    def __init__(self, engine: Engine, native: _C.Sequence) -> None:
        self.engine = engine
        self._native = native

    @property
    def num_tokens(self) -> int:
        """Tokens in the sequence."""
        return self._native.num_tokens

    @property
    def token_ids(self) -> list[int]:
        """A copy of the ids."""
        return self._native.token_ids()

    def extend_async(self, token_ids: TokenIds, *,
                     deadline_ms: float | None = None) -> Operation[OperationStats]:
        """Starts :meth:`extend`."""
        return Operation(self._native.extend(list(token_ids), deadline_ms), _to_stats)

    def extend(self, token_ids: TokenIds, *, deadline_ms: float | None = None) -> OperationStats:
        """Appends tokens and prefills them. Cached prefixes are attached instead of computed.

        The last token's row is fed by the next operation, which needs its logits anyway.

        Parameters
        ----------
        token_ids : sequence of int
        deadline_ms : float, optional
            Fails with DeadlineExceeded when this many milliseconds have passed.

        Raises
        ------
        ConfigError
            An id is outside the vocabulary, or the sequence is closed.
        ContextOverflowError
            The tokens do not fit into the model's context.
        OutOfBlocksError
            The KV cache is full.
        SequenceBusyError
            An operation still runs.
        """
        return self.extend_async(token_ids, deadline_ms=deadline_ms).result()

    def decode_async(self, max_tokens: int,
                     **options: Unpack[DecodeOptions]) -> Operation[Decoded]:
        """Starts :meth:`decode`."""
        options.setdefault("pass_index", 0)
        return self.regenerate_async((), max_tokens=max_tokens, **options)

    def decode(self, max_tokens: int, **options: Unpack[DecodeOptions]) -> Decoded:
        """Samples tokens until a rule ends it, and appends them to the sequence.

        Parameters
        ----------
        max_tokens : int
            Most tokens to sample, at least 1. A sentence that reaches it inside a UTF-8 character
            ends before that character.
        **options
            See :class:`DecodeOptions`; ``pass_index`` is 0 here.

        Raises
        ------
        ConfigError
            An option is wrong or unknown, or the sequence is empty or closed.
        ContextOverflowError
            The context is full.
        OutOfBlocksError, SequenceBusyError, CancelledError, DeadlineExceeded
            The sequence is as it was before the call.
        """
        return self.decode_async(max_tokens, **options).result()

    def regenerate_async(self, evidence_ids: TokenIds, *, max_tokens: int,
                         **options: Unpack[DecodeOptions]) -> Operation[Decoded]:
        """Starts :meth:`regenerate`."""
        unknown = set(options) - set(_DECODE_DEFAULTS)
        if unknown:
            raise ConfigError(f"unknown decode option {min(unknown)!r}; known: "
                              f"{', '.join(sorted(_DECODE_DEFAULTS))}")
        chosen = {**_DECODE_DEFAULTS, **options}
        until, stop, sampling = chosen["until"], chosen["stop"], chosen["sampling"]
        if until not in ("sentence", "eos"):
            raise ConfigError(f"until must be 'sentence' or 'eos', got {until!r}")
        if isinstance(stop, str):
            raise ConfigError(f"stop must be a sequence of strings, got the string {stop!r}; "
                              f"pass [{stop!r}]")
        if not isinstance(sampling, SamplingParams):
            raise ConfigError(f"sampling must be SamplingParams, got {type(sampling).__name__}")
        raw_sampling = {**sampling.to_dict(), "logit_bias": dict(sampling.logit_bias)}
        return Operation(
            self._native.decode(
                list(evidence_ids), max_tokens, raw_sampling, until == "sentence",
                chosen["ignore_eos"], list(stop), chosen["beta"] or 0.0, chosen["pass_index"],
                list(chosen["proposal"]), list(chosen["lookup"]), chosen["deadline_ms"]),
            _to_decoded)

    def regenerate(self, evidence_ids: TokenIds, *, max_tokens: int,
                   **options: Unpack[DecodeOptions]) -> Decoded:
        """Appends the evidence and decodes, as one operation.

        The proposal (usually the draft's tokens) rides on the evidence's own prefill.

        Parameters
        ----------
        evidence_ids : sequence of int
        max_tokens : int
        **options
            See :class:`DecodeOptions`. Errors as for :meth:`decode`.
        """
        return self.regenerate_async(evidence_ids, max_tokens=max_tokens, **options).result()

    def score_async(self, token_ids: TokenIds, *, beta: float | None = None,
                    deadline_ms: float | None = None) -> Operation[Scored]:
        """Starts :meth:`score`."""
        return Operation(self._native.score(list(token_ids), beta or 0.0, deadline_ms), _to_scored)

    def score(self, token_ids: TokenIds, *, beta: float | None = None,
              deadline_ms: float | None = None) -> Scored:
        """Confidences of given tokens as a continuation; nothing is sampled.

        The sequence is left as it is. Raises ConfigError on an empty sequence, since the first
        token would have no context.
        """
        return self.score_async(token_ids, beta=beta, deadline_ms=deadline_ms).result()

    def truncate(self, num_tokens: int) -> None:
        """Forgets every token from position `num_tokens` on. ConfigError if there are fewer."""
        self._native.truncate(num_tokens)

    def checkpoint(self) -> Checkpoint:
        """Remembers this moment. Holds its KV blocks until the checkpoint is dropped."""
        return Checkpoint(self._native.checkpoint())

    def rollback(self, checkpoint: Checkpoint) -> None:
        """Brings back tokens, KV and looked-ahead tokens of a checkpoint of the same engine."""
        self._native.rollback(checkpoint._native)

    def fork(self) -> Sequence:
        """A second sequence with the same content. KV blocks are shared until one writes."""
        return Sequence(self.engine, self._native.fork())

    def close(self) -> None:
        """Gives the KV blocks back; a running operation is cancelled first. May be repeated."""
        self._native.close()

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Engine:
    """Runs sequences of one model over one KV cache.

    Parameters
    ----------
    model : Model
    kv_cache_bytes : int, optional
        Budget of the KV cache. None: four full contexts, at most a quarter of the memory. Pages are
        taken from the system when they are first written.
    compute : {"int8", "float32"}
        ``"int8"``: weights stay quantised, activations are quantised to 8 bits per row and group
        of 32, KV is float16. ``"float32"``: dequantised weights, exact; four times the memory.
    sampler : {"fused", "reference"}
        ``"reference"`` is the slow, step-by-step twin in double precision.
    max_batch_tokens : int
        Most rows of one forward pass. Results do not depend on it.

    Raises
    ------
    ConfigError
        An option is unknown or out of range.
    """

    def __init__(self, model: Model, *, kv_cache_bytes: int | None = None, compute: str = "int8",
                 sampler: str = "fused", max_batch_tokens: int = 256) -> None:
        if compute not in ("int8", "float32"):
            raise ConfigError(f"compute must be 'int8' or 'float32', got {compute!r}")
        if sampler not in ("fused", "reference"):
            raise ConfigError(f"sampler must be 'fused' or 'reference', got {sampler!r}")
        if kv_cache_bytes is not None and kv_cache_bytes < 1:
            raise ConfigError(f"kv_cache_bytes must be >= 1, got {kv_cache_bytes}")
        self.model = model
        self.compute = compute
        self._native = _C.Engine(model._native, kv_cache_bytes or 0, compute == "int8",
                                 sampler == "reference", max_batch_tokens)
        _live_engines.add(self)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    def sequence(self, token_ids: TokenIds | None = None) -> Sequence:
        """A new sequence; with `token_ids` also extended by them (see :meth:`Sequence.extend`).

        The longest prefix that is in the cache is reused.
        """
        sequence = Sequence(self, self._native.sequence())
        if token_ids is not None:
            try:
                sequence.extend(token_ids)
            except BaseException:
                sequence.close()
                raise
        return sequence

    def check_integrity(self) -> None:
        """Raises FlarecoreError if block counts and references do not add up."""
        self._native.check_integrity()

    def stats(self) -> EngineStats:
        """Block counts and work done so far."""
        return EngineStats(**self._native.stats())

    def close(self) -> None:
        """Stops the worker; running operations fail with CancelledError. May be repeated."""
        self._native.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


# Workers call back into Python: they must have ended before the interpreter is torn down.
_live_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_engines() -> None:
    for engine in list(_live_engines):
        engine.close()
