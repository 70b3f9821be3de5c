"""Runs methods over questions into a folder that a killed run can go on in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flarecore import __version__
from flarecore.engine import Engine
from flarecore.eval.answer_log import AnswerLog
from flarecore.eval.answering import answer_all
from flarecore.eval.dataset import EvalData
from flarecore.eval.exemplars import Exemplars, PromptMaker
from flarecore.eval.metrics import text_language
from flarecore.eval.settings import MethodRequest, requested_options
from flarecore.retrieval.passage import Retriever
from flarecore.validation import check_choice, check_int

if TYPE_CHECKING:
    from flarecore.methods import Method

__all__ = ["ANSWERS", "Evaluation", "PromptOptions"]

ANSWERS = "answers"


@dataclass(frozen=True)
class PromptOptions:
    """How questions are asked; see :class:`flarecore.eval.exemplars.PromptMaker`."""

    style: str = "auto"
    num_exemplars: int = 8
    with_passages: bool = True


@dataclass
class Evaluation:
    """What all methods of an evaluation share.

    Parameters
    ----------
    engine : Engine
        With the model.
    data : EvalData
        Questions and passages.
    retriever : Retriever or None
        None is enough for methods that never search. It may be set after :meth:`prepare`.
    retriever_name : str
        What the settings call it.
    exemplars : Exemplars
        Head of every prompt.
    output : Path
        The folder; answers go to ``answers/LABEL.jsonl``.
    prompt : PromptOptions
        How questions are asked.
    language : {"auto", "en", "zh"}
        How answers are scored; ``auto`` looks at each question.
    num_parallel : int
        Answers at the same time.
    settings : sequence of (str, str)
        Options for all methods.
    """

    engine: Engine
    data: EvalData
    retriever: Retriever | None
    retriever_name: str
    exemplars: Exemplars
    output: Path
    prompt: PromptOptions = field(default_factory=PromptOptions)
    language: str = "auto"
    num_parallel: int = 1
    settings: Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        check_choice("--language", self.language, ("auto", "en", "zh"))
        check_int("--parallel", self.num_parallel, 1, 256)

    def prepare(self, request: MethodRequest) -> PreparedRun:
        """A method with everything checked that can be checked before any work.

        Raises
        ------
        ConfigError
            An option is wrong, the method unknown, or the folder holds its answers under other
            settings.
        """
        from flarecore.methods import METHODS, make_method

        placement = requested_options(request, self.settings)[0].placement
        prompts = PromptMaker(
            self.exemplars, has_chat=self.engine.model.tokenizer.chat_template is not None,
            style=self.prompt.style, num_exemplars=self.prompt.num_exemplars,
            with_passages=self.prompt.with_passages, placement=placement)
        config, options = requested_options(
            request, self.settings, template=prompts.template)

        def make(engine: Engine) -> Method:
            return make_method(request.name, engine, self.retriever, config, **options)

        method = make(self.engine)
        settings = {
            "label": request.label, "method": request.name,
            "options": method.own_options, "config": method.config.to_dict(),
            "model": self._model(), "prompt": {
                **prompts.describe(), "exemplars": self.exemplars.name,
                "exemplars_sha256": self.exemplars.sha256},
            # What never searches answers the same with any retriever.
            "retriever": self.retriever_name if METHODS[request.name].needs_retriever else None,
            "language": self.language,
            "data": {"name": self.data.name, "queries_sha256": self.data.queries_sha256,
                     "corpus_sha256": self.data.corpus_sha256},
            "flarecore": __version__}
        run = PreparedRun(self, request, make, prompts, settings)
        AnswerLog(run.file, settings).check()
        return run

    def _model(self) -> dict[str, Any]:
        model = self.engine.model
        return {"name": model.name, "size_bytes": _size_of(model.path),
                "quantize": model.quantize, "compute": self.engine.compute,
                "kv_format": self.engine.kv_format}


@dataclass(frozen=True)
class PreparedRun:
    """One method, ready to answer; made by :meth:`Evaluation.prepare`."""

    evaluation: Evaluation
    request: MethodRequest
    make_method: Callable[[Engine], Method]
    prompts: PromptMaker
    settings: dict[str, Any]

    @property
    def file(self) -> Path:
        """The log of its answers."""
        return self.evaluation.output / ANSWERS / f"{self.request.file_name}.jsonl"

    def run(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Answers what is not answered yet; returns how many answers that were.

        Raises
        ------
        ConfigError
            The folder holds answers under other settings.
        FlarecoreError
            See :func:`flarecore.eval.answering.answer_all`.
        """
        shared = self.evaluation
        questions = shared.data.questions
        languages = [text_language(q.text) if shared.language == "auto" else shared.language
                     for q in questions]
        with AnswerLog(self.file, self.settings) as log, self._own_engine() as engine:
            return answer_all(
                self.make_method(engine), self.prompts, questions, languages, log,
                num_parallel=shared.num_parallel, progress=progress)

    def _own_engine(self) -> Engine:
        """With an empty cache: what one method computed must not make the next one cheaper."""
        shared = self.evaluation.engine
        stats = shared.stats()
        return Engine(shared.model, compute=shared.compute,
                      kv_format=shared.kv_format if shared.model.device == "cpu" else None,
                      kv_cache_bytes=stats.num_blocks * stats.block_size_bytes)


def _size_of(path: Path) -> int:
    """Bytes of a model, which tell two of one name apart without reading gigabytes."""
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    return sum(file.stat().st_size for file in files)
