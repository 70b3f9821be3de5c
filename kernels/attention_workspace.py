"""Device memory of split decode attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .checks import ceil_div, check_tensor, require

SPLIT_TOKENS = 256  # a split never depends on the batch or on the length of the context


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

    def check(self, q: torch.Tensor, num_kv_heads: int, max_context: int) -> int:
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
        require(
            1 <= max_context <= self.max_context,
            f"max_context must be 1 to {self.max_context} for this workspace, got {max_context}; "
            "allocate a larger one",
        )
        return ceil_div(max_context, SPLIT_TOKENS)
