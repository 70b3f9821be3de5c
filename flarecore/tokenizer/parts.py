"""What a tokenizer is made of, and how the metadata of a GGUF file gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from flarecore.errors import ModelFileError, UnsupportedError
from flarecore.tokenizer.byte_level_bpe import ByteLevelBpe
from flarecore.tokenizer.pretokenizers import find_pretokenizer
from flarecore.tokenizer.sentencepiece import SentencePieceBpe
from flarecore.tokenizer.vocabulary import USER_DEFINED, Vocabulary

__all__ = ["TextEncoder", "TokenizerParts", "gguf_parts"]


class TextEncoder(Protocol):
    """Bytes of every id, and text to ids."""

    token_table: list[bytes]

    def encode(self, text: str, at_start: bool = True) -> list[int]:
        """Ids of plain text; `at_start`: nothing stands before it."""
        ...


@dataclass(frozen=True)
class TokenizerParts:
    """Everything that :class:`flarecore.tokenizer.Tokenizer` is told.

    Attributes
    ----------
    encoder : TextEncoder
    special_ids, end_ids : frozenset of int
        Tokens that stand for no text; tokens that end an answer.
    bos_id : int or None
    adds_bos : bool
        Prompts begin with BOS.
    chat_template : str or None
    added_ids : tuple of int
        Tokens whose text is taken out before `encoder` sees the rest; one that finds them itself
        has none.
    template_ids : mapping of str to int
        What templates call ``bos_token``, ``eos_token``, …: ``"bos"`` -> id.
    strips_left, strips_right : frozenset of int
        Special tokens that take white space along.
    """

    encoder: TextEncoder
    special_ids: frozenset[int]
    end_ids: frozenset[int]
    bos_id: int | None
    adds_bos: bool
    chat_template: str | None
    added_ids: tuple[int, ...] = ()
    template_ids: Mapping[str, int] = field(default_factory=dict)
    strips_left: frozenset[int] = frozenset()
    strips_right: frozenset[int] = frozenset()


_Builder = Callable[
    [Vocabulary, frozenset[int], Mapping[str, Any], str | None],
    tuple[ByteLevelBpe | SentencePieceBpe, bool],
]


def _byte_level_bpe(
    vocabulary: Vocabulary,
    special_ids: frozenset[int],
    metadata: Mapping[str, Any],
    pre: str | None,
) -> tuple[ByteLevelBpe | SentencePieceBpe, bool]:
    """The encoder, and whether prompts begin with BOS if the file does not say."""
    found = find_pretokenizer(pre if pre is not None else metadata.get("tokenizer.ggml.pre"))
    return ByteLevelBpe(vocabulary, special_ids, found), found.adds_bos


def _sentencepiece_bpe(
    vocabulary: Vocabulary,
    special_ids: frozenset[int],
    metadata: Mapping[str, Any],
    pre: str | None,
) -> tuple[ByteLevelBpe | SentencePieceBpe, bool]:
    """The same. There is no pre-tokeniser to choose; models of this kind expect BOS."""
    return SentencePieceBpe(vocabulary, special_ids, metadata), True


# tokenizer.ggml.model -> builder.
_BUILDERS: Mapping[str, _Builder] = {
    "gpt2": _byte_level_bpe,
    "llama": _sentencepiece_bpe,
}


def gguf_parts(metadata: Mapping[str, Any], pre: str | None) -> TokenizerParts:
    """From ``tokenizer.*`` keys; `pre` replaces ``tokenizer.ggml.pre``.

    Raises
    ------
    ModelFileError
        The vocabulary is damaged.
    UnsupportedError
        The tokeniser or pre-tokeniser is not one of those built here.
    """
    vocabulary = Vocabulary.from_metadata(metadata)
    special = vocabulary.special_ids()
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model not in _BUILDERS:
        raise UnsupportedError(
            f"the tokeniser {model!r} (tokenizer.ggml.model) is not supported; supported: "
            + ", ".join(_BUILDERS)
        )
    encoder, adds_bos = _BUILDERS[model](vocabulary, special, metadata, pre)
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", adds_bos)
    if not isinstance(adds_bos, bool):
        raise ModelFileError(f"tokenizer.ggml.add_bos_token must be a bool, it is {adds_bos!r}")
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelFileError("tokenizer.chat_template must be a string")
    names = (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad"),
             ("seperator", "sep"), ("mask", "mask"))
    return TokenizerParts(
        encoder,
        special,
        vocabulary.end_ids(special),
        vocabulary.declared.get("bos"),
        adds_bos,
        template,
        () if encoder.finds_added else tuple(vocabulary.ids_of(USER_DEFINED)),
        {short: vocabulary.declared[n] for n, short in names if n in vocabulary.declared},
    )
