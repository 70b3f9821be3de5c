"""From what the user gives (a question, chat messages, token ids) to a :class:`Prompt`."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from flarecore.errors import ConfigError
from flarecore.loop.interfaces import TokenizerLike
from flarecore.loop.pieces import PieceEncoder, Segment, fill
from flarecore.loop.prompt import Block, Prompt, PromptInput
from flarecore.templates import PromptTemplate, split_piece
from flarecore.validation import check_int, check_unicode

__all__ = ["PromptBuilder", "check_text"]


class PromptBuilder:
    """Builds prompts for one tokenizer.

    Parameters
    ----------
    tokenizer : TokenizerLike
        The model's tokenizer.
    template : PromptTemplate or None
        None: the default for the model (chat if it has a chat template), and for token ids the
        base template without its stop strings.

    Raises
    ------
    ConfigError
        A chat template was given for a model that has none.
    """

    def __init__(self, tokenizer: TokenizerLike, template: PromptTemplate | None) -> None:
        has_chat = tokenizer.chat_template is not None
        if template is not None and template.kind == "chat" and not has_chat:
            raise ConfigError(
                "the template is of kind 'chat', but the model has no chat template; "
                "use PromptTemplate.base()")
        self._tokenizer = tokenizer
        self._template = template or (
            PromptTemplate.chat() if has_chat else PromptTemplate.base())
        self._ids_template = template or PromptTemplate.base(stop=())
        self._pieces = PieceEncoder(tokenizer)

    @property
    def template(self) -> PromptTemplate:
        """The template of questions and messages."""
        return self._template

    def build(
        self, prompt: PromptInput, *, question: str | None = None,
        num_head_tokens: int | None = None, vocab_size: int,
    ) -> tuple[Prompt, PromptTemplate]:
        """The prompt, and the template its passages are rendered with.

        Parameters
        ----------
        prompt : str, list of messages or list of int
            A question; chat messages, the last one the user's; or token ids after which the
            answer begins.
        question : str or None
            Text for queries; None: the question, or the last message.
        num_head_tokens : int or None
            Token ids only: how many of them stay before the evidence in placement ``prefix``;
            None: only a begin-of-sequence token.
        vocab_size : int
            Ids must be below it.

        Raises
        ------
        ConfigError
            The prompt is empty or malformed, or does not suit the template.
        """
        if question is not None:
            check_text("question", question)
        if num_head_tokens is not None and (isinstance(prompt, str) or _holds_messages(prompt)):
            raise ConfigError("num_head_tokens goes with a prompt of token ids only")
        if isinstance(prompt, str):
            check_text("prompt", prompt)
            return self._from_question(prompt, question or prompt), self._template
        if _holds_messages(prompt):
            messages = _check_messages(prompt)
            return self._from_messages(
                messages, question or messages[-1]["content"]), self._template
        ids = _check_ids(prompt, vocab_size)
        if num_head_tokens is None:
            num_head_tokens = int(ids[0] == self._tokenizer.bos_token_id)
        num_head = check_int("num_head_tokens", num_head_tokens, 0, len(ids))
        return self._from_ids(ids, num_head, question), self._ids_template

    def _from_question(self, text: str, question: str) -> Prompt:
        template = self._template
        if template.kind == "chat":
            content = fill(template.question, question=text)
            messages = [{"role": "system", "content": template.head}] if template.head else []
            return self._from_messages(
                [*messages, {"role": "user", "content": content}], question)
        head = tuple(self._tokenizer.encode(
            template.head, add_bos=self._tokenizer.adds_bos, parse_special=True))
        asked = self._pieces.filled(template.question, question=text)
        opening = self._pieces.encode([(template.answer, True)])
        return Prompt(
            token_ids=head + asked + opening, head=head, question=asked, opening=opening,
            prefix_block=self._block(template.prefix_evidence),
            first_block=self._block(template.first_evidence),
            boundary_block=self._block(template.boundary_evidence),
            question_text=question, turn=None, stop=template.stop)

    def _from_messages(self, messages: list[dict[str, str]], question: str) -> Prompt:
        template = self._template
        if template.kind != "chat":
            raise ConfigError(
                "chat messages need a model with a chat template and a template of kind 'chat'; "
                "pass the question as text or the prompt as token ids")
        segments = self._chat_segments(messages)
        *head_segments, asked_segment, opening_segment = segments
        head, asked = self._pieces.encode(head_segments), self._pieces.encode([asked_segment])
        opening = self._pieces.encode([opening_segment])
        # Encoded whole, as the model knows its chats; the runs are equal to it but for odd white
        # space around a message.
        whole = self._tokenizer.encode_chat(messages, add_generation_prompt=True)
        turn = self._turn(messages)
        return Prompt(
            token_ids=tuple(whole), head=head, question=asked, opening=opening,
            prefix_block=self._block(template.prefix_evidence),
            first_block=self._block(template.first_evidence),
            boundary_block=self._block(template.boundary_evidence, turn),
            question_text=question, turn=turn, stop=template.stop)

    def _from_ids(self, ids: tuple[int, ...], num_head: int, question: str | None) -> Prompt:
        template = self._ids_template
        turn = self._turn([{"role": "user", "content": "-"}]) if template.kind == "chat" else None
        boundary = self._block(template.boundary_evidence, turn)
        return Prompt(
            token_ids=ids, head=ids[:num_head], question=ids[num_head:], opening=(),
            prefix_block=self._block(template.prefix_evidence),
            # Where the answer's opening begins is not known, so evidence comes after it.
            first_block=boundary, boundary_block=boundary,
            question_text=question, turn=turn, stop=template.stop)

    def _chat_segments(self, messages: list[dict[str, str]]) -> list[Segment]:
        """The rendered chat, cut at the last message and at messages with special-token text."""
        marker = _marker(messages)
        marked = [dict(m) for m in messages]
        plain: list[str] = []
        for position, message in enumerate(messages):
            if position == len(messages) - 1 or self._pieces.has_special(message["content"]):
                marked[position]["content"] = f"{marker}{len(plain)}{marker}"
                plain.append(message["content"])
        rest = self._tokenizer.render_chat(marked, add_generation_prompt=True)
        segments: list[Segment] = []
        for number, content in enumerate(plain):
            literal, rest = _split_once(rest, f"{marker}{number}{marker}")
            segments += [(literal, True), (content, False)]
        return [*segments, (rest, True)]

    def _turn(self, messages: list[dict[str, str]]) -> Block:
        """What closes the assistant's turn and opens the user's, and the other way round."""
        marker = _marker(messages)
        answer, given = f"{marker}a{marker}", f"{marker}e{marker}"
        rendered = self._tokenizer.render_chat(
            [*messages, {"role": "assistant", "content": answer},
             {"role": "user", "content": given}], add_generation_prompt=True)
        _, rest = _split_once(rendered, answer)
        close, reopen = _split_once(rest, given)
        return Block(self._pieces.encode([(close, True)]), self._pieces.encode([(reopen, True)]))

    def _block(self, piece: str, turn: Block | None = None) -> Block:
        """An evidence piece, encoded before and after its ``{passages}``, in a turn of its own."""
        (before, _), *rest = split_piece(piece)
        after = "".join(literal for literal, _ in rest)
        inner = Block(self._pieces.encode([(before, True)]), self._pieces.encode([(after, True)]))
        return inner if turn is None else Block(
            turn.before + inner.before, inner.after + turn.after)


def _marker(messages: Sequence[Mapping[str, str]]) -> str:
    """Text that stands in no message."""
    marker, number = "@@0@@", 0
    while any(marker in m["content"] for m in messages):
        number += 1
        marker = f"@@{number}@@"
    return marker


def _split_once(text: str, marker: str) -> tuple[str, str]:
    parts = text.split(marker)
    if len(parts) != 2:
        raise ConfigError(
            f"the model's chat template shows a message {len(parts) - 1} times, so the place of "
            "the evidence is unclear; pass the prompt as token ids")
    return parts[0], parts[1]


def _holds_messages(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def check_text(where: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{where} must be a string that is not empty, got {text!r}")
    check_unicode(where, text)


def _check_messages(prompt: Any) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = []
    for position, message in enumerate(prompt):
        where = f"message {position}"
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise ConfigError(f"{where} must be an object with role and content, got {message!r}")
        if not isinstance(message["role"], str) or not isinstance(message["content"], str):
            raise ConfigError(f"{where}: role and content must be strings, got {message!r}")
        messages.append(dict(message))
    if messages[-1]["role"] != "user":
        raise ConfigError(
            f"the last message must be the user's, got role {messages[-1]['role']!r}")
    check_text("the last message's content", messages[-1]["content"])
    return messages


def _check_ids(prompt: Any, vocab_size: int) -> tuple[int, ...]:
    if isinstance(prompt, (bytes, Mapping)) or not hasattr(prompt, "__iter__"):
        raise ConfigError(
            "prompt must be a question (string), a list of chat messages or a list of token ids, "
            f"got {type(prompt).__name__}")
    ids = list(prompt)
    if not ids:
        raise ConfigError("prompt must hold at least one token id or message, got an empty list")
    for position, token_id in enumerate(ids):
        integral = isinstance(token_id, numbers.Integral) and not isinstance(token_id, bool)
        if not integral or not 0 <= token_id < vocab_size:
            raise ConfigError(
                f"prompt[{position}] must be a token id in [0, {vocab_size}), got {token_id!r}")
    return tuple(int(token_id) for token_id in ids)
