"""SentencePiece BPE (``tokenizer.ggml.model`` = ``llama``), the tokenizer of Llama 2 and Gemma.

The work is native: csrc/text/sentencepiece.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flarecore import _C
from flarecore.errors import ConfigError, ModelFileError, UnsupportedError
from flarecore.tokenizer.byte_level_bpe import why_no_text
from flarecore.tokenizer.vocabulary import CONTROL, UNKNOWN, Vocabulary

__all__ = ["SentencePieceBpe"]


class SentencePieceBpe:
    """Plain text to token ids, by the scores of the pieces.

    Special tokens cannot come out, whatever the text; nor do byte tokens whose name (``<0x0A>``)
    stands in the text. Thread-safe: nothing changes after construction.

    Parameters
    ----------
    vocabulary : Vocabulary
        Tokens and their types.
    special_ids : frozenset of int
        Tokens that no text may produce.
    metadata : mapping
        ``tokenizer.ggml.scores`` and ``tokenizer.ggml.add_space_prefix`` (default True).

    Raises
    ------
    ModelFileError
        The scores are missing or malformed, or a byte token has no byte's name.
    UnsupportedError
        The text would have to be normalised first.

    Attributes
    ----------
    token_table : list of bytes, (vocab_size,)
        Exact bytes of every token; special tokens: their text.
    finds_added : bool
        True: user-defined tokens are found while encoding.

    Notes
    -----
    U+2581 in a text is a blank, as in every implementation of these vocabularies. With
    ``add_space_prefix`` each text, and each part of one after a special token, begins with a blank
    that was not there: ``decode(encode("a")) == " a"``.

    Equal to the SentencePiece library, and to the tokenizer.json that Gemma 3 comes with except for
    U+2581 in a text. Scores order the merges, as they did when the model was trained; transformers'
    conversion of a Gemma GGUF file orders them by id, which differs for more than 31 blanks in a
    row.
    """

    finds_added = True

    def __init__(
        self, vocabulary: Vocabulary, special_ids: frozenset[int], metadata: Mapping[str, Any]
    ) -> None:
        for key in ("precompiled_charsmap", "remove_extra_whitespaces"):
            if np.any(metadata.get(f"tokenizer.ggml.{key}", False)):
                raise UnsupportedError(
                    f"tokenizer.ggml.{key} is set: text would have to be normalised before it is "
                    f"encoded, which is not supported"
                )
        prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
        if not isinstance(prefix, bool):
            raise ModelFileError(
                f"tokenizer.ggml.add_space_prefix must be a bool, it is {prefix!r}"
            )
        types = vocabulary.types.copy()
        types[[i for i in special_ids if types[i] != UNKNOWN]] = CONTROL
        self._native = _C.SentencePiece(
            vocabulary.tokens,
            _scores(metadata),
            types,
            prefixes_blank=prefix,
            unknown=vocabulary.declared.get("unknown"),
        )
        self.token_table: list[bytes] = self._native.token_table()

    def encode(self, text: str, at_start: bool = True) -> list[int]:
        """Token ids of plain text, wherever it stands. Raises ConfigError for a lone surrogate."""
        try:
            ids: list[int] = self._native.encode(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise ConfigError(why_no_text(text)) from error
        return ids


def _scores(metadata: Mapping[str, Any]) -> Any:
    key = "tokenizer.ggml.scores"
    if (value := metadata.get(key)) is None:
        raise ModelFileError(f"{key} is missing; convert the model again")
    scores = np.asarray(value)
    if scores.ndim != 1 or scores.dtype.kind not in "fiu":
        raise ModelFileError(f"{key} must be an array of numbers")
    return scores.astype(np.float32)
