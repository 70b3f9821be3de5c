"""What the sampler keeps in device memory: settings and running state per row, and its workspace.

A row is one place of a batch. Its settings stay while its state moves on at every launch, so that
captured graphs of many steps need nothing from the host between them.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

import torch
import triton.language as tl

from .checks import ceil_div, check_tensor, require

MAX_VOCAB = 1 << 18  # token ids are packed into 18 bits by the filters
CHUNK = 1024  # logits of one program; never depends on the batch or the vocabulary
GROUPS = 8  # maxima kept per chunk to bound the k-th largest logit
DEFAULT_CANDIDATES = 1 << 15


class TokenFlag(enum.IntFlag):
    """Bits of a sampled token. The low five come from the caller's table over the vocabulary."""

    EOS = 1
    MAY_END = 2  # the token may end a sentence; where it does is decided on the host
    SETTLES = 4  # the token shows what follows a terminator before it: it is not only space, quotes
    TABLE = 31  # all bits that a table may use; 8 and 16 are the caller's
    BELOW_BETA = 32  # confidence < beta: masked in a query
    BELOW_THETA = 64  # confidence < theta
    INVALID = 128  # no finite logit, or a NaN or +inf among them; confidence is 0
    FULL = 256  # only in the row's flags: the history has no room for another token
    LOOKED = 512  # only in the row's flags: a token that SETTLES has come after one that MAY_END


# Columns of SamplerState.floats and .ints, for the kernels.
NUM_FLOATS = tl.constexpr(5)
NUM_INTS = tl.constexpr(5)
TEMPERATURE, TOP_P, MIN_P, BETA, THETA = (tl.constexpr(i) for i in range(5))
SEED, STREAM, PASS, TOP_K, HALT = (tl.constexpr(i) for i in range(5))


@dataclass(frozen=True)
class SamplerState:
    """Settings and running state of `num_rows` rows.

    Attributes
    ----------
    floats
        (num_rows, 5) float32: temperature (0: greedy), top_p, min_p, beta, theta.
    ints
        (num_rows, 5) int64: seed (as two's complement), stream, pass, top_k (0: off), halt flags.
    positions
        (num_rows) int32: position of the row's input token, whose logits are sampled; the sampled
        token has position + 1. A row with position < 0 is padding.
    tokens
        (num_rows) int32: the last sampled token, input of the next step.
    flags
        (num_rows) int32: all TokenFlag bits since the reset, or-ed. A row whose flags meet its halt
        flags is left as it is by further launches.
    num_sampled
        (num_rows) int32: tokens since the reset.
    min_prob
        (num_rows) float32: smallest confidence since the reset, 1.0 at first.
    history_tokens, history_probs, history_flags
        (num_rows, capacity) int32, float32, uint8: token, confidence and flags of every step.
    """

    floats: torch.Tensor
    ints: torch.Tensor
    positions: torch.Tensor
    tokens: torch.Tensor
    flags: torch.Tensor
    num_sampled: torch.Tensor
    min_prob: torch.Tensor
    history_tokens: torch.Tensor
    history_probs: torch.Tensor
    history_flags: torch.Tensor
    _filtered_rows: set[int] = field(default_factory=set, repr=False)

    @classmethod
    def allocate(cls, num_rows: int, capacity: int, device: torch.device | str) -> SamplerState:
        """All rows padding, with room for `capacity` sampled tokens each between two resets."""
        require(num_rows >= 1, f"num_rows must be at least 1, got {num_rows}")
        require(capacity >= 1, f"capacity must be at least 1, got {capacity}")

        def new(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.zeros((num_rows, *shape), dtype=dtype, device=device)

        return cls(
            floats=new(torch.float32, 5),
            ints=new(torch.int64, 5),
            positions=new(torch.int32).fill_(-1),
            tokens=new(torch.int32),
            flags=new(torch.int32),
            num_sampled=new(torch.int32),
            min_prob=new(torch.float32).fill_(1.0),
            history_tokens=new(torch.int32, capacity),
            history_probs=new(torch.float32, capacity),
            history_flags=new(torch.uint8, capacity),
        )

    @property
    def num_rows(self) -> int:
        return self.positions.shape[0]

    @property
    def has_filters(self) -> bool:
        """Whether any row filters, so that a step needs the second launch."""
        return bool(self._filtered_rows)

    def configure(
        self,
        row: int,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        beta: float = 0.0,
        theta: float = 0.0,
        seed: int = 0,
        stream: int = 0,
        pass_index: int = 0,
        halt_flags: int = TokenFlag.EOS | TokenFlag.INVALID | TokenFlag.FULL,
    ) -> None:
        """Set a row's settings; its running state stays.

        Raises
        ------
        ValueError
            If a setting is out of range.
        """
        self._check_row(row)
        require(
            0.0 <= temperature < math.inf, f"temperature must be finite and >= 0, got {temperature}"
        )
        require(top_k >= 0, f"top_k must be >= 0 (0: off), got {top_k}")
        require(0.0 < top_p <= 1.0, f"top_p must be in (0, 1], got {top_p}")
        require(0.0 <= min_p <= 1.0, f"min_p must be in [0, 1], got {min_p}")
        require(0 <= seed < 1 << 64, f"seed must fit into 64 bits, got {seed}")
        for name, value in (("stream", stream), ("pass_index", pass_index)):
            require(0 <= value < 1 << 32, f"{name} must fit into 32 bits, got {value}")
        signed_seed = seed - (1 << 64) if seed >= 1 << 63 else seed
        floats = [temperature, top_p, min_p, beta, theta]
        ints = [signed_seed, stream, pass_index, min(top_k, MAX_VOCAB), int(halt_flags)]
        self.floats[row].copy_(torch.tensor(floats, dtype=torch.float32))
        self.ints[row].copy_(torch.tensor(ints, dtype=torch.int64))
        if temperature > 0 and (top_k > 0 or top_p < 1.0 or min_p > 0.0):
            self._filtered_rows.add(row)
        else:
            self._filtered_rows.discard(row)

    def reset(self, row: int, position: int, token: int = 0) -> None:
        """Start a new run of tokens: the input token is `token` at `position` (-1: padding)."""
        self._check_row(row)
        self.positions[row] = position
        self.tokens[row] = token
        self.flags[row] = 0
        self.num_sampled[row] = 0
        self.min_prob[row] = 1.0
        if position < 0:
            self._filtered_rows.discard(row)

    def _check_row(self, row: int) -> None:
        require(0 <= row < self.num_rows, f"row must be 0 to {self.num_rows - 1}, got {row}")


@dataclass(frozen=True)
class SamplerWorkspace:
    """Device memory that sampler launches share; one step at a time may use it.

    Attributes
    ----------
    chunk_max
        (max_rows, num_chunks, 2) float32: largest logit of each chunk, to choose from and raw.
    chunk_sum
        (max_rows, num_chunks, 2) int64: sums of weights relative to it, scaled and raw.
    chunk_arg
        (max_rows, num_chunks) int32: first token id with the largest logit.
    group_max
        (max_rows, num_chunks * 8) float32: maxima of an eighth of a chunk.
    counters
        (max_rows, 4) int32, zero between steps: arrivals of both launches, candidates, pending.
    row_stats
        (max_rows, 5) float64: largest logit, largest raw logit, raw sum, sum, threshold.
    candidates, candidate_weights
        (max_rows, capacity) int64: packed (logit, id) and fixed-point weight of what a filter may
        keep; a row with more candidates works on its logits instead.
    """

    vocab_size: int
    chunk_max: torch.Tensor
    chunk_sum: torch.Tensor
    chunk_arg: torch.Tensor
    group_max: torch.Tensor
    counters: torch.Tensor
    row_stats: torch.Tensor
    candidates: torch.Tensor
    candidate_weights: torch.Tensor

    @classmethod
    def allocate(
        cls,
        max_rows: int,
        vocab_size: int,
        device: torch.device | str,
        candidate_capacity: int = DEFAULT_CANDIDATES,
    ) -> SamplerWorkspace:
        """Allocate for up to `max_rows` rows of `vocab_size` logits."""
        require(max_rows >= 1, f"max_rows must be at least 1, got {max_rows}")
        require(
            1 <= vocab_size <= MAX_VOCAB, f"vocab_size must be 1 to {MAX_VOCAB}, got {vocab_size}"
        )
        require(
            candidate_capacity >= 1, f"candidate_capacity must be >= 1, got {candidate_capacity}"
        )
        num_chunks = ceil_div(vocab_size, CHUNK)
        capacity = min(candidate_capacity, vocab_size)

        def new(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.zeros((max_rows, *shape), dtype=dtype, device=device)

        return cls(
            vocab_size=vocab_size,
            chunk_max=new(torch.float32, num_chunks, 2),
            chunk_sum=new(torch.int64, num_chunks, 2),
            chunk_arg=new(torch.int32, num_chunks),
            group_max=new(torch.float32, num_chunks * GROUPS),
            counters=new(torch.int32, 4),
            row_stats=new(torch.float64, 5),
            candidates=new(torch.int64, capacity),
            candidate_weights=new(torch.int64, capacity),
        )

    def check(self, num_rows: int, device: torch.device) -> None:
        """Raise unless the workspace serves `num_rows` rows on `device`."""
        max_rows = self.counters.shape[0]
        check_tensor("workspace.counters", self.counters, (None, 4), (torch.int32,), device)
        require(
            num_rows <= max_rows,
            f"the workspace is for {max_rows} rows, got {num_rows}; allocate a larger one",
        )
