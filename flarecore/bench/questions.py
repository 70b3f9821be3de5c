"""Questions and passages for loop and retrieval: the demonstration's, or a folder's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flarecore.bench.harness import Progress, no_progress
from flarecore.demo_data import DATA, demo_template
from flarecore.eval.dataset import data_files, load_data
from flarecore.eval.exemplars import PromptMaker, default_exemplars, load_exemplars
from flarecore.eval.metrics import text_language
from flarecore.retrieval.passage import Passage, Retriever
from flarecore.templates import PromptTemplate

__all__ = ["LoopQuestions", "QuestionSource", "SourceTexts"]

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
        In the layout of ``flarecore eval``; None: the demonstration's knowledge base.
    prefix : str
        Of its files, see :func:`flarecore.eval.dataset.load_data`.

    Raises
    ------
    ConfigError
        The folder or one of its files is not there.
    """

    folder: Path | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        if self.folder is not None:
            data_files(self.folder, self.prefix)


@dataclass(frozen=True)
class SourceTexts:
    """What a source holds.

    Attributes
    ----------
    name : str
        What it is, in tables.
    questions : sequence of str
    passages : sequence of Passage
    template : PromptTemplate or None
        None: the model's default.
    """

    name: str
    questions: Sequence[str]
    passages: Sequence[Passage]
    template: PromptTemplate | None

    @classmethod
    def read(cls, source: QuestionSource, progress: Progress = no_progress) -> SourceTexts:
        """Reads questions and passages.

        Raises
        ------
        ConfigError
            A file is missing or a line is wrong; names file and line.
        """
        from flarecore.retrieval import read_passages

        if source.folder is None:
            return cls("the demonstration's questions", _DEMO_QUESTIONS, read_passages(DATA),
                       demo_template())
        data = load_data(source.folder, prefix=source.prefix, progress=progress)
        language = text_language(data.questions[0].text)
        exemplars = load_exemplars(default_exemplars(data.num_gold, language))
        # Running text keeps a small model in the format, whether it knows a chat or not.
        prompts = PromptMaker(exemplars, has_chat=False, style="text")
        return cls(f"{data.name}, {len(data.passages)} passages",
                   [question.text for question in data.questions], data.passages,
                   prompts.template)


@dataclass(frozen=True)
class LoopQuestions:
    """Questions with a retriever over their passages.

    Attributes
    ----------
    name : str
        What they are, in tables.
    questions : sequence of str
    retriever : Retriever
        BM25, as in the paper.
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
        UnsupportedError
            bm25s is not installed.
        """
        from flarecore.retrieval import BM25Retriever

        texts = SourceTexts.read(source, progress)
        retriever = BM25Retriever.build(texts.passages, progress=progress)
        return cls(texts.name, texts.questions, retriever, texts.template)
