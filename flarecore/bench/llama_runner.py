"""llama.cpp through the C interface of llama-cpp-python.

The Python class of that package copies logits after each call; the C functions below are what a
program in C++ would call, so that llama.cpp is not slowed down by its wrapper.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.bench.runner import Runner, TokenIds, file_format, file_step_bytes
from flarecore.errors import UnsupportedError
from flarecore.loop.lineage import common_prefix

__all__ = ["LlamaRunner"]

# Tokens of one call and of one graph: the defaults of its own tools.
_BATCH = 512


class LlamaRunner(Runner):
    """A GGUF file in llama.cpp with its default settings: float16 KV, weights repacked if it can.

    Parameters
    ----------
    path : Path
    threads : int
    repack : bool
        False leaves the weights as they lie in the file: slower, for machines where its kernels for
        repacked weights crash.

    Raises
    ------
    UnsupportedError
        llama.cpp cannot open the file.
    """

    def __init__(self, path: Path, threads: int, *, repack: bool = True) -> None:
        self._llama: Any = importlib.import_module("llama_cpp")
        _silence(self._llama)
        self._llama.llama_backend_init()
        self.name = f"llama.cpp {file_format(str(path))}"
        self._path, self._threads = path, threads
        params = self._llama.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = repack
        self._model = self._llama.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise UnsupportedError(f"llama.cpp cannot open {path.name}")
        vocab = self._llama.llama_model_get_vocab(self._model)
        self._vocab_size = int(self._llama.llama_vocab_n_tokens(vocab))
        self._batch = self._llama.llama_batch_init(_BATCH, 0, 1)
        self._context: Any = None
        self._shape = (0, 0)
        self._contexts: list[list[int]] = []
        self._text: list[int] = []
        self.weight_bytes = file_step_bytes(str(path))

    def set_contexts(self, contexts: Sequence[TokenIds]) -> None:
        longest = max(len(context) for context in contexts)
        # Room for what is decoded behind it.
        self._open(longest + 256, len(contexts))
        self._contexts = [list(context) for context in contexts]
        for number, context in enumerate(self._contexts):
            self._feed(context[:-1], 0, number, first_logits=len(context))

    def decode(self, num_tokens: int, num_sequences: int = 1) -> list[list[int]]:
        current = [context[-1] for context in self._contexts[:num_sequences]]
        position = len(self._contexts[0]) - 1
        chosen: list[list[int]] = [[] for _ in current]
        for step in range(num_tokens):
            self._decode([(token, position + step, number, True)
                          for number, token in enumerate(current)])
            current = [int(self._logits(row).argmax()) for row in range(len(current))]
            for tokens, token in zip(chosen, current, strict=True):
                tokens.append(token)
        return chosen

    def verify(self, expected: TokenIds) -> list[int]:
        context = self._contexts[0]
        tokens = [context[-1], *expected[:-1]]
        self._decode([(token, len(context) - 1 + i, 0, True) for i, token in enumerate(tokens)])
        return [int(self._logits(row).argmax()) for row in range(len(tokens))]

    def reset(self) -> None:
        for number, context in enumerate(self._contexts):
            end = len(context) - 1
            if not self._llama.llama_memory_seq_rm(self._memory(), number, end, -1):
                raise UnsupportedError(f"llama.cpp cannot cut this model's KV back to {end} tokens")

    def prefill(self, token_ids: TokenIds) -> int:
        self._open(len(token_ids) + 1, 1)
        self._contexts = []
        self._llama.llama_memory_clear(self._memory(), False)
        last = self._feed(token_ids, 0, 0, first_logits=len(token_ids) - 1)
        return int(last[-1].argmax())

    def score(self, token_ids: TokenIds, num_given: int) -> npt.NDArray[np.float64]:
        rows = self._rows(token_ids, num_given)
        given = list(token_ids[num_given:])
        probs = np.empty(len(given))
        for i, (row, token) in enumerate(zip(rows, given, strict=True)):
            wide = row.astype(np.float64) - float(row.max())
            probs[i] = np.exp(wide[token]) / np.exp(wide).sum()
        return probs

    def greedy_rows(self, token_ids: TokenIds, num_given: int) -> list[int]:
        return [int(row.argmax()) for row in self._rows(token_ids, num_given)]

    def open_text(self, num_tokens: int) -> None:
        """Room for texts of so many tokens; forgets the one that is there."""
        self._open(num_tokens, 1)
        self._contexts, self._text = [], []

    def follow(self, token_ids: TokenIds) -> tuple[int, npt.NDArray[np.float32]]:
        """Keeps the KV of the longest common prefix with the text before, as its tools do."""
        # The last token is always computed: its logits are wanted.
        num_kept = min(common_prefix(self._text, token_ids), len(token_ids) - 1)
        if not self._llama.llama_memory_seq_rm(self._memory(), 0, num_kept, -1):
            num_kept = 0
            self._llama.llama_memory_clear(self._memory(), False)
        rest = token_ids[num_kept:]
        rows = self._feed(rest, num_kept, 0, first_logits=len(rest) - 1)
        self._text = list(token_ids)
        return len(rest), rows[-1]

    def append(self, token_id: int) -> npt.NDArray[np.float32]:
        self._decode([(token_id, len(self._text), 0, True)])
        self._text.append(token_id)
        return self._logits(0)

    def close(self) -> None:
        if self._context is not None:
            self._llama.llama_free(self._context)
            self._context = None
        if self._model is not None:
            self._llama.llama_batch_free(self._batch)
            self._llama.llama_model_free(self._model)
            self._model = None

    def _rows(self, token_ids: TokenIds, num_given: int) -> list[npt.NDArray[np.float32]]:
        """Logits of the rows that predict ``token_ids[num_given:]``."""
        self._open(len(token_ids) + 1, 1)
        self._contexts = []
        self._llama.llama_memory_clear(self._memory(), False)
        return self._feed(token_ids[:-1], 0, 0, first_logits=num_given - 1)

    def _open(self, num_tokens: int, num_sequences: int) -> None:
        """A context for sequences of so many tokens; kept if the one that is open is as large."""
        if self._context is not None and self._shape[1] == num_sequences \
                and num_tokens <= self._shape[0]:
            self._llama.llama_memory_clear(self._memory(), False)
            return
        if self._context is not None:
            self._llama.llama_free(self._context)
        params = self._llama.llama_context_default_params()
        # It rounds the cells of a sequence up to 256 itself.
        num_tokens = -(-num_tokens // 256) * 256
        params.n_ctx = num_tokens * num_sequences
        params.n_batch = params.n_ubatch = _BATCH
        params.n_seq_max = num_sequences
        params.n_threads = params.n_threads_batch = self._threads
        params.no_perf = True
        self._context = self._llama.llama_init_from_model(self._model, params)
        if not self._context:
            raise UnsupportedError(f"llama.cpp cannot open a context of {params.n_ctx} tokens")
        self._shape = (num_tokens, num_sequences)

    def _memory(self) -> Any:
        return self._llama.llama_get_memory(self._context)

    def _feed(
        self, token_ids: TokenIds, position: int, number: int, *, first_logits: int
    ) -> list[npt.NDArray[np.float32]]:
        """Computes the rows of a sequence; copies of the logits from row `first_logits` on."""
        rows: list[npt.NDArray[np.float32]] = []
        for begin in range(0, len(token_ids), _BATCH):
            part = token_ids[begin:begin + _BATCH]
            self._decode([(token, position + begin + i, number, begin + i >= first_logits)
                          for i, token in enumerate(part)])
            rows += [self._logits(i).copy() for i in range(len(part)) if begin + i >= first_logits]
        return rows

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        """One forward pass over (token, position, sequence, wants logits)."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, number, wants_logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = number, wants_logits
        code = self._llama.llama_decode(self._context, batch)
        if code != 0:
            raise UnsupportedError(f"llama.cpp fails on a batch of {len(rows)} tokens: code {code}")

    def _logits(self, row: int) -> npt.NDArray[np.float32]:
        """View of the logits of a row of the last batch."""
        pointer = self._llama.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, shape=(self._vocab_size,))


def _silence(llama: Any) -> None:
    """Keeps its log off the terminal; the callback lives as long as the module."""
    if not hasattr(llama, "_flarecore_log"):
        @llama.llama_log_callback  # type: ignore[untyped-decorator]
        def drop(level: int, text: bytes, user_data: object) -> None:
            """Drops a line."""

        llama._flarecore_log = drop
        llama.llama_log_set(drop, ctypes.c_void_p(0))
