"""The engine: sequences of one model over one KV cache.

On a CPU per-token work never enters Python: an operation runs to its end in native code on the
engine's own thread with the GIL released, and completes a future.
"""

from __future__ import annotations

import atexit
import weakref
from dataclasses import dataclass
from typing import Any

from flarecore import _C
from flarecore.decode_options import MAX_INT32, TokenIds
from flarecore.errors import ClosedError, ConfigError
from flarecore.gpu.options import GpuOptions
from flarecore.model import Model
from flarecore.passage_cache import PassageCache
from flarecore.sequence import Sequence
from flarecore.tokenizer import Tokenizer
from flarecore.validation import check_bool, check_choice, check_int

__all__ = ["Engine", "EngineStats"]


@dataclass(frozen=True)
class EngineStats:
    """State of an engine's KV cache and what it has run so far."""

    num_blocks: int
    num_held_blocks: int
    num_cached_blocks: int
    block_size_bytes: int
    weights_size_bytes: int
    num_sequences: int
    num_steps: int
    num_rows: int


class Engine:
    """Runs sequences of one model over one KV cache.

    Parameters
    ----------
    model : Model
    kv_cache_bytes : int, optional
        Budget of the KV cache. None: four full contexts, at most a quarter of the memory. On a CPU
        addresses are reserved and pages are taken from the system when they are first written,
        unless `preallocate`: a budget within the machine's memory (or its control group's) is
        accepted whatever is free now, so leave room for the weights and for everything else.
    preallocate : bool
        On a CPU True takes the whole memory of the KV cache now, by all threads, so that no request
        waits for it later. On a GPU it is always taken at once.
    compute : str, optional
        On a CPU ``"int8"`` (default): weights stay quantised, activations are quantised to 8 bits
        with a scale and a shift per row and group of 32, KV as `kv_format` says; or ``"float32"``:
        dequantised weights, exact; four times the memory. On a GPU the type of weights, activations
        and KV: ``"bfloat16"``
        (default), ``"float16"`` or ``"float32"`` (its KV is float16).
    sampler : {"fused", "reference"}
        ``"reference"`` is the slow, step-by-step twin in double precision. On a GPU ``"triton"``
        and ``"cuda"`` name the two fused samplers.
    max_batch_tokens : int, optional
        Most rows of one forward pass: 256 on a CPU, where results do not depend on it; on a GPU
        1024, and most tokens of a prefill's chunk. On a CPU a pass in which sequences decode takes
        at most 64 tokens of prompts along, so that a long prompt does not hold up the others'
        sentences; fewer here make that wait shorter still and the prompt's prefill longer.
    deterministic : bool
        On a GPU a prefill in other chunks, or after a warm cache, may differ in the last bits.
        True removes that: prefill then goes through the products of decode, `row_tile` rows at a
        time, and is many times slower. On a CPU nothing ever differs.
    gpu : GpuOptions
        How a GPU is used.
    passage_cache_bytes : int, optional
        Memory for passages that were encoded on their own (placement ``parallel``), beside the KV
        cache. On a CPU it is taken when they are encoded, None: as much as `kv_cache_bytes`. On a
        GPU it is taken with the KV cache, and what no passage needs serves as such; None: a quarter
        of `kv_cache_bytes`.
    kv_format : {"float16", "int16"}, optional
        What ``"int8"`` on a CPU keeps K and V as. ``"int16"``: integers of 16 bits times a scale of
        each token and head, about as exact as float16 and 8 bytes larger a token, layer and KV
        head; its products take half the instructions. None: what the processor is fastest with,
        ``"int16"`` for AVX-512 without AMX, else ``"float16"``.

    Attributes
    ----------
    model : Model
    compute : str
    kv_format : str
        What K and V are kept as.
    passages : PassageCache
        The passages that were encoded.

    Raises
    ------
    ConfigError
        An option is unknown or out of range; on a CPU `kv_cache_bytes` is more than the memory of
        the machine or its control group, or with `preallocate` more than is free.
    """

    def __init__(self, model: Model, *, kv_cache_bytes: int | None = None,
                 compute: str | None = None, sampler: str = "fused",
                 max_batch_tokens: int | None = None, deterministic: bool = False,
                 gpu: GpuOptions = GpuOptions(),  # noqa: B008 (immutable)
                 passage_cache_bytes: int | None = None, preallocate: bool = False,
                 kv_format: str | None = None) -> None:
        if not isinstance(model, Model):
            raise ConfigError(f"model must be a Model, got {type(model).__name__}; see Model.load")
        if not isinstance(gpu, GpuOptions):
            raise ConfigError(f"gpu must be GpuOptions, got {type(gpu).__name__}")
        check_bool("deterministic", deterministic)
        check_bool("preallocate", preallocate)
        if kv_cache_bytes is not None:
            kv_cache_bytes = check_int("kv_cache_bytes", kv_cache_bytes, 1, 2**62)
        if max_batch_tokens is not None:
            max_batch_tokens = check_int("max_batch_tokens", max_batch_tokens, 1, 8192)
        if passage_cache_bytes is not None:
            passage_cache_bytes = check_int("passage_cache_bytes", passage_cache_bytes, 0, 2**62)
        self.model = model
        self._is_closed = False
        self._native: Any
        if model.device == "cpu":
            self.compute = check_choice("compute", compute or "int8", ("int8", "float32"))
            check_choice("sampler", sampler, ("fused", "reference"))
            if kv_format is not None:
                formats = ("float16", "int16") if self.compute == "int8" else ("float32",)
                check_choice("kv_format", kv_format, formats)
            self._native = _C.Engine(
                model._native, kv_cache_bytes or 0, self.compute == "int8", sampler == "reference",
                max_batch_tokens or 256, preallocate, kv_format)
        else:
            from flarecore.gpu import build  # imports torch

            self.compute = check_choice("compute", compute or "bfloat16", build.GPU_COMPUTES)
            check_choice("sampler", sampler, build.GPU_SAMPLERS)
            if kv_format is not None:
                raise ConfigError(
                    f"kv_format is for device=\"cpu\"; on a GPU compute decides, got {kv_format!r}")
            self._native = build.make_engine(
                model, kv_cache_bytes=kv_cache_bytes, passage_cache_bytes=passage_cache_bytes,
                compute=self.compute, sampler=sampler, max_batch_tokens=max_batch_tokens or 1024,
                deterministic=deterministic, options=gpu)
            passage_cache_bytes = self._native.passage_cache_bytes
        self.kv_format: str = self._native.kv_format
        stats = self.stats()
        if passage_cache_bytes is None:
            passage_cache_bytes = stats.num_blocks * stats.block_size_bytes
        self.passages = PassageCache(
            passage_cache_bytes, None if model.device == "cpu" else stats.block_size_bytes)
        _live_engines.add(self)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    def sequence(self, token_ids: TokenIds | None = None, *, num_head_tokens: int = 0,
                 num_reserved: int = 0) -> Sequence:
        """A new sequence; with `token_ids` also extended by them (see :meth:`Sequence.extend`).

        The longest prefix that is in the cache is reused.

        Parameters
        ----------
        token_ids : sequence of int, optional
        num_head_tokens, num_reserved : int
            Keep so many positions free behind so many tokens (the head), for passages that are
            attached there (see :meth:`Sequence.attach`). The tokens behind the head are at later
            positions for it, with and without passages.

        Raises
        ------
        ContextOverflowError
            Head and reserved positions leave no room in the context.
        ClosedError
            The engine is closed.
        """
        num_head_tokens = check_int("num_head_tokens", num_head_tokens, 0, MAX_INT32)
        num_reserved = check_int("num_reserved", num_reserved, 0, MAX_INT32)
        native = self._native.sequence(num_head_tokens, num_reserved)
        sequence = Sequence(self, native)
        if token_ids is not None:
            try:
                sequence.extend(token_ids)
            except BaseException:
                sequence.close()
                raise
        return sequence

    def check_integrity(self) -> None:
        """Raises FlarecoreError if block counts and references do not add up."""
        self._native.check_integrity()

    def stats(self) -> EngineStats:
        """Block counts and work done so far."""
        return EngineStats(**self._native.stats())

    def close(self) -> None:
        """Stops the worker. May be repeated.

        Running operations and answers fail, and later calls of the engine and its sequences (but
        for ``close``) raise, with ClosedError.
        """
        self._is_closed = True
        self._native.close()

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._is_closed

    def __enter__(self) -> Engine:
        if self._is_closed:
            raise ClosedError("the engine is closed; make a new one")
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


# Workers call back into Python: they must have ended before the interpreter is torn down.
_live_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_engines() -> None:
    for engine in list(_live_engines):
        engine.close()
    _C.join_retired_workers()
