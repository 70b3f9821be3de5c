"""Prompt templates: the words around question, passages and answer, as data a user can change."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from string import Formatter
from typing import Any

from flarecore.errors import ConfigError
from flarecore.validation import (
    check_choice,
    check_strings,
    check_unicode,
    named_options,
    unknown_name,
)

__all__ = ["FEW_SHOT_HEAD", "PromptTemplate", "split_piece"]

FEW_SHOT_HEAD = """\
Answer each question in a few full sentences. State one fact per sentence and end with the result.

Question: Which of the two rivers is longer, the Rhine or the Elbe?
Answer: The Rhine is about 1,230 kilometres long. The Elbe is about 1,090 kilometres long. \
So the longer river is the Rhine.

Question: In which country was the inventor of dynamite born?
Answer: Dynamite was invented by Alfred Nobel. Alfred Nobel was born in Stockholm. \
Stockholm is the capital of Sweden. So the inventor of dynamite was born in Sweden.

Question: Did the composer of The Magic Flute reach the age of forty?
Answer: The Magic Flute was composed by Wolfgang Amadeus Mozart. Mozart was born in January 1756. \
He died in December 1791, aged thirty-five. So the composer did not reach the age of forty.

"""
"""Exemplars for models without a chat template: full sentences, one fact each, result last."""

_SYSTEM = "Answer the question in a few complete sentences, one fact per sentence."

# Per piece: placeholders that must occur exactly once, and those that may.
_PLACEHOLDERS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "head": (frozenset(), frozenset()),
    "question": (frozenset({"question"}), frozenset()),
    "answer": (frozenset(), frozenset()),
    "passage": (frozenset({"text"}), frozenset({"number", "title", "id"})),
    "parallel_passage": (frozenset({"text"}), frozenset({"title", "id"})),
    "prefix_evidence": (frozenset({"passages"}), frozenset()),
    "first_evidence": (frozenset({"passages"}), frozenset()),
    "boundary_evidence": (frozenset({"passages"}), frozenset()),
    "question_query": (frozenset({"span"}), frozenset({"sentence", "question"})),
    "keyword_query": (frozenset(), frozenset({"sentence", "question"})),
}


def split_piece(piece: str) -> list[tuple[str, str | None]]:
    """A template piece as (literal text, placeholder that follows or None) pairs."""
    return [(literal, name) for literal, name, _, _ in Formatter().parse(piece)]


@named_options
@dataclass(frozen=True, kw_only=True)
class PromptTemplate:
    """The text pieces that prompts are put together from.

    Pieces are encoded one by one, so a piece has the same tokens wherever it stands. A literal
    brace is written twice. Special-token text counts as special in `head`, `answer`, the question
    of a base template, the evidence and the query pieces, and never in what is filled in.

    Parameters
    ----------
    kind : {"base", "chat"}
        For a model without or with a chat template. Roles and turns of a chat come from the
        model's own chat template; the pieces are what stands inside the turns.
    head : str
        Base: instruction and exemplars, the constant head of every prompt. Chat: the system
        message (empty: none).
    question : str
        Holds ``{question}``. Chat: the user's message.
    answer : str
        Opens the answer. Chat: must be empty, the chat template opens the turn.
    passage : str
        One passage: ``{text}`` and, if wanted, ``{number}`` (from 1), ``{title}``, ``{id}``.
        Should end in a newline, so that passages can be encoded one by one.
    prefix_evidence : str
        Holds ``{passages}``; stands before the question (placement ``prefix``).
    first_evidence : str
        Holds ``{passages}``; stands after the question while there is no answer yet (placement
        ``boundary``).
    boundary_evidence : str
        Holds ``{passages}``; stands after the answer so far (placement ``boundary``). Chat: the
        message of a turn of its own, with the instruction to continue. Base: must lead the model
        back to running text, so it should not end in white space.
    question_query : str
        Stands after a draft and makes the model write a question (``FlareConfig.query``): holds
        ``{span}``, the answer, and, if wanted, ``{sentence}``, the draft, and ``{question}``, the
        user's. Chat: the message of a turn of its own. Base: should not end in white space.
    keyword_query : str
        Makes the model write keywords; as above, without ``{span}``.
    parallel_passage : str
        One passage that is encoded on its own, right behind what stands before the question
        (placement ``parallel``): ``{text}`` and, if wanted, ``{title}``, ``{id}``. It has no number
        and must say by itself what it is, since it stands in many places at once.
    stop : tuple of str
        Stop strings that go with the template, in addition to ``FlareConfig.stop``.

    Raises
    ------
    ConfigError
        A piece is not a string, has a placeholder it must not have or lacks one; the message
        names the piece.
    """

    kind: str
    head: str
    question: str
    answer: str
    passage: str
    prefix_evidence: str
    first_evidence: str
    boundary_evidence: str
    question_query: str
    keyword_query: str
    parallel_passage: str = "Search result: {text}\n"
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("PromptTemplate.kind", self.kind, ("base", "chat"))
        for name in _PLACEHOLDERS:
            _check_piece(name, getattr(self, name))
        if self.kind == "chat" and self.answer:
            raise ConfigError(
                "PromptTemplate.answer must be empty for kind='chat' (the model's chat template "
                f"opens the assistant's turn), got {self.answer!r}")
        object.__setattr__(self, "stop", check_strings("PromptTemplate.stop", self.stop))

    @classmethod
    def base(cls, **changes: Any) -> PromptTemplate:
        """For a model without a chat template: exemplars, then question and answer as text."""
        pieces: dict[str, Any] = {
            "kind": "base",
            "head": FEW_SHOT_HEAD,
            "question": "Question: {question}\n",
            "answer": "Answer:",
            "passage": "[{number}]: {text}\n",
            "prefix_evidence": "Search results:\n{passages}",
            "first_evidence": "Search results:\n{passages}",
            "boundary_evidence": "\n\nSearch results:\n{passages}Answer (continued):",
            "question_query":
                '\n\nText: {sentence}\nThe answer to the following question about it is "{span}".'
                "\nQuestion:",
            "keyword_query": "\n\nText: {sentence}\nSearch terms:",
            "stop": ("\nQuestion:",),
        }
        return cls(**pieces | changes)

    @classmethod
    def chat(cls, **changes: Any) -> PromptTemplate:
        """For a model with a chat template."""
        pieces: dict[str, Any] = {
            "kind": "chat",
            "head": _SYSTEM,
            "question": "{question}",
            "answer": "",
            "passage": "[{number}]: {text}\n",
            "prefix_evidence": "Search results:\n{passages}\n",
            "first_evidence": "\n\nSearch results:\n{passages}",
            "boundary_evidence":
                "Search results:\n{passages}\nContinue your answer with its next sentence, using "
                "the search results where they help. Do not repeat what you have already said.",
            "question_query":
                'Write one question that "{span}", as used in your last sentence, answers. It must '
                "be understood without your answer. Write nothing but the question.",
            "keyword_query":
                "Turn this sentence into a short web search query, keywords only: {sentence}",
        }
        return cls(**pieces | changes)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PromptTemplate:
        """The default of the given `kind` with the other pieces replaced.

        Raises
        ------
        ConfigError
            `kind` is missing, a name is unknown or a piece is wrong.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"template must be an object of pieces, got {type(data).__name__}")
        known = [f.name for f in dataclasses.fields(cls)]
        if unknown := set(data) - set(known):
            raise unknown_name("PromptTemplate", unknown, known)
        kind = check_choice("PromptTemplate.kind", data.get("kind"), ("base", "chat"))
        return (cls.base if kind == "base" else cls.chat)(**data)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> PromptTemplate:
        """The template in a JSON file: an object of pieces, as for :meth:`from_dict`.

        Raises
        ------
        ConfigError
            The file cannot be read, is no JSON or holds a wrong piece; the message says where.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"template {path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"template {path}: not JSON: {error}") from None
        try:
            return cls.from_dict(data)
        except ConfigError as error:
            raise ConfigError(f"template {path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values; :meth:`from_dict` gives an equal template back."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["stop"] = list(self.stop)
        return values


def _check_piece(name: str, piece: object) -> None:
    where = f"PromptTemplate.{name}"
    if not isinstance(piece, str):
        raise ConfigError(f"{where} must be a string, got {type(piece).__name__}")
    check_unicode(where, piece)
    required, optional = _PLACEHOLDERS[name]
    try:
        parsed = list(Formatter().parse(piece))
    except ValueError as error:
        raise ConfigError(
            f"{where}: {error} in {piece!r}; write a literal brace twice") from None
    seen: list[str] = []
    for literal, field, spec, conversion in parsed:
        if field is None:
            continue
        if field not in required | optional or spec or conversion:
            allowed = ", ".join(f"{{{f}}}" for f in sorted(required | optional)) or "none"
            shown = field + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise ConfigError(
                f"{where}: unexpected placeholder {{{shown}}} after {literal[-20:]!r}; allowed "
                f"here: {allowed}, without format; write a literal brace twice")
        seen.append(field)
    for field in sorted(required):
        if seen.count(field) != 1:
            raise ConfigError(
                f"{where} must hold {{{field}}} exactly once, got it {seen.count(field)} times in "
                f"{piece!r}")
