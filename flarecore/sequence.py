"""Sequences: lists of token ids with a KV cache behind them."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING

from flarecore import _C
from flarecore.decode_options import (
    MAX_INT32,
    DecodeOptions,
    TokenIds,
    check_beta,
    check_deadline,
    check_theta,
    check_token_ids,
    decode_arguments,
)
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
from flarecore.passage_kv import PassageKv, to_passage
from flarecore.validation import check_int

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from flarecore.engine import Engine

__all__ = ["Checkpoint", "DecodeOptions", "Sequence"]


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
    def num_head_tokens(self) -> int:
        """Tokens before the reserved positions, see :meth:`Engine.sequence`."""
        return self._native.num_head

    @property
    def num_reserved(self) -> int:
        """Positions kept free for passages."""
        return self._native.num_reserved

    @property
    def token_ids(self) -> list[int]:
        """A copy of the ids."""
        return self._native.token_ids()

    def extend_async(self, token_ids: TokenIds, *,
                     deadline_ms: float | None = None) -> Operation[OperationStats]:
        """Starts :meth:`extend`."""
        native = self._native.extend(
            check_token_ids("token_ids", token_ids), check_deadline(deadline_ms))
        return Operation(native, to_stats, self)

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
            An id is outside the vocabulary.
        ClosedError
            The sequence or its engine is closed.
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
            An option is wrong or unknown, or the sequence is empty.
        ClosedError
            The sequence or its engine is closed.
        ContextOverflowError
            The context is full.
        OutOfBlocksError, SequenceBusyError, CancelledError, DeadlineExceeded
            The sequence is as it was before the call.
        """
        return self.decode_async(max_tokens, **options).result()

    def regenerate_async(self, evidence_ids: TokenIds, *, max_tokens: int,
                         **options: Unpack[DecodeOptions]) -> Operation[Decoded]:
        """Starts :meth:`regenerate`."""
        arguments = decode_arguments(evidence_ids, max_tokens, options)
        theta = check_theta(options.get("theta"))
        return Operation(
            self._native.decode(*arguments), lambda raw: to_decoded(raw, theta), self)

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
        native = self._native.score(
            check_token_ids("token_ids", token_ids), check_beta(beta), check_deadline(deadline_ms))
        return Operation(native, to_scored, self)

    def score(self, token_ids: TokenIds, *, beta: float | None = None,
              deadline_ms: float | None = None) -> Scored:
        """Confidences of given tokens as a continuation; nothing is sampled.

        The sequence is left as it is. Raises ConfigError on an empty sequence, since the first
        token would have no context.
        """
        return self.score_async(token_ids, beta=beta, deadline_ms=deadline_ms).result()

    def encode_passage_async(self, token_ids: TokenIds, *,
                             deadline_ms: float | None = None) -> Operation[PassageKv]:
        """Starts :meth:`encode_passage`. Any number may run; the sequence is not busy with them."""
        native = self._native.encode(
            check_token_ids("token_ids", token_ids), check_deadline(deadline_ms))
        return Operation(native, to_passage, self)

    def encode_passage(self, token_ids: TokenIds, *,
                       deadline_ms: float | None = None) -> PassageKv:
        """Computes K and V of a passage on its own, right behind the sequence's head.

        The sequence stays as it is. What of the head's K and V it holds is reused.

        Raises
        ------
        ConfigError
            The passage is empty or has more than `num_reserved` tokens, an id is outside the
            vocabulary, or the sequence is shorter than its head.
        SequenceBusyError, ClosedError, OutOfBlocksError, CancelledError, DeadlineExceeded
            Nothing has changed.
        """
        return self.encode_passage_async(token_ids, deadline_ms=deadline_ms).result()

    def attach(self, passages: SequenceOf[PassageKv], *, from_token: int | None = None) -> None:
        """Lets tokens see these passages, in this order, and no others.

        Blocks are shared, nothing is copied. Tokens before `from_token` do not see the passages and
        keep their K and V; those from there on are computed again by the next operation.

        Parameters
        ----------
        passages : sequence of PassageKv
            Encoded behind the head of this sequence; empty: as :meth:`detach`.
        from_token : int, optional
            Index of the first token that sees them, at least `num_head_tokens`; it may be one
            that is not there yet. None: the last token, so that the next one is drawn with the
            passages in view.

        Raises
        ------
        ConfigError
            A passage belongs to another model, compute mode or head (on a GPU: to another engine)
            or is longer than `num_reserved`, `from_token` is out of range, or the sequence is
            shorter than its head.
        SequenceBusyError, ClosedError
            An operation runs; the sequence or its engine is closed.
        """
        for passage in passages:
            if not isinstance(passage, PassageKv):
                raise ConfigError(
                    f"passages must be PassageKv (see encode_passage), got "
                    f"{type(passage).__name__}")
        if from_token is None:
            from_token = max(self.num_tokens - 1, self.num_head_tokens)
        self._native.attach([passage._native for passage in passages],
                            check_int("from_token", from_token, 0, MAX_INT32))

    def detach(self) -> None:
        """Takes the passages out of view; tokens that saw them are computed again."""
        self._native.attach([], 0)

    def truncate(self, num_tokens: int) -> None:
        """Forgets every token from the index `num_tokens` on. ConfigError if there are fewer.

        With passages attached, at least the head stays.
        """
        self._native.truncate(check_int("num_tokens", num_tokens, 0, MAX_INT32))

    def checkpoint(self) -> Checkpoint:
        """Remembers this moment. Holds its KV blocks until the checkpoint is dropped."""
        return Checkpoint(self._native.checkpoint())

    def rollback(self, checkpoint: Checkpoint) -> None:
        """Brings back everything of a checkpoint of the same engine: tokens, reserved positions,
        attached passages, KV, looked-ahead tokens.

        Raises
        ------
        ConfigError
            It is no checkpoint, or one of another engine.
        """
        if not isinstance(checkpoint, Checkpoint):
            raise ConfigError(
                f"checkpoint must be a Checkpoint (see checkpoint()), got "
                f"{type(checkpoint).__name__}")
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
