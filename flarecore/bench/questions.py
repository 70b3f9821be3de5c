"""Questions and passages for the loop: the demonstration's, or a folder's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarecore.bench.harness import Progress, no_progress
from flarecore.errors import ConfigError
from flarecore.retrieval.passage import Retriever
from flarecore.templates import PromptTemplate

__all__ = ["LoopQuestions", "QuestionSource"]

# Questions over the demonstration's passages, of several sentences each.
_DEMO_QUESTIONS = (
    "Who was Ilse Marwede, and what is she known for?",
    "Who is Noor Haddarian, and what is she known for?",
    "What are the rules for flights in 2026?",
)


@dataclass(frozen=True)
class QuestionSource:
    """Where questions come from.

    Attributes
    ----------
    folder : Path or None
        Holds ``queries.jsonl`` (``question`` a line) and ``corpus.jsonl`` (``id``, ``title``,
        ``text``); None: the demonstration's knowledge base.
    """

    folder: Path | None = None


@dataclass(frozen=True)
class LoopQuestions:
    """Questions with a retriever over their passages.

    Attributes
    ----------
    name : str
        What they are, in tables.
    questions : sequence of str
    retriever : Retriever
    template : PromptTemplate or None
        None: the model's default.
    """

    name: str
    questions: Sequence[str]
    retriever: Retriever
    template: PromptTemplate | None

    @classmethod
    def open(cls, source: QuestionSource, progress: Progress = no_progress) -> LoopQuestions:
        """Reads the questions and builds the index.

        Raises
        ------
        ConfigError
            A file is missing or a line is wrong; names file and line.
        """
        from flarecore.cli.demo_data import demo_template
        from flarecore.retrieval import BM25Retriever, read_passages

        template = demo_template()
        if source.folder is None:
            from flarecore.cli.demo_data import DATA

            retriever = BM25Retriever.build(read_passages(DATA), progress=progress)
            return cls("the demonstration's questions", _DEMO_QUESTIONS, retriever, template)
        questions = _read_questions(source.folder / "queries.jsonl")
        passages = read_passages(source.folder / "corpus.jsonl")
        retriever = BM25Retriever.build(passages, progress=progress)
        name = f"{source.folder.resolve().name}, {len(passages)} passages"
        return cls(name, questions, retriever, template)


def _read_questions(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    questions = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
            question = record["question"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}, line {number}: no object with \"question\"") from error
        if not isinstance(question, str) or not question.strip():
            raise ConfigError(f"{path}, line {number}: \"question\" must be text")
        questions.append(question)
    if not questions:
        raise ConfigError(f"{path} holds no question")
    return questions
