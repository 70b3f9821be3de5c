"""What is timed, under one interface: flarecore here, the peers in ``peers``.

Every runner is greedy, deterministic and does the same work for a call: `decode` of n tokens is n
forward passes of a row per sequence, `verify` of n rows is one pass of n rows, `prefill` of n
tokens gives one token.
"""

from __future__ import annotations

import abc
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from flarecore import _C
from flarecore.bench.proofs import ProofError
from flarecore.engine import Engine
from flarecore.errors import UnsupportedError
from flarecore.model import Model

if TYPE_CHECKING:
    from flarecore.sequence import Sequence as EngineSequence

__all__ = ["FlareRunner", "Runner", "file_format", "file_step_bytes"]

TokenIds = Sequence[int]


class Runner(abc.ABC):
    """One implementation of one model.

    Attributes
    ----------
    name : str
        Who, in tables: ``"llama.cpp Q8_0"``.
    key : str
        Who, on the command line: ``"flarecore"`` or a name of ``flarecore.bench.peers.PEERS``.
    weight_bytes : int
        Bytes of weights that a forward pass reads, however many rows it has.
    kv_value_bytes : int
        Size of a value of a peer's KV cache.
    remark : str
        What has to be known about its figures.
    """

    name: str
    key: str = "flarecore"
    weight_bytes: int = 0
    kv_value_bytes: int = 2
    remark: str = ""

    @abc.abstractmethod
    def set_contexts(self, contexts: Sequence[TokenIds]) -> None:
        """Opens a sequence per context (all of one length) and prefills all but its last token."""

    @abc.abstractmethod
    def decode(self, num_tokens: int, num_sequences: int = 1) -> list[list[int]]:
        """Decodes so many tokens after each of the first contexts, all sequences in each pass."""

    @abc.abstractmethod
    def verify(self, expected: TokenIds) -> list[int]:
        """Greedy tokens of ``len(expected)`` rows in one forward pass after the first context.

        The rows are the context's last token and all of `expected` but its last. `expected` must be
        what :meth:`decode` gives.
        """

    @abc.abstractmethod
    def reset(self) -> None:
        """Takes every sequence back to its context. Not timed."""

    @abc.abstractmethod
    def prefill(self, token_ids: TokenIds) -> int:
        """The greedy token after a prompt, all of whose rows are computed."""

    @abc.abstractmethod
    def score(self, token_ids: TokenIds, num_given: int) -> npt.NDArray[np.float64]:
        """Probabilities (n - num_given,) of ``token_ids[num_given:]``, each given all before it."""

    @abc.abstractmethod
    def greedy_rows(self, token_ids: TokenIds, num_given: int) -> list[int]:
        """Most probable tokens where :meth:`score` gives the probabilities of the given ones."""

    def follow(self, token_ids: TokenIds) -> tuple[int, npt.NDArray[np.float32]]:
        """Begins a text: how many of its tokens were computed, and the (V,) logits after it.

        For :mod:`flarecore.bench.loop_engines`, which flarecore itself does not need.
        """
        raise UnsupportedError(f"{self.name} does not follow texts")

    def append(self, token_id: int) -> npt.NDArray[np.float32]:
        """(V,) logits after one more token of the text that :meth:`follow` began."""
        raise UnsupportedError(f"{self.name} does not follow texts")

    @abc.abstractmethod
    def close(self) -> None:
        """Gives memory and threads back. May be repeated."""


class FlareRunner(Runner):
    """flarecore itself.

    Parameters
    ----------
    model : Model
    compute : {"int8", "float32"}
    """

    def __init__(self, model: Model, compute: str = "int8") -> None:
        self.name = f"flarecore {model.quantize or ''} {compute}".replace("  ", " ")
        self.model = model
        self.compute = compute
        self.engine = self.open_engine()
        self.weight_bytes = self.costs(0)["weight_bytes"]
        self._contexts: list[list[int]] = []
        self._sequences: list[EngineSequence] = []
        tokenizer = model.tokenizer
        special = tokenizer.special_token_ids | tokenizer.eos_token_ids
        ordinary = [i for i in range(model.config.vocab_size) if i not in special]
        self._salts = itertools.cycle(np.random.default_rng(7).permutation(ordinary).tolist())

    def open_engine(self) -> Engine:
        """A fresh engine. The memory of its KV is there already, as that of llama.cpp's context."""
        return Engine(self.model, compute=self.compute, preallocate=True)

    def set_contexts(self, contexts: Sequence[TokenIds]) -> None:
        self._close_sequences()
        self._contexts = [list(context) for context in contexts]
        self._sequences = [self.engine.sequence(context) for context in contexts]

    def decode(self, num_tokens: int, num_sequences: int = 1) -> list[list[int]]:
        operations = [
            sequence.decode_async(num_tokens, until="eos", ignore_eos=True)
            for sequence in self._sequences[:num_sequences]]
        return [list(operation.result().token_ids) for operation in operations]

    def verify(self, expected: TokenIds) -> list[int]:
        decoded = self._sequences[0].decode(
            len(expected), until="eos", ignore_eos=True, proposal=list(expected[:-1]))
        if decoded.stats.num_steps != 1:
            raise ProofError(
                f"verifying {len(expected)} rows took {decoded.stats.num_steps} forward passes "
                f"instead of one: the proposal was not what decoding gives")
        return list(decoded.token_ids)

    def reset(self) -> None:
        for sequence, context in zip(self._sequences, self._contexts, strict=True):
            sequence.truncate(len(context))

    def prefill(self, token_ids: TokenIds) -> int:
        with self.engine.sequence() as sequence:
            decoded = sequence.regenerate(
                token_ids, max_tokens=1, until="eos", ignore_eos=True)
        if decoded.stats.num_reused:
            raise ProofError(
                f"a prefill of {len(token_ids)} tokens found {decoded.stats.num_reused} of them in "
                f"the cache: it would not have timed a prefill")
        return decoded.token_ids[0]

    def salted(self, token_ids: TokenIds) -> list[int]:
        """The tokens with one near the start changed, another at each call: nothing is cached."""
        at = 1 if self.model.tokenizer.adds_bos else 0
        return [*token_ids[:at], next(self._salts), *token_ids[at + 1:]]

    def score(self, token_ids: TokenIds, num_given: int) -> npt.NDArray[np.float64]:
        with self.engine.sequence(token_ids[:num_given]) as sequence:
            return sequence.score(token_ids[num_given:]).probs.astype(np.float64)

    def greedy_rows(self, token_ids: TokenIds, num_given: int) -> list[int]:
        chosen: list[int] = []
        with self.engine.sequence(token_ids[:num_given]) as sequence:
            for token_id in token_ids[num_given:]:
                length = sequence.num_tokens
                chosen += sequence.decode(1, until="eos", ignore_eos=True).token_ids
                sequence.truncate(length)
                sequence.extend([token_id])
        return chosen

    def costs(self, num_context_tokens: int) -> dict[str, int]:
        """Bytes and multiply-adds of one row, counted from the packed weights."""
        costs: dict[str, int] = _C.testing.step_costs(
            self.model._native, self.compute == "int8", num_context_tokens)
        return costs

    def close(self) -> None:
        self._close_sequences()
        self.engine.close()

    def _close_sequences(self) -> None:
        for sequence in self._sequences:
            sequence.close()
        self._sequences, self._contexts = [], []


def file_step_bytes(path: str) -> int:
    """Bytes of the tensors of a GGUF file that a forward pass reads whole.

    That is all of them, but for the token embedding where the file has an output head of its own.
    """
    tensors = {tensor.name: tensor.size_bytes for tensor in _C.GgufFile(path).tensors}
    if "output.weight" in tensors:
        tensors.pop("token_embd.weight", None)
    return sum(tensors.values())


def file_format(path: str) -> str:
    """The type that most values of a file's matrices have, such as ``"Q4_1"``.

    Of a directory: of its safetensors files.
    """
    counts: dict[str, int] = {}
    for shard in sorted(Path(path).glob("*.safetensors")) if os.path.isdir(path) else ():
        for array in _C.SafetensorsFile(shard).tensors:
            counts[array.dtype] = counts.get(array.dtype, 0) + array.size_bytes
    if counts:
        return max(counts, key=lambda name: counts[name])
    for tensor in _C.GgufFile(path).tensors:
        if len(tensor.shape) > 1 and tensor.name.startswith("blk."):
            counts[tensor.type] = counts.get(tensor.type, 0) + tensor.size_bytes
    return max(counts, key=lambda name: counts[name], default="?")
