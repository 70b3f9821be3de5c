"""Exemplars: worked questions that stand at the head of every prompt and set its format."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarecore.codec import loads_object
from flarecore.errors import ConfigError
from flarecore.loop.pieces import fill
from flarecore.loop.prompt import PromptInput
from flarecore.templates import PromptTemplate
from flarecore.validation import check_choice, check_int, unknown_name

__all__ = ["Exemplar", "Exemplars", "PromptMaker", "default_exemplars", "load_exemplars"]

_DATA = Path(__file__).resolve().parent.parent / "data" / "eval"
_BUILT_IN = ("two-hop-en", "single-en", "single-zh")
_STYLES = ("auto", "turns", "system", "text")


@dataclass(frozen=True)
class Exemplar:
    """A worked question.

    Parameters
    ----------
    question, answer : str
        The answer ends in the pattern that :mod:`flarecore.eval.extract` looks for.
    passages : tuple of (str, str)
        (title, text) of what it can be answered from; may be empty.
    """

    question: str
    answer: str
    passages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Exemplars:
    """A file of exemplars.

    Parameters
    ----------
    name : str
        Of the set or its file.
    sha256 : str
        Of the file's bytes.
    language : {"en", "zh"}
        Of the pattern that ends the answers.
    instruction : str
        Stands before them.
    exemplars : tuple of Exemplar
        In order of use: a prompt takes the first ones.
    base, chat : PromptTemplate
        The words around them and around the real question; ``head`` is filled in later.
    """

    name: str
    sha256: str
    language: str
    instruction: str
    exemplars: tuple[Exemplar, ...]
    base: PromptTemplate
    chat: PromptTemplate


def default_exemplars(num_gold: int, language: str) -> str:
    """Name of the built-in set for questions with up to `num_gold` gold passages.

    Chinese has one set; in English, several gold passages take the set that reasons over two facts.
    """
    if language == "zh":
        return "single-zh"
    return "two-hop-en" if num_gold > 1 else "single-en"


def load_exemplars(name_or_file: str | os.PathLike[str]) -> Exemplars:
    """Exemplars of a built-in set (``two-hop-en``, ``single-en``, ``single-zh``) or of a JSON file.

    The file holds ``language`` (``en`` or ``zh``), ``instruction``, ``exemplars`` (a list of
    ``{"question", "answer", "passages": [{"title", "text"}]}``, the passages are optional) and, if
    wanted, ``base`` and ``chat``: pieces of :class:`flarecore.PromptTemplate` that differ from its
    defaults.

    Raises
    ------
    ConfigError
        No such set or file, no JSON, or something is missing, unknown or wrong; says where.
    """
    where = f"exemplars {name_or_file}"
    file = _DATA / f"{name_or_file}.json" if name_or_file in _BUILT_IN else Path(name_or_file)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{where}: {error.strerror or error}; give a file or one of {', '.join(_BUILT_IN)}"
        ) from None
    row = loads_object(where, data)
    known = ("language", "instruction", "exemplars", "base", "chat")
    if unknown := set(row) - set(known):
        raise unknown_name(where, unknown, known)
    return Exemplars(
        name=str(name_or_file), sha256=hashlib.sha256(data).hexdigest(),
        language=check_choice(f"{where}: language", row.get("language"), ("en", "zh")),
        instruction=_string(f"{where}: instruction", row.get("instruction", ""), may_be_empty=True),
        exemplars=_exemplars(where, row.get("exemplars")),
        base=_template(where, "base", row.get("base", {})),
        chat=_template(where, "chat", row.get("chat", {})))


def _string(where: str, value: object, *, may_be_empty: bool = False) -> str:
    if not isinstance(value, str) or not (may_be_empty or value.strip()):
        raise ConfigError(f"{where} must be a string, got {value!r:.80}")
    return value.strip()


def _exemplars(where: str, rows: object) -> tuple[Exemplar, ...]:
    if not isinstance(rows, list):
        raise ConfigError(f"{where}: 'exemplars' must be a list, got {rows!r:.80}")
    return tuple(_exemplar(f"{where}: exemplars[{i}]", row) for i, row in enumerate(rows))


def _exemplar(where: str, row: object) -> Exemplar:
    if not isinstance(row, dict) or set(row) - {"question", "answer", "passages"}:
        raise ConfigError(
            f"{where} must be an object of question, answer and passages, got {row!r:.80}")
    passages = row.get("passages", [])
    if not isinstance(passages, list) or not all(isinstance(p, dict) for p in passages):
        raise ConfigError(f"{where}.passages must be a list of objects, got {passages!r:.80}")
    return Exemplar(
        question=_string(f"{where}.question", row.get("question")),
        answer=_string(f"{where}.answer", row.get("answer")),
        passages=tuple(
            (_string(f"{where}.passages[{i}].title", p.get("title", ""), may_be_empty=True),
             _string(f"{where}.passages[{i}].text", p.get("text")))
            for i, p in enumerate(passages)))


def _template(where: str, kind: str, pieces: object) -> PromptTemplate:
    if not isinstance(pieces, dict) or "kind" in pieces or "head" in pieces:
        raise ConfigError(
            f"{where}: {kind!r} must be an object of template pieces without 'kind' and 'head', "
            f"got {pieces!r:.80}")
    try:
        return PromptTemplate.from_dict({"kind": kind, "head": "", **pieces})
    except ConfigError as error:
        raise ConfigError(f"{where}: {kind}: {error}") from None


class PromptMaker:
    """Makes the prompts of a run; their head is the same for every question.

    Parameters
    ----------
    exemplars : Exemplars
        What to show.
    has_chat : bool
        Whether the model has a chat template.
    style : {"auto", "turns", "system", "text"}
        ``turns``: each exemplar is a turn of the user and one of the assistant. ``system``: all in
        the system message. ``text``: no chat at all, question and answer as running text. ``auto``
        is ``text``, for chat models as well: small ones keep the format best that way.
    num_exemplars : int
        How many; 0 leaves the instruction alone.
    with_passages : bool
        Show the exemplars' passages where evidence will stand.
    placement : str
        ``FlareConfig.placement``: where that is.

    Attributes
    ----------
    style : str
        The style in use.
    template : PromptTemplate
        For ``FlareConfig.template``.

    Raises
    ------
    ConfigError
        An option is wrong, there are not as many exemplars, or the model has no chat.
    """

    def __init__(
        self, exemplars: Exemplars, *, has_chat: bool, style: str = "auto", num_exemplars: int = 8,
        with_passages: bool = True, placement: str = "prefix",
    ) -> None:
        check_choice("prompt style", style, _STYLES)
        self.style = "text" if style == "auto" else style
        if self.style != "text" and not has_chat:
            raise ConfigError(
                f"prompt style {style!r} needs a model with a chat template; use 'text'")
        check_int("num_exemplars", num_exemplars, 0, len(exemplars.exemplars))
        self._shown = exemplars.exemplars[:num_exemplars]
        self._with_passages = with_passages
        self._after_question = placement == "boundary"
        self._instruction = exemplars.instruction
        base = self._pieces = exemplars.base if self.style == "text" else exemplars.chat
        if self.style == "text":
            worked = "".join(self._worked_text(base, e) for e in self._shown)
            head = f"{self._instruction}\n\n{worked}" if self._instruction else worked
            self.template = dataclasses.replace(base, head=head)
            return
        if self.style == "system":
            worked = "".join(self._worked_text(exemplars.base, e) for e in self._shown)
            self._system = f"{self._instruction}\n\n{worked}".strip()
        else:
            self._system = self._instruction
        self.template = dataclasses.replace(base, head=self._system)

    def prompt(self, question: str) -> PromptInput:
        """The prompt of a question, for ``Flare.generate``."""
        if self.style == "text":
            return question
        messages = [{"role": "system", "content": self._system}] if self._system else []
        for exemplar in self._shown if self.style == "turns" else ():
            messages += [{"role": "user", "content": self._asked(self._pieces, exemplar)},
                         {"role": "assistant", "content": exemplar.answer}]
        return [*messages, {"role": "user", "content": fill(
            self._pieces.question, question=question)}]

    def describe(self) -> dict[str, Any]:
        """What a run's settings say about the prompt."""
        return {"style": self.style, "num_exemplars": len(self._shown),
                "exemplar_passages": self._with_passages}

    def _asked(self, template: PromptTemplate, exemplar: Exemplar) -> str:
        """An exemplar's question and passages, laid out as the real ones will be."""
        question = fill(template.question, question=exemplar.question)
        if not self._with_passages or not exemplar.passages:
            return question
        passages = "".join(
            fill(template.passage, number=str(number), title=title, text=text, id=str(number))
            for number, (title, text) in enumerate(exemplar.passages, start=1))
        if self._after_question:
            return question + fill(template.first_evidence, passages=passages)
        return fill(template.prefix_evidence, passages=passages) + question

    def _worked_text(self, base: PromptTemplate, exemplar: Exemplar) -> str:
        # No space after "回答：", as Chinese has none.
        gap = "" if base.answer.endswith(("：", "\n")) else " "
        return f"{self._asked(base, exemplar)}{base.answer}{gap}{exemplar.answer}\n\n"
