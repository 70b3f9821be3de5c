"""Passage KV: K and V of a passage that was encoded on its own (placement ``parallel``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore import _C

__all__ = ["PassageKv"]


class PassageKv:
    """K and V of a passage encoded on its own, right behind a prompt head.

    Made by :meth:`Sequence.encode_passage`, never changed, shared by all sequences it is attached
    to. An approximation: no passage sees another one, and each has the positions right behind the
    head (parallel context windows, Ratner et al. 2023, arXiv 2212.10947).
    """

    def __init__(self, native: _C.PassageKv) -> None:
        self._native = native

    @property
    def num_tokens(self) -> int:
        """Tokens of the passage."""
        return len(self._native.token_ids)

    @property
    def token_ids(self) -> list[int]:
        """(num_tokens,) ids."""
        return self._native.token_ids

    @property
    def head_ids(self) -> list[int]:
        """Ids of the head that it was encoded behind."""
        return self._native.head_ids

    @property
    def size_bytes(self) -> int:
        """Memory of its blocks."""
        return self._native.size_bytes

    @property
    def is_attached(self) -> bool:
        """Whether a sequence or a checkpoint sees it."""
        return self._native.is_shared

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """(size_bytes,) its blocks, read-only; their layout is the engine's own."""
        return self._native.data

    def __repr__(self) -> str:
        return f"PassageKv({self.num_tokens} tokens, {self.size_bytes} bytes)"


def to_passage(raw: dict[str, Any]) -> PassageKv:
    return PassageKv(raw["passage"])
