"""Sequences: lists of token ids with a KV cache behind them, and the options of a decode."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any, TypedDict

from flarecore import _C
from flarecore.errors import ConfigError
from flarecore.operation import (
    Decoded,
    Operation,
    OperationStats,
    Scored,
    to_decoded,
    to_scored,
    to_stats,
)
from flarecore.sampling import SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from flarecore.engine import Engine

__all__ = ["Checkpoint", "DecodeOptions", "Sequence"]

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
    stop_below : float
        The first token with a confidence below it ends the decode, as ``"low_confidence"``; it is
        the last token of the result, or, inside a character, the token that ends the character.
        None and 0 stop at no token, a number above 1 at any. Only a token of this sentence counts:
        where it stands behind a possible end of the sentence, decoding goes on until that is clear.
    stop_at_punctuation : bool
        `stop_below` goes for special tokens and for those of only punctuation or white space, too.
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
    stop_below: float | None
    stop_at_punctuation: bool
    pass_index: int
    proposal: TokenIds
    lookup: TokenIds
    ignore_eos: bool
    deadline_ms: float | None


_DECODE_DEFAULTS: dict[str, Any] = {
    "sampling": SamplingParams(), "until": "sentence", "stop": (), "beta": None,
    "stop_below": None, "stop_at_punctuation": False, "pass_index": 1, "proposal": (),
    "lookup": (), "ignore_eos": False, "deadline_ms": None}


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
        return Operation(self._native.extend(list(token_ids), deadline_ms), to_stats, self)

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
                chosen["ignore_eos"], list(stop), chosen["beta"] or 0.0,
                chosen["stop_below"] or 0.0, chosen["stop_at_punctuation"], chosen["pass_index"],
                list(chosen["proposal"]), list(chosen["lookup"]), chosen["deadline_ms"]),
            to_decoded, self)

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
        native = self._native.score(list(token_ids), beta or 0.0, deadline_ms)
        return Operation(native, to_scored, self)

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
