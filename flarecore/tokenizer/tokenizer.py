"""Text to token ids and back, built from the metadata of a GGUF file."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from flarecore.errors import ConfigError, ModelFileError, UnsupportedError
from flarecore.tokenizer.byte_level_bpe import ByteLevelBpe
from flarecore.tokenizer.chat_template import ChatTemplate, plain_messages
from flarecore.tokenizer.pretokenizers import find_pretokenizer
from flarecore.tokenizer.sentencepiece import SentencePieceBpe
from flarecore.tokenizer.special_mask import SpecialMask, strings_of
from flarecore.tokenizer.vocabulary import USER_DEFINED, Vocabulary

__all__ = ["Tokenizer"]


class _TextEncoder(Protocol):
    """What a kind of ``tokenizer.ggml.model`` brings: bytes of every id, and text to ids."""

    token_table: list[bytes]
    finds_added: bool  # text keeps its user-defined tokens: encode() finds them itself

    def encode(self, text: str) -> list[int]: ...


def _byte_level_bpe(
    vocabulary: Vocabulary,
    special_ids: frozenset[int],
    metadata: Mapping[str, Any],
    pre: str | None,
) -> tuple[_TextEncoder, bool]:
    """The encoder, and whether prompts begin with BOS if the file does not say."""
    found = find_pretokenizer(pre if pre is not None else metadata.get("tokenizer.ggml.pre"))
    return ByteLevelBpe(vocabulary, special_ids, found), found.adds_bos


def _sentencepiece_bpe(
    vocabulary: Vocabulary,
    special_ids: frozenset[int],
    metadata: Mapping[str, Any],
    pre: str | None,
) -> tuple[_TextEncoder, bool]:
    """The same. There is no pre-tokeniser to choose; models of this kind expect BOS."""
    return SentencePieceBpe(vocabulary, special_ids, metadata), True


# tokenizer.ggml.model -> builder.
_BUILDERS: Mapping[str, Callable[..., tuple[_TextEncoder, bool]]] = {
    "gpt2": _byte_level_bpe,
    "llama": _sentencepiece_bpe,
}


class Tokenizer:
    """Token ids, bytes and text of one model.

    Make one with :meth:`from_gguf` or :meth:`from_metadata`. Thread-safe: nothing changes after
    construction.

    Attributes
    ----------
    vocab_size : int
        Number of token ids.
    bos_token_id : int or None
        Begin-of-sequence token.
    eos_token_ids : frozenset of int
        Tokens that end an answer: eos, eot, eom, and control tokens such as ``<|im_end|>``.
    special_token_ids : frozenset of int
        Tokens that stand for no text. Text yields them only with ``parse_special=True``.
    adds_bos : bool
        The model expects prompts to begin with BOS (``tokenizer.ggml.add_bos_token``).
    chat_template : str or None
        Source of the model's chat template.
    token_table : list of bytes, (vocab_size,)
        Exact bytes of every id; a special token's are its text.
    """

    def __init__(
        self, vocabulary: Vocabulary, metadata: Mapping[str, Any], pre: str | None = None
    ) -> None:
        special = vocabulary.special_ids()
        model = metadata.get("tokenizer.ggml.model")
        if not isinstance(model, str) or model not in _BUILDERS:
            raise UnsupportedError(
                f"the tokeniser {model!r} (tokenizer.ggml.model) is not supported; supported: "
                + ", ".join(_BUILDERS)
            )
        self._encoder, adds_bos = _BUILDERS[model](vocabulary, special, metadata, pre)
        self.token_table = self._encoder.token_table
        self.vocab_size = len(vocabulary.tokens)
        self.special_token_ids = special
        self.eos_token_ids = vocabulary.end_ids(special)
        self.bos_token_id = vocabulary.declared.get("bos")
        adds_bos = metadata.get("tokenizer.ggml.add_bos_token", adds_bos)
        if not isinstance(adds_bos, bool):
            raise ModelFileError(f"tokenizer.ggml.add_bos_token must be a bool, it is {adds_bos!r}")
        self.adds_bos = adds_bos and self.bos_token_id is not None
        self.chat_template = metadata.get("tokenizer.chat_template")
        if self.chat_template is not None and not isinstance(self.chat_template, str):
            raise ModelFileError("tokenizer.chat_template must be a string")
        self._template: ChatTemplate | None = None
        self._set_literals(vocabulary)
        self._template_tokens = {
            f"{short}_token": self._text(vocabulary.declared[name])
            for name, short in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"),
                                ("padding", "pad"), ("seperator", "sep"), ("mask", "mask"))
            if name in vocabulary.declared
        }  # fmt: skip

    @classmethod
    def from_gguf(cls, source: Any, *, pre: str | None = None) -> Tokenizer:
        """The tokeniser of a model file.

        Parameters
        ----------
        source : GgufFile, str or path-like
            An opened file or a path.
        pre : str, optional
            Pre-tokeniser to use instead of the file's ``tokenizer.ggml.pre``.

        Raises
        ------
        ModelFileError
            The file or its vocabulary is damaged.
        UnsupportedError
            Its tokeniser or pre-tokeniser is not one of those built here.
        """
        if isinstance(source, (str, bytes, os.PathLike)):
            from flarecore import _C  # type: ignore[attr-defined]

            source = _C.GgufFile(source)
        return cls.from_metadata(source.metadata, pre=pre)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], *, pre: str | None = None) -> Tokenizer:
        """The same from the metadata alone: ``tokenizer.*`` keys and their values."""
        return cls(Vocabulary.from_metadata(metadata), metadata, pre)

    # Text and bytes

    def encode(self, text: str, *, add_bos: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        Parameters
        ----------
        text : str
            The text; ``""`` gives no ids.
        add_bos : bool
            Put BOS in front, if the model has one.
        parse_special : bool
            Read the text of special tokens (``<|im_end|>``) as those tokens. Leave it False for
            text from users: it is then encoded like any other text.

        Raises
        ------
        ConfigError
            ``text`` is not a str, or holds a lone surrogate.
        """
        if not isinstance(text, str):
            raise ConfigError(f"text must be a str, got {type(text).__name__}")
        ids = [self.bos_token_id] if add_bos and self.bos_token_id is not None else []
        literals = self._special_or_added if parse_special else self._added
        for piece in literals.split(text):
            ids.extend([piece] if isinstance(piece, int) else self._encoder.encode(piece))
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of one token, which need not be whole characters. Raises ConfigError."""
        return self.token_table[self._checked(token_id)]

    def decode_bytes(self, token_ids: Sequence[int], *, skip_special: bool = True) -> bytes:
        """Bytes of the tokens, joined; special tokens left out or as their text."""
        ids = [self._checked(i) for i in token_ids]
        skipped = self.special_token_ids if skip_special else frozenset[int]()
        return b"".join(self.token_table[i] for i in ids if i not in skipped)

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of the tokens; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(token_ids, skip_special=skip_special).decode("utf-8", "replace")

    # Chat

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The conversation as the model's chat template writes it.

        Parameters
        ----------
        messages : sequence of mappings
            Each with a ``"role"`` and usually a ``"content"``.
        add_generation_prompt : bool
            Open the assistant's turn at the end.

        Raises
        ------
        ConfigError
            The model has no template, the messages are malformed, or the template failed or
            refused them; the message says where.
        """
        return self._chat().render(messages, add_generation_prompt=add_generation_prompt)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of the conversation: the template's special tokens parsed, the messages' not.

        ``"<|im_end|>"`` inside a message is encoded as plain text, so that no message can end its
        turn or open another. For messages without such text the ids equal
        ``encode(render_chat(messages), parse_special=True)``.

        Notes
        -----
        The first characters of special tokens are replaced in the messages by private-use
        characters before the template runs, and put back after the special tokens were found.
        Where a template looks at such a character itself (``'</think>' in content``), the result
        would differ; then only whole special tokens, and beginnings of one at the end of a string,
        are replaced. A template that looks for a special token's text in a message does not find
        it.
        """
        chat, plain = self._chat(), plain_messages(messages)

        def render(changed: list[dict[str, Any]]) -> str:
            return chat.render_plain(changed, add_generation_prompt)

        text = render(plain)
        mask = SpecialMask(self._special_texts, [text, *strings_of(plain)])
        masked = mask.render(plain, text, render)
        ids: list[int] = []
        for piece in self._special_or_added.split(masked):
            ids.extend([piece] if isinstance(piece, int) else self.encode(mask.restore(piece)))
        return ids

    def _chat(self) -> ChatTemplate:
        if self.chat_template is None:
            raise ConfigError(
                "the model file has no chat template (tokenizer.chat_template); pass text or "
                "token ids instead of messages"
            )
        if self._template is None:
            self._template = ChatTemplate(self.chat_template, self._template_tokens)
        return self._template

    # Helpers

    def _checked(self, token_id: int) -> int:
        try:
            index = operator.index(token_id)
        except TypeError:
            raise ConfigError(f"a token id must be an integer, got {token_id!r}") from None
        if not 0 <= index < self.vocab_size:
            raise ConfigError(f"token id {index} is not in [0, {self.vocab_size})")
        return index

    def _text(self, token_id: int) -> str:
        """Text of a token; empty, which no text contains as a token, if it is not UTF-8."""
        try:
            return self.token_table[token_id].decode("utf-8")
        except UnicodeDecodeError:
            return ""

    def _set_literals(self, vocabulary: Vocabulary) -> None:
        special = {self._text(i): i for i in sorted(self.special_token_ids)}
        added: dict[str, int] = {}
        if not self._encoder.finds_added:
            added = {self._text(i): i for i in vocabulary.ids_of(USER_DEFINED)}
        self._special_texts = tuple(text for text in special if text)
        self._added = _Literals({t: i for t, i in added.items() if t not in special})
        self._special_or_added = _Literals(added | special)


class _Literals:
    """Token texts that are found in a text as they stand: leftmost, then longest.

    Candidates are found by their first character, then looked up: one regular expression of all
    texts would take a third of a second to compile for Gemma's 6,249.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {text: i for text, i in ids.items() if text}
        sizes: dict[str, set[int]] = {}
        for text in self._ids:
            sizes.setdefault(text[0], set()).add(len(text))
        self._sizes = {first: sorted(found, reverse=True) for first, found in sizes.items()}
        firsts = "".join(map(re.escape, sorted(sizes)))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def split(self, text: str) -> Iterator[str | int]:
        """The pieces of ``text`` in order: ids where a token stands, non-empty text between."""
        begin = 0
        for match in self._first.finditer(text) if self._first else ():
            at = match.start()
            if at >= begin and (found := self._longest_at(text, at)):
                if at > begin:
                    yield text[begin:at]
                yield self._ids[found]
                begin = at + len(found)
        if begin < len(text):
            yield text[begin:]

    def _longest_at(self, text: str, at: int) -> str:
        parts = (text[at : at + size] for size in self._sizes[text[at]])
        return next((part for part in parts if part in self._ids), "")
