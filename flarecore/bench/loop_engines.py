"""A peer behind the interface that the FLARE loop asks for: a server that is given whole contexts.

The loop, its prompts, triggers, queries and passages are then the same for all; only the decoder
differs. This is how FLARE is written today around llama.cpp or transformers: every draft and every
regeneration is a request with its whole context, and what the server keeps of the request before is
its own affair.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from flarecore import _C
from flarecore.bench.runner import Runner
from flarecore.errors import ConfigError, UnsupportedError
from flarecore.model import Model
from flarecore.operation import Decoded, OperationStats
from flarecore.sampling import SamplingParams
from flarecore.tokenizer import Tokenizer

__all__ = ["PeerEngine"]

T = TypeVar("T")


class _Done(Generic[T]):
    """An operation that was over when it began."""

    def __init__(self, value: T) -> None:
        self._value = value

    def done(self) -> bool:
        return True

    def cancel(self) -> None:
        """Nothing is left to cancel."""

    def result(self, timeout: float | None = None) -> T:
        return self._value

    def __await__(self) -> Generator[Any, Any, T]:
        yield from ()
        return self._value


class PeerEngine:
    """An ``EngineLike`` over a runner's :meth:`~flarecore.bench.runner.Runner.follow`.

    Parameters
    ----------
    runner : Runner
        Decodes; llama.cpp keeps the KV of the common prefix with the request before.
    model : Model
        flarecore's own, for its tokenizer and sizes.
    whole_drafts : bool
        True asks for ``max_tokens`` each time and cuts the text at its first sentence, as published
        code does; False stops at the end of the sentence, the best a caller can do.
    """

    def __init__(self, runner: Runner, model: Model, *, whole_drafts: bool) -> None:
        self.runner = runner
        self.model = model
        self.whole_drafts = whole_drafts

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return self.model.tokenizer

    def sequence(self) -> _PeerSequence:
        """A new, empty sequence."""
        return _PeerSequence(self, [])


class _PeerSequence:
    """A list of token ids: a server keeps no sequence for its caller."""

    def __init__(self, engine: PeerEngine, token_ids: list[int]) -> None:
        self._engine = engine
        self._ids = token_ids

    @property
    def num_tokens(self) -> int:
        return len(self._ids)

    @property
    def token_ids(self) -> list[int]:
        return list(self._ids)

    def truncate(self, num_tokens: int) -> None:
        del self._ids[num_tokens:]

    def fork(self) -> _PeerSequence:
        return _PeerSequence(self._engine, list(self._ids))

    def close(self) -> None:
        self._ids = []

    def regenerate_async(
        self, evidence_ids: Sequence[int], *, max_tokens: int, **options: Any
    ) -> _Done[Decoded]:
        before = len(self._ids)
        self._ids += evidence_ids
        try:
            return self.decode_async(max_tokens, **options)
        except BaseException:
            del self._ids[before:]
            raise

    def decode_async(
        self, max_tokens: int, *, sampling: SamplingParams = SamplingParams(),  # noqa: B008
        until: str = "sentence", stop: Sequence[str] = (), beta: float | None = None,
        stop_below: float | None = None, stop_at_punctuation: bool = False, pass_index: int = 0,
        proposal: Sequence[int] = (), lookup: Sequence[int] = (), deadline_ms: float | None = None,
    ) -> _Done[Decoded]:
        """Proposals only save time, and this server takes none; greedy sentences only."""
        if sampling.temperature > 0 or until != "sentence" or stop_below is not None:
            raise UnsupportedError("peers write greedy sentences, without stopping at a low token")
        if not self._ids:
            raise ConfigError("a context must hold at least one token")
        decoded = _decode(self._engine, self._ids, max_tokens, stop)
        self._ids += decoded.token_ids
        return _Done(decoded)


def _decode(
    engine: PeerEngine, context: list[int], max_tokens: int, stop: Sequence[str]
) -> Decoded:
    """One request: the context, then token by token.

    Where the sentence ends is decided by the same rules as in flarecore's own decoder.
    """
    runner, ends = engine.runner, engine.tokenizer.eos_token_ids
    state = _C.DecodeState(engine.model._native, max_tokens, True, False, list(stop), -1.0, False)
    num_prefilled, logits = runner.follow(context)
    num_decoded = 0
    while True:
        token_id, prob = _greedy(logits)
        if not state.is_finished:
            state.accept([token_id], [prob])
        is_eos = token_id in ends
        num_decoded += not is_eos
        is_over = state.is_finished and not engine.whole_drafts
        if is_over or is_eos or num_decoded == max_tokens:
            break
        logits = runner.append(token_id)
    kept = state.tokens()[:state.num_kept]
    probs = np.asarray([prob for _, prob in kept], dtype=np.float32)
    return Decoded(
        token_ids=tuple(token_id for token_id, _ in kept), probs=probs,
        min_prob=float(probs.min(initial=1.0)), mask=np.zeros(len(kept), dtype=np.bool_),
        eos_prob=None, text_bytes=state.text, stop_reason=state.stop_reason,
        stats=OperationStats(
            num_reused=len(context) - num_prefilled, num_prefilled=num_prefilled,
            num_decoded=num_decoded, num_steps=num_decoded))


def _greedy(logits: npt.NDArray[np.float32]) -> tuple[int, float]:
    """The most probable token and its probability at temperature 1."""
    token_id = int(logits.argmax())
    return token_id, 1.0 / float(np.exp(logits - logits[token_id]).sum())
