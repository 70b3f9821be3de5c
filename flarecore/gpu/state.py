"""A sequence of a GPU engine, what may be asked of it, and an operation's share of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flarecore.errors import ConfigError, ContextOverflowError, FlarecoreError
from flarecore.gpu.kv_cache import KvSequence
from flarecore.gpu.row_sampling import RowRequest, RowSettings
from flarecore.gpu.run_bucket import RunRequest

if TYPE_CHECKING:
    from flarecore.gpu.operation import GpuOperation

__all__ = ["HeldTokens", "OperationRequest", "Sampled", "SequenceState", "StepLimits", "StepPart",
           "check_ids", "check_request"]

Sampled = tuple[int, float]  # token and confidence


@dataclass(frozen=True)
class HeldTokens:
    """Tokens sampled past the end of a decode: what one with the same settings would draw next."""

    tokens: tuple[Sampled, ...] = ()
    settings: RowSettings | None = None


@dataclass(eq=False)
class SequenceState:
    """A list of token ids with a KV cache behind it. The engine's lock guards it."""

    tokens: list[int] = field(default_factory=list)
    kv: KvSequence = field(default_factory=KvSequence)
    held: HeldTokens = HeldTokens()
    operation: GpuOperation | None = None  # the one that runs
    is_closed: bool = False

    @property
    def is_busy(self) -> bool:
        return self.operation is not None


@dataclass(frozen=True)
class OperationRequest:
    """What to do; `kind` is "extend", "decode", "score" or "encode" (a passage).

    The rest is as for the native core.
    """

    kind: str
    token_ids: list[int]
    deadline_ms: float | None = None
    beta: float = 0.0
    max_tokens: int = 1
    settings: RowSettings | None = None
    until_sentence: bool = True
    stop: tuple[str, ...] = ()
    stop_below: float = 0.0
    stop_at_punctuation: bool = False
    proposal: tuple[int, ...] = ()
    lookup: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepLimits:
    """Most prefill rows and decode rows that an operation may feed in a step, and steps of a run.

    The rows do not depend on what else runs: it would show in a prefill's last bits. A run has up
    to `replay_steps` steps beside other work and `run_steps` where all operations have runs; with
    `run_steps` 1 there are no runs, every token goes through a verification pass.
    """

    prefill_rows: int
    decode_rows: int
    replay_steps: int
    run_steps: int


@dataclass
class StepPart:
    """One operation's share of a step: prefill rows, then decode rows or a run of steps.

    The last decode rows are sampled or scored, one for each of `row_requests`.
    """

    operation: GpuOperation
    position: int  # of the first row
    computed: int = 0  # positions whose keys and values count once the step is booked
    prefill_ids: list[int] = field(default_factory=list)
    row_ids: list[int] = field(default_factory=list)
    row_requests: list[RowRequest] = field(default_factory=list)
    run: RunRequest | None = None
    num_run_rows: int = 0  # of the run, once it is over: steps that sampled a token
    error: FlarecoreError | None = None

    @property
    def num_rows(self) -> int:
        return len(self.prefill_ids) + len(self.row_ids)

    @property
    def row_position(self) -> int:
        """Of the first decode row."""
        return self.position + len(self.prefill_ids)

    @property
    def num_unread(self) -> int:
        """Decode rows before those that are sampled or scored."""
        return len(self.row_ids) - len(self.row_requests)


def check_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises ConfigError if an id is not in the vocabulary."""
    bad = next((i for i in token_ids if not 0 <= i < vocab_size), None)
    if bad is not None:
        raise ConfigError(f"token id {bad} is not in the vocabulary of {vocab_size} tokens")


def check_request(sequence: SequenceState, request: OperationRequest, vocab_size: int,
                  context_length: int) -> None:
    """Refuses what cannot be done, before anything changes.

    Raises
    ------
    ConfigError
        A token id is not in the vocabulary, or there is no token to go on from.
    ContextOverflowError
        The tokens do not fit into the context.
    """
    for ids in (request.token_ids, request.proposal, request.lookup):
        check_ids(ids, vocab_size)
    reserved = sequence.kv.num_reserved
    context_length -= reserved
    total = len(sequence.tokens) + len(request.token_ids)
    decodes = request.kind == "decode"
    if total + decodes > context_length:
        raise ContextOverflowError(
            f"{total} tokens{' and one more to decode' if decodes else ''} do not fit into the "
            f"context of {context_length} tokens"
            f"{' (reserved positions left out)' if reserved else ''}; shorten the prompt or the "
            "evidence")
    if request.kind == "score" and not sequence.tokens:
        raise ConfigError("score() needs a token before the first scored one; extend the sequence "
                          "first")
    if decodes and total == 0:
        raise ConfigError("decode() on an empty sequence; extend it with a prompt or the "
                          "beginning-of-text token")
