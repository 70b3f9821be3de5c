"""What flarecore.Engine and Sequence hold of a GPU engine: the native classes' methods."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from flarecore import _C
from flarecore.errors import ConfigError, PassageFileError
from flarecore.gpu.engine import Core
from flarecore.gpu.kv_cache import KvSequence
from flarecore.gpu.operation import GpuOperation
from flarecore.gpu.passages import GpuPassage
from flarecore.gpu.row_sampling import RowSettings
from flarecore.gpu.state import HeldTokens, OperationRequest, SequenceState

__all__ = ["GpuCheckpoint", "GpuEngine", "GpuSequence"]


class GpuCheckpoint:
    """Everything a rollback brings back. Holds references to the KV blocks of its moment."""

    def __init__(self, core: Core, tokens: list[int], kv: KvSequence, held: HeldTokens) -> None:
        self.core = core
        self.tokens = tokens
        self.kv = kv
        self.held = held

    def __del__(self) -> None:
        self.core.drop(self.kv)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


class GpuSequence:
    """The counterpart of ``_C.Sequence``; its blocks go back with its last reference."""

    def __init__(self, core: Core, state: SequenceState, vocab_size: int) -> None:
        self._core = core
        self._state = state
        self._vocab_size = vocab_size

    def __del__(self) -> None:
        self._core.drop(self._state)

    @property
    def num_tokens(self) -> int:
        with self._core.locked():
            return len(self._state.tokens)

    def token_ids(self) -> list[int]:
        with self._core.locked():
            return list(self._state.tokens)

    @property
    def num_head(self) -> int:
        with self._core.locked():
            return self._state.kv.num_head

    @property
    def num_reserved(self) -> int:
        with self._core.locked():
            return self._state.kv.num_reserved

    def encode(self, token_ids: list[int], deadline_ms: float | None = None) -> GpuOperation:
        return self._core.encode(
            self._state, OperationRequest("encode", token_ids, deadline_ms))

    def attach(self, passages: Sequence[object], from_token: int) -> None:
        for passage in passages:
            if not isinstance(passage, GpuPassage) or passage.core is not self._core:
                raise ConfigError("the passage was encoded by another engine, and its blocks lie "
                                  "there; encode it with this engine")
        self._core.attach(self._state, [p.passage for p in passages if isinstance(p, GpuPassage)],
                          from_token)

    def truncate(self, num_tokens: int) -> None:
        self._core.truncate(self._state, num_tokens)

    def checkpoint(self) -> GpuCheckpoint:
        return GpuCheckpoint(self._core, *self._core.save(self._state))

    def rollback(self, checkpoint: Any) -> None:
        if not isinstance(checkpoint, GpuCheckpoint) or checkpoint.core is not self._core:
            raise ConfigError("the checkpoint belongs to another engine; roll back with one taken "
                              "from this engine")
        self._core.restore(self._state, checkpoint.tokens, checkpoint.kv, checkpoint.held)

    def fork(self) -> GpuSequence:
        return GpuSequence(self._core, self._core.fork(self._state), self._vocab_size)

    def close(self) -> None:
        self._core.close(self._state)

    def extend(self, token_ids: list[int], deadline_ms: float | None = None) -> GpuOperation:
        return self._core.submit(self._state, OperationRequest("extend", token_ids, deadline_ms))

    def score(self, token_ids: list[int], beta: float = 0.0,
              deadline_ms: float | None = None) -> GpuOperation:
        return self._core.submit(
            self._state, OperationRequest("score", token_ids, deadline_ms, beta))

    def decode(self, token_ids: list[int], max_tokens: int, sampling: Mapping[str, Any],
               until_sentence: bool, ignore_eos: bool, stop: list[str], beta: float,
               stop_below: float, stop_at_punctuation: bool, pass_index: int,
               proposal: list[int], lookup: list[int],
               deadline_ms: float | None) -> GpuOperation:
        settings = RowSettings.of_request(sampling, pass_index, ignore_eos, self._vocab_size)
        return self._core.submit(self._state, OperationRequest(
            "decode", token_ids, deadline_ms, beta, max_tokens, settings, until_sentence,
            tuple(stop), stop_below, stop_at_punctuation, tuple(proposal), tuple(lookup)))


class GpuEngine:
    """The counterpart of ``_C.Engine``: ends its worker with its last reference."""

    def __init__(self, core: Core, vocab_size: int, passage_cache_bytes: int,
                 level: str, kv_format: str) -> None:
        self._core = core
        self._vocab_size = vocab_size
        self.passage_cache_bytes = passage_cache_bytes
        self.level = level  # of the device, as files of passages name it
        self.kv_format = kv_format

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # also where the interpreter is being torn down
            self.close()

    def sequence(self, num_head_tokens: int = 0, num_reserved: int = 0) -> GpuSequence:
        state = self._core.open_sequence(num_head_tokens, num_reserved)
        return GpuSequence(self._core, state, self._vocab_size)

    def load_passage(self, file: _C.MappedFile, offset: int, size_bytes: int, head: list[int],
                     tokens: list[int]) -> GpuPassage:
        if not 0 <= offset <= file.data.size - size_bytes:
            raise PassageFileError(f"{size_bytes} bytes at {offset} lie outside the file of "
                                   f"{file.data.size} bytes")
        data = file.data[offset : offset + size_bytes]
        return GpuPassage(self._core, self._core.load_passage(head, tokens, data))

    def check_integrity(self) -> None:
        self._core.check_integrity()

    def stats(self) -> dict[str, int]:
        return self._core.stats()

    def close(self) -> None:
        self._core.shutdown()
