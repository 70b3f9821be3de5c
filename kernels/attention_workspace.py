"""Device memory of split decode attention, and how the splits are joined."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .checks import ceil_div, check_tensor, require

SPLIT_TOKENS = 256  # a split never depends on the batch or on the length of the context


@triton.jit
def _leave_split(partial_ptr, stats_ptr, at, acc, row_max, row_sum, valid,
                 HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Store what each row has of a split at its entry `at`, for `_join_splits`."""
    d = tl.arange(0, BLOCK_D)
    d_mask = valid[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(partial_ptr + at[:, None] * HEAD_DIM + d[None, :], acc, mask=d_mask)
    tl.store(stats_ptr + at * 2, row_max, mask=valid)
    tl.store(stats_ptr + at * 2 + 1, row_sum, mask=valid)


@triton.jit
def _arrive(arrivals_ptr):
    """Count this program in behind its stores; how many were there before it."""
    # All threads' stores come before the one thread's release; its acquire before their loads.
    tl.debug_barrier()
    return tl.atomic_add(arrivals_ptr, 1, sem="acq_rel", scope="gpu")


@triton.jit
def _join_splits(partial_ptr, stats_ptr, entry, passage_end, split_begin, split_end, valid,
                 BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, HEAD_DIM: tl.constexpr,
                 JOIN: tl.constexpr):  # fmt: skip
    """Join [0, passage_end) and [split_begin, split_end) in ascending order, JOIN at a time.

    Groups of JOIN are aligned to absolute split indices and absent splits weigh exactly zero, so
    the order of a row's sum does not depend on the range either.
    """
    d = tl.arange(0, BLOCK_D)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    row_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    for group in range(tl.where(passage_end > 0, 0, split_begin // JOIN * JOIN), split_end, JOIN):
        split = group + tl.arange(0, JOIN)
        present = (split < passage_end) | ((split >= split_begin) & (split < split_end))
        mask = present[:, None] & valid[None, :]
        at = entry[None, :] + split[:, None]
        # .cg: other programs wrote these through L2; a stale L1 line must not answer.
        split_max = tl.load(
            stats_ptr + at * 2, mask=mask, other=float("-inf"), cache_modifier=".cg"
        )
        split_sum = tl.load(stats_ptr + at * 2 + 1, mask=mask, other=0.0, cache_modifier=".cg")
        split_acc = tl.load(
            partial_ptr + at[:, :, None] * HEAD_DIM + d[None, None, :],
            mask=mask[:, :, None] & (d < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        new_max = tl.maximum(row_max, tl.max(split_max, axis=0))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        weight = tl.exp2(split_max - shift[None, :])
        rescale = tl.exp2(row_max - shift)
        row_sum = tl.fma(row_sum, rescale, tl.sum(split_sum * weight, axis=0))
        rescale = tl.broadcast_to(rescale[:, None], (BLOCK_M, BLOCK_D))
        acc = tl.fma(acc, rescale, tl.sum(split_acc * weight[:, :, None], axis=0))
        row_max = new_max
    return acc, row_sum


@dataclass(frozen=True)
class DecodeWorkspace:
    """Device memory that decode launches share; one launch at a time may use it.

    Attributes
    ----------
    partial
        (max_rows, num_heads, max_splits, head_dim) float32: unnormalised sums of the splits.
    stats
        (max_rows, num_heads, max_splits, 2) float32: their maximum (log2) and sum of weights.
    arrivals
        (max_rows, num_kv_heads) int32: zero before and after every launch.
    """

    partial: torch.Tensor
    stats: torch.Tensor
    arrivals: torch.Tensor

    @classmethod
    def allocate(
        cls,
        max_rows: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_context: int,
        device: torch.device | str,
    ) -> DecodeWorkspace:
        """Allocate for up to `max_rows` query rows over up to `max_context` tokens."""
        for name, value in (("max_rows", max_rows), ("max_context", max_context)):
            require(value >= 1, f"{name} must be at least 1, got {value}")
        max_splits = ceil_div(max_context, SPLIT_TOKENS)
        entries = (max_rows, num_heads, max_splits)
        return cls(
            partial=torch.empty((*entries, head_dim), dtype=torch.float32, device=device),
            stats=torch.empty((*entries, 2), dtype=torch.float32, device=device),
            arrivals=torch.zeros((max_rows, num_kv_heads), dtype=torch.int32, device=device),
        )

    @property
    def max_context(self) -> int:
        """Tokens of context that the workspace provides for."""
        return self.partial.shape[2] * SPLIT_TOKENS

    def check(
        self, q: torch.Tensor, num_kv_heads: int, max_context: int, passage_splits: int = 0
    ) -> int:
        """Raise unless it serves this launch; returns the launch's number of splits."""
        num_rows, num_heads, head_dim = q.shape
        float32, device = (torch.float32,), q.device
        check_tensor(
            "workspace.partial", self.partial, (None, num_heads, None, head_dim), float32, device
        )
        max_rows, _, max_splits, _ = self.partial.shape
        check_tensor(
            "workspace.stats", self.stats, (max_rows, num_heads, max_splits, 2), float32, device
        )
        check_tensor(
            "workspace.arrivals", self.arrivals, (max_rows, num_kv_heads), (torch.int32,), device
        )
        require(
            num_rows <= max_rows,
            f"the workspace is for {max_rows} rows, got {num_rows}; allocate a larger one",
        )
        most = self.max_context - passage_splits * SPLIT_TOKENS
        require(
            1 <= max_context <= most,
            f"max_context must be 1 to {most} for this workspace, got {max_context}; "
            "allocate a larger one",
        )
        return passage_splits + ceil_div(max_context, SPLIT_TOKENS)
