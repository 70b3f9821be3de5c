"""``transformers`` in float32 on the dequantised weights, with its own KV cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.bench.proofs import transformers_decoder
from flarecore.bench.runner import Runner, TokenIds
from flarecore.errors import UnsupportedError
from flarecore.reference.transformers_import import INSTALL_TRANSFORMERS

__all__ = ["TransformersRunner"]


class TransformersRunner(Runner):
    """Eager PyTorch on the CPU.

    Parameters
    ----------
    path : Path
        A GGUF file of an architecture that ``flarecore.reference`` knows.
    threads : int
        Threads of PyTorch, for the whole process.

    Attributes
    ----------
    logits : callable
        ``logits(token_ids)`` -> (T, V) float32: it serves as the reference too.

    Raises
    ------
    UnsupportedError
        A package is missing, or the architecture is not known.
    """

    def __init__(self, path: Path, threads: int) -> None:
        try:
            import torch

            decoder = transformers_decoder(path)
        except ImportError as error:
            raise UnsupportedError(
                f"{error}; {INSTALL_TRANSFORMERS}") from error
        self.name, self.kv_value_bytes = "transformers float32", 4
        self._torch = torch
        torch.set_num_threads(threads)
        self.logits = decoder.logits
        self._model: Any = decoder.model
        self._cache_argument: str = decoder._cache_argument
        embedding = self._model.get_input_embeddings().weight
        head = self._model.get_output_embeddings().weight
        # Of a tied embedding the head reads all; of one on its own a step reads a row.
        sizes = {p.data_ptr(): p.numel() * p.element_size() for p in self._model.parameters()}
        if embedding.data_ptr() != head.data_ptr():
            del sizes[embedding.data_ptr()]
        self.weight_bytes = sum(sizes.values())
        self._contexts: list[list[int]] = []
        self._context_caches: dict[int, Any] = {}
        self._caches: dict[int, Any] = {}
        self._text_cache: Any = None

    def set_contexts(self, contexts: Sequence[TokenIds]) -> None:
        self._contexts = [list(context) for context in contexts]
        self._context_caches = {}
        self.reset()

    def decode(self, num_tokens: int, num_sequences: int = 1) -> list[list[int]]:
        cache = self._cache(num_sequences)
        current = [[context[-1]] for context in self._contexts[:num_sequences]]
        chosen: list[list[int]] = [[] for _ in current]
        for _ in range(num_tokens):
            logits, cache = self._forward(current, cache)
            current = logits[:, -1].argmax(dim=-1, keepdim=True).tolist()
            for tokens, (token,) in zip(chosen, current, strict=True):
                tokens.append(token)
        return chosen

    def verify(self, expected: TokenIds) -> list[int]:
        tokens = [self._contexts[0][-1], *expected[:-1]]
        logits, _ = self._forward([tokens], self._cache(1), keep=len(tokens))
        return [int(token) for token in logits[0].argmax(dim=-1)]

    def reset(self) -> None:
        # A cache grows in place and versions disagree on how to cut one: a copy is taken instead.
        self._caches = {n: copy.deepcopy(cache) for n, cache in self._context_caches.items()}

    def prefill(self, token_ids: TokenIds) -> int:
        logits, _ = self._forward([list(token_ids)], None)
        return int(logits[0, -1].argmax())

    def score(self, token_ids: TokenIds, num_given: int) -> npt.NDArray[np.float64]:
        given = list(token_ids[num_given:])
        logits, _ = self._forward([list(token_ids[:-1])], None, keep=len(given))
        probs = self._torch.softmax(logits[0].double(), dim=-1)
        return np.asarray(probs[range(len(given)), given])

    def greedy_rows(self, token_ids: TokenIds, num_given: int) -> list[int]:
        keep = len(token_ids) - num_given
        logits, _ = self._forward([list(token_ids[:-1])], None, keep=keep)
        return [int(token) for token in logits[0].argmax(dim=-1)]

    def follow(self, token_ids: TokenIds) -> tuple[int, npt.NDArray[np.float32]]:
        """Computes the whole text: nothing is kept from one call of ``generate`` to the next."""
        logits, self._text_cache = self._forward([list(token_ids)], None)
        return len(token_ids), logits[0, -1].numpy()

    def append(self, token_id: int) -> npt.NDArray[np.float32]:
        logits, self._text_cache = self._forward([[token_id]], self._text_cache)
        return np.asarray(logits[0, -1].numpy())

    def close(self) -> None:
        self._contexts, self._context_caches, self._caches, self._model = [], {}, {}, None
        self._text_cache = None

    def _cache(self, num_sequences: int) -> Any:
        """The KV of the first contexts without their last token."""
        if num_sequences not in self._caches:
            tokens = [context[:-1] for context in self._contexts[:num_sequences]]
            cache = self._forward(tokens, None)[1]
            self._context_caches[num_sequences] = copy.deepcopy(cache)
            self._caches[num_sequences] = cache
        return self._caches.pop(num_sequences)

    def _forward(self, tokens: Sequence[Sequence[int]], cache: Any, keep: int = 1) -> Any:
        """Logits (sequences, keep, V) of the last rows, and the cache behind them."""
        torch = self._torch
        with torch.no_grad():
            out = self._model(torch.tensor(tokens), use_cache=True, logits_to_keep=keep,
                              **{self._cache_argument: cache})
        return out.logits, out[self._cache_argument]
