"""Text to token ids and back, built from the files of a model."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flarecore.errors import ConfigError
from flarecore.tokenizer.chat_template import ChatTemplate, plain_messages
from flarecore.tokenizer.literals import Literals
from flarecore.tokenizer.parts import TokenizerParts, gguf_parts
from flarecore.tokenizer.special_mask import SpecialMask, SpecialTexts, strings_of

__all__ = ["Tokenizer"]


class Tokenizer:
    """Token ids, bytes and text of one model.

    Make one with :meth:`from_gguf`, :meth:`from_metadata` or :meth:`from_directory`. Thread-safe:
    nothing changes after construction.

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
        The model expects prompts to begin with BOS.
    chat_template : str or None
        Source of the model's chat template.
    token_table : list of bytes, (vocab_size,)
        Exact bytes of every id; a special token's are its text.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._encoder = parts.encoder
        self.token_table = parts.encoder.token_table
        self.vocab_size = len(self.token_table)
        self.special_token_ids = parts.special_ids
        self.eos_token_ids = parts.end_ids
        self.bos_token_id = parts.bos_id
        self.adds_bos = parts.adds_bos and parts.bos_id is not None
        self.chat_template = parts.chat_template
        self._template: ChatTemplate | None = None
        self._template_tokens = {
            f"{name}_token": self._text(i) for name, i in parts.template_ids.items()
        }
        special = {self._text(i): i for i in sorted(parts.special_ids)}
        added = {self._text(i): i for i in parts.added_ids}
        self._special_texts = SpecialTexts([text for text in special if text])
        self._added = Literals({t: i for t, i in added.items() if t not in special})
        self._special_or_added = Literals(added | special, parts.strips_left, parts.strips_right)

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
        return cls(gguf_parts(metadata, pre))

    @classmethod
    def from_directory(
        cls,
        directory: str | os.PathLike[str],
        *,
        vocab_size: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Tokenizer:
        """The tokeniser of a checkpoint in the Hugging Face format.

        Reads ``tokenizer.json`` (BPE, byte-level or with byte fallback) and, where they are there,
        ``tokenizer_config.json``, ``generation_config.json`` and ``chat_template.jinja``.

        Parameters
        ----------
        directory : str or path-like
            Where the files lie.
        vocab_size : int, optional
            Rows of the model's embedding. Ids that the tokeniser does not name are tokens without
            text; added tokens beyond it are left out. None takes what the tokeniser names.
        config : mapping, optional
            The model's ``config.json``, for the ids of its first and last tokens.

        Raises
        ------
        ModelFileError
            A file is missing or damaged, or ids and `vocab_size` do not fit.
        UnsupportedError
            The tokeniser is of another kind.
        """
        from flarecore.tokenizer.hugging_face import checkpoint_parts

        return cls(checkpoint_parts(Path(directory), vocab_size, config or {}))

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
        ids.extend(self._encode_pieces(literals.split(text)))
        return ids

    def _encode_pieces(self, pieces: Iterable[str | int], at_start: bool = True) -> Iterator[int]:
        """Ids of pieces; `at_start`: they begin the whole text."""
        for number, piece in enumerate(pieces):
            if isinstance(piece, int):
                yield piece
            else:
                yield from self._encoder.encode(piece, at_start and number == 0)

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
        for number, piece in enumerate(self._special_or_added.split(masked)):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                parts = self._added.split(mask.restore(piece))
                ids.extend(self._encode_pieces(parts, at_start=number == 0))
        return ids

    def _chat(self) -> ChatTemplate:
        if self.chat_template is None:
            raise ConfigError(
                "the model has no chat template (tokenizer.chat_template in a GGUF file); pass "
                "text or token ids instead of messages"
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
