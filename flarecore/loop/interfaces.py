"""What the FLARE loop asks of a decoder, as structural types.

:class:`flarecore.Engine` and what it hands out meet them; so may any other implementation (the
naive reference, a scripted model in tests, a remote decoder). The loop relies on nothing else.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from flarecore.sampling import SamplingParams

__all__ = [
    "DecodedLike",
    "EncodedLike",
    "EngineLike",
    "ModelConfigLike",
    "ModelLike",
    "OperationLike",
    "OperationStatsLike",
    "ParallelEngineLike",
    "ParallelSequenceLike",
    "PassageCacheLike",
    "SequenceLike",
    "TokenizerLike",
]

Result = TypeVar("Result", covariant=True)


class OperationStatsLike(Protocol):
    """What one operation cost."""

    @property
    def num_prefilled(self) -> int:
        """Given tokens that went through a forward pass."""
        ...

    @property
    def num_decoded(self) -> int:
        """Tokens that were generated."""
        ...

    @property
    def num_reused(self) -> int:
        """Given tokens whose K/V was found in the engine's cache."""
        ...

    @property
    def num_proposed(self) -> int:
        """Proposed tokens that were verified."""
        ...

    @property
    def num_accepted(self) -> int:
        """Proposed tokens that became part of the output."""
        ...


class DecodedLike(Protocol):
    """The result of a decode or a regeneration; n tokens."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """(n,) generated ids, without end-of-text and stop-string tokens."""
        ...

    @property
    def probs(self) -> npt.NDArray[np.float32]:
        """(n,) confidences: softmax of the raw logits at temperature 1."""
        ...

    @property
    def min_prob(self) -> float:
        """Smallest confidence; 1.0 where n is 0."""
        ...

    @property
    def text_bytes(self) -> bytes:
        """Exact bytes of the text, cut before a stop string."""
        ...

    @property
    def stop_reason(self) -> str:
        """``sentence``, ``eos``, ``stop_string``, ``max_tokens``, ``context_length`` or, if
        `stop_below` ended it, ``low_confidence``."""
        ...

    @property
    def stats(self) -> OperationStatsLike:
        """What it cost."""
        ...


class OperationLike(Protocol[Result]):
    """A running operation: a future that can also be awaited on any asyncio loop."""

    def done(self) -> bool:
        """Whether the operation has ended, in whatever way."""
        ...

    def cancel(self) -> object:
        """Asks the operation to end early; its sequence is then as it was before."""
        ...

    def result(self, timeout: float | None = None) -> Result:
        """Waits for the end; raises what the operation raised. Ctrl-C interrupts the wait."""
        ...

    def __await__(self) -> Generator[Any, Any, Result]:
        """Waits without blocking the event loop."""
        ...


class SequenceLike(Protocol):
    """A list of token ids with a KV cache behind it."""

    @property
    def num_tokens(self) -> int:
        """Length of the list."""
        ...

    @property
    def token_ids(self) -> list[int]:
        """(num_tokens,) a copy of the list."""
        ...

    def decode_async(
        self,
        max_tokens: int,
        *,
        sampling: SamplingParams = ...,
        until: str = ...,
        stop: Sequence[str] = ...,
        beta: float | None = ...,
        stop_below: float | None = ...,
        stop_at_punctuation: bool = ...,
        pass_index: int = ...,
        proposal: Sequence[int] = ...,
        lookup: Sequence[int] = ...,
        deadline_ms: float | None = ...,
    ) -> OperationLike[DecodedLike]:
        """Generates at most `max_tokens` tokens."""
        ...

    def regenerate_async(
        self,
        evidence_ids: Sequence[int],
        *,
        proposal: Sequence[int] = ...,
        lookup: Sequence[int] = ...,
        max_tokens: int,
        sampling: SamplingParams = ...,
        until: str = ...,
        stop: Sequence[str] = ...,
        beta: float | None = ...,
        stop_below: float | None = ...,
        stop_at_punctuation: bool = ...,
        pass_index: int = ...,
        deadline_ms: float | None = ...,
    ) -> OperationLike[DecodedLike]:
        """Appends given tokens (also to an empty sequence) and then decodes, in one operation."""
        ...

    def truncate(self, num_tokens: int) -> object:
        """Keeps the first `num_tokens` tokens."""
        ...

    def fork(self) -> SequenceLike:
        """An independent copy that shares the cached blocks."""
        ...

    def close(self) -> object:
        """Gives the cached blocks back."""
        ...


class ParallelSequenceLike(SequenceLike, Protocol):
    """A sequence that passages can be attached to (placement ``parallel``)."""

    def extend_async(
        self, token_ids: Sequence[int], *, deadline_ms: float | None = ...
    ) -> OperationLike[OperationStatsLike]:
        """Appends tokens and prefills them."""
        ...

    def attach(self, passages: Sequence[Any], *, from_token: int | None = ...) -> object:
        """Lets tokens from this one on see these passages and no others."""
        ...

    def detach(self) -> object:
        """Takes the passages out of view."""
        ...


class TokenizerLike(Protocol):
    """Text to ids and back, exact on bytes."""

    @property
    def adds_bos(self) -> bool:
        """Whether the model wants a begin-of-sequence token before a prompt."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """Begin-of-sequence token."""
        ...

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that are control, not text."""
        ...

    @property
    def chat_template(self) -> str | None:
        """Source of the chat template; None for a base model."""
        ...

    @property
    def token_table(self) -> list[bytes]:
        """(vocab_size,) bytes of every id."""
        ...

    def encode(
        self, text: str, *, add_bos: bool = False, parse_special: bool = False
    ) -> list[int]:
        """Ids of the text; special-token text is plain text unless `parse_special`."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; of a special token its text."""
        ...

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """The chat as one string, special tokens spelled out."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Ids of the chat; special-token text inside a message is plain text."""
        ...


class ModelConfigLike(Protocol):
    """Sizes of a model."""

    @property
    def context_length(self) -> int:
        """Most tokens a sequence can hold."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...


class ModelLike(Protocol):
    """A loaded model."""

    @property
    def name(self) -> str:
        """What the user knows it by."""
        ...

    @property
    def config(self) -> ModelConfigLike:
        """Its sizes."""
        ...


class EngineLike(Protocol):
    """Opens sequences of one model."""

    @property
    def model(self) -> ModelLike:
        """The model."""
        ...

    @property
    def tokenizer(self) -> TokenizerLike:
        """The model's tokenizer."""
        ...

    def sequence(self) -> SequenceLike:
        """A new, empty sequence."""
        ...


class EncodedLike(Protocol):
    """A passage that was encoded, and what it cost."""

    @property
    def passage(self) -> Any:
        """What a sequence attaches."""
        ...

    @property
    def num_prefilled(self) -> int:
        """Tokens that went through a forward pass for this request."""
        ...


class PassageCacheLike(Protocol):
    """The passages that an engine has encoded."""

    def get(self, head_ids: Sequence[int], token_ids: Sequence[int]) -> Any:
        """A passage behind a head, or None if it is not known."""
        ...

    def fetch_async(self, sequence: Any, token_ids: Sequence[int]) -> OperationLike[EncodedLike]:
        """Encodes a passage behind the head of a sequence."""
        ...


class ParallelEngineLike(EngineLike, Protocol):
    """An engine whose sequences passages can be attached to."""

    @property
    def passages(self) -> PassageCacheLike:
        """What it has encoded."""
        ...

    def sequence(
        self, *, num_head_tokens: int = 0, num_reserved: int = 0
    ) -> ParallelSequenceLike:
        """A new, empty sequence with positions kept free behind its first tokens."""
        ...
