"""Byte-level BPE (``tokenizer.ggml.model`` = ``gpt2``) over the ``tokenizers`` library."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.errors import ConfigError, ModelFileError
from flarecore.tokenizer.pretokenizers import BYTE_ALPHABET, PreTokenizer
from flarecore.tokenizer.vocabulary import NORMAL, USER_DEFINED, Vocabulary

__all__ = ["ByteLevelBpe", "spell", "why_no_text"]


class ByteLevelBpe:
    """Plain text to token ids. Special tokens cannot come out, whatever the text.

    Thread-safe: nothing changes after construction.

    Parameters
    ----------
    vocabulary : Vocabulary
        Tokens and merges; normal tokens are spelled in the byte alphabet.
    special_ids : frozenset of int
        Tokens that no text may produce; merges that would are left out.
    pre : PreTokenizer
        How text is cut into words.

    Raises
    ------
    ModelFileError
        A merge is malformed or names a token that the vocabulary does not have.

    Attributes
    ----------
    token_table : list of bytes, (vocab_size,)
        Exact bytes of every token; special and user-defined tokens: their text.
    finds_added : bool
        False: whoever calls takes user-defined tokens out of the text first.
    """

    finds_added = False

    def __init__(
        self, vocabulary: Vocabulary, special_ids: frozenset[int], pre: PreTokenizer
    ) -> None:
        from tokenizers import Tokenizer
        from tokenizers.normalizers import NFC

        self.token_table, spelled = spell(vocabulary)
        for i in special_ids:
            self.token_table[i] = _raw(vocabulary.tokens[i])
        vocab = _reachable(vocabulary, special_ids, spelled)
        self._tokenizer = Tokenizer(_bpe_model(vocabulary, vocab, pre.ignore_merges))
        self._tokenizer.pre_tokenizer = pre.build()
        if pre.nfc:
            self._tokenizer.normalizer = NFC()

    def encode(self, text: str, at_start: bool = True) -> list[int]:
        """Token ids of plain text, wherever it stands.

        A byte that no token of the vocabulary covers is dropped, as in every implementation of
        these vocabularies: SmolLM2's lacks six control characters and a few lead bytes.
        """
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError) as error:
            raise ConfigError(why_no_text(text)) from error
        return ids


def why_no_text(text: str) -> str:
    """What makes a text impossible to encode, for an error message."""
    for i, char in enumerate(text):
        if 0xD800 <= ord(char) <= 0xDFFF:
            return f"text has a lone surrogate, U+{ord(char):04X}, at index {i}; it is not Unicode"
    return f"text cannot be encoded: {text[:80]!r}"


def _raw(token: str) -> bytes:
    return token.encode("utf-8", "surrogateescape")


def spell(vocabulary: Vocabulary) -> tuple[list[bytes], npt.NDArray[np.bool_]]:
    """Bytes of every token, and whether it is a normal or user-defined one in the byte alphabet.

    All tokens are looked up in one go: a vocabulary has up to 262,144 of them.
    """
    tokens = vocabulary.tokens
    byte_of = np.full(0x200, -1, np.int16)
    byte_of[[ord(char) for char in BYTE_ALPHABET]] = np.arange(256)
    text = "".join(tokens).encode("utf-32-le", "surrogatepass")
    values = byte_of[np.minimum(np.frombuffer(text, np.uint32), 0x1FF)]
    ends = np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)))
    starts = np.concatenate(([0], ends[:-1]))
    foreign = np.concatenate(([0], np.cumsum(values < 0)))
    spelled: npt.NDArray[np.bool_] = (foreign[ends] == foreign[starts]) & (ends > starts)
    data = values.astype(np.uint8).tobytes()
    table = [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    for i in np.flatnonzero(~spelled | (vocabulary.types != NORMAL)).tolist():
        table[i] = _raw(tokens[i])
    return table, spelled


def _reachable(
    vocabulary: Vocabulary, special_ids: frozenset[int], spelled: npt.NDArray[np.bool_]
) -> dict[str, int]:
    """The tokens that merges may make. Of two of one spelling the last normal one counts."""
    vocab: dict[str, int] = {}
    for kind in (USER_DEFINED, NORMAL):
        for i in np.flatnonzero(spelled & (vocabulary.types == kind)).tolist():
            if i not in special_ids:
                vocab[vocabulary.tokens[i]] = i
    return vocab


def _bpe_model(vocabulary: Vocabulary, vocab: dict[str, int], ignore_merges: bool) -> Any:
    from tokenizers.models import BPE

    try:  # the library checks every merge against the vocabulary
        merges: Any = [tuple(merge.split(" ")) for merge in vocabulary.merges]
        return BPE(vocab, merges, ignore_merges=ignore_merges)
    except Exception:  # bare Exception is what it raises; now find out which, or leave some out
        return BPE(vocab, _usable_merges(vocabulary, vocab), ignore_merges=ignore_merges)


def _usable_merges(vocabulary: Vocabulary, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """The merges without those of tokens that text must not produce. Raises ModelFileError."""
    merges: list[tuple[str, str]] = []
    every = frozenset(vocabulary.tokens)
    for rank, merge in enumerate(vocabulary.merges):
        left, _, right = merge.partition(" ")
        if " " in right or not {left, right, left + right} <= every:
            raise ModelFileError(
                f"tokenizer.ggml.merges[{rank}] is {merge[:80]!r}: it must be two tokens, "
                f"separated by a space, whose union is a token; convert the model again"
            )
        if left in vocab and right in vocab and left + right in vocab:
            merges.append((left, right))
    return merges
