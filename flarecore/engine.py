"""The engine: sequences of one model over one KV cache.

Per-token work never enters Python: an operation runs to its end in native code on the engine's own
thread with the GIL released, and completes a future.
"""

from __future__ import annotations

import atexit
import weakref
from dataclasses import dataclass

from flarecore import _C
from flarecore.errors import ConfigError
from flarecore.model import Model
from flarecore.sequence import Sequence, TokenIds
from flarecore.tokenizer import Tokenizer

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
        Budget of the KV cache. None: four full contexts, at most a quarter of the memory. Pages are
        taken from the system when they are first written.
    compute : {"int8", "float32"}
        ``"int8"``: weights stay quantised, activations are quantised to 8 bits per row and group
        of 32, KV is float16. ``"float32"``: dequantised weights, exact; four times the memory.
    sampler : {"fused", "reference"}
        ``"reference"`` is the slow, step-by-step twin in double precision.
    max_batch_tokens : int
        Most rows of one forward pass. Results do not depend on it.

    Raises
    ------
    ConfigError
        An option is unknown or out of range.
    """

    def __init__(self, model: Model, *, kv_cache_bytes: int | None = None, compute: str = "int8",
                 sampler: str = "fused", max_batch_tokens: int = 256) -> None:
        if compute not in ("int8", "float32"):
            raise ConfigError(f"compute must be 'int8' or 'float32', got {compute!r}")
        if sampler not in ("fused", "reference"):
            raise ConfigError(f"sampler must be 'fused' or 'reference', got {sampler!r}")
        if kv_cache_bytes is not None and kv_cache_bytes < 1:
            raise ConfigError(f"kv_cache_bytes must be >= 1, got {kv_cache_bytes}")
        self.model = model
        self.compute = compute
        self._native = _C.Engine(model._native, kv_cache_bytes or 0, compute == "int8",
                                 sampler == "reference", max_batch_tokens)
        _live_engines.add(self)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    def sequence(self, token_ids: TokenIds | None = None) -> Sequence:
        """A new sequence; with `token_ids` also extended by them (see :meth:`Sequence.extend`).

        The longest prefix that is in the cache is reused.
        """
        sequence = Sequence(self, self._native.sequence())
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
        """Stops the worker; running operations fail with CancelledError. May be repeated."""
        self._native.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


# Workers call back into Python: they must have ended before the interpreter is torn down.
_live_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_engines() -> None:
    for engine in list(_live_engines):
        engine.close()
