"""The vocabulary that a GGUF file declares: tokens, their kinds and the special ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.errors import ModelFileError

__all__ = [
    "BYTE", "CONTROL", "END_TEXTS", "NORMAL", "UNKNOWN", "UNUSED", "USER_DEFINED", "Vocabulary",
]  # fmt: skip

# Values of tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_DECLARED = ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask")
_END_KEYS = ("eos", "eot", "eom")
# Control tokens of these names end an answer even if no key declares them: chat models often
# declare only one of several.
END_TEXTS = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>",
     "<end_of_turn>", "<|return|>", "<EOT>", "_<EOT>")
)  # fmt: skip


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, as the file spells them.

    Attributes
    ----------
    tokens : list of str, (vocab_size,)
        Bytes that are not UTF-8 are lone surrogates (``surrogateescape``).
    types : (vocab_size,) int32
        Kind of each token: NORMAL, CONTROL and so on.
    merges : list of str
        BPE merges in order of rank, the two parts separated by a space; may be empty.
    declared : mapping of str to int
        Ids that the file declares: ``"bos"``, ``"eos"``, ``"eot"``, …
    """

    tokens: list[str]
    types: npt.NDArray[np.int32]
    merges: list[str]
    declared: Mapping[str, int]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Vocabulary:
        """Reads and checks ``tokenizer.ggml.*``. Raises ModelFileError."""
        tokens = _strings(metadata, "tokenizer.ggml.tokens")
        if not tokens:
            raise ModelFileError(
                "tokenizer.ggml.tokens is missing or empty; convert the model again"
            )
        declared = {}
        for name in _DECLARED:
            key = f"tokenizer.ggml.{name}_token_id"
            if (value := metadata.get(key)) is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ModelFileError(f"{key} must be an integer, it is {value!r}")
            if 0 <= value < len(tokens):
                declared[name] = value
            elif value not in (-1, 2**32 - 1):  # written by some converters for "none"
                raise ModelFileError(f"{key} is {value}, the vocabulary has {len(tokens)} tokens")
        merges = _strings(metadata, "tokenizer.ggml.merges")
        return cls(tokens, _types(metadata, tokens), merges, declared)

    def special_ids(self) -> frozenset[int]:
        """Tokens that stand for no text: control tokens, and what the file declares as bos or end.

        A user-defined token of the form ``<|...|>`` counts too (converters mislabel them). A
        declared token of normal type counts only if no text can produce it.
        """
        special = set(np.flatnonzero((self.types == CONTROL) | (self.types == UNKNOWN)).tolist())
        for i in np.flatnonzero(self.types == USER_DEFINED).tolist():
            if _looks_special(self.tokens[i]):
                special.add(i)
        marks = {self.declared[n] for n in ("bos", *_END_KEYS) if n in self.declared} - special
        if any(self.types[i] == NORMAL for i in marks):
            products = {merge.replace(" ", "", 1) for merge in self.merges}
            marks = {i for i in marks if len(self.tokens[i]) > 1 and self.tokens[i] not in products}
        return frozenset(special | marks)

    def end_ids(self, special: frozenset[int]) -> frozenset[int]:
        """Tokens that end an answer: eos, eot, eom, and special tokens with a name that says so."""
        ends = {self.declared[n] for n in _END_KEYS if n in self.declared}
        return frozenset(ends | {i for i in special if self.tokens[i] in END_TEXTS})

    def ids_of(self, *types: int) -> Iterator[int]:
        return iter(np.flatnonzero(np.isin(self.types, types)).tolist())


def _looks_special(text: str) -> bool:
    return len(text) > 4 and text[:2] in ("<|", "<｜") and text[-2:] in ("|>", "｜>")


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or (value and not isinstance(value[0], str)):
        raise ModelFileError(f"{key} must be an array of strings")
    return value


def _types(metadata: Mapping[str, Any], tokens: list[str]) -> npt.NDArray[np.int32]:
    key = "tokenizer.ggml.token_type"
    value = metadata.get(key)
    if value is None:  # old files: a control token can only be told by its looks
        guessed = [CONTROL if _looks_special(token) else NORMAL for token in tokens]
        return np.array(guessed, np.int32)
    types = np.asarray(value)
    if types.ndim != 1 or types.dtype.kind not in "iu":
        raise ModelFileError(f"{key} must be an array of integers")
    if len(types) != len(tokens):
        raise ModelFileError(f"{key} has {len(types)} entries for {len(tokens)} tokens")
    if not bool(np.all((types >= NORMAL) & (types <= BYTE))):
        raise ModelFileError(f"{key} must be between {NORMAL} and {BYTE}")
    return types.astype(np.int32)
