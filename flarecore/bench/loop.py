"""The whole loop: flarecore's modes, and the same loop around llama.cpp and transformers.

Every engine answers the same questions with the same prompts, triggers, query rules and retriever;
see :mod:`flarecore.bench.loop_engines` for how the peers are asked. Texts differ a little, since
each engine has its own arithmetic: times are per accepted sentence and per accepted token, counts
per token kept.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flarecore.bench.harness import Case, Quantiles, ratios, run_rounds
from flarecore.bench.llama_runner import LlamaRunner
from flarecore.bench.loop_engines import PeerEngine
from flarecore.bench.proofs import prove_equal
from flarecore.bench.questions import LoopQuestions, QuestionSource
from flarecore.bench.rows import Report, Row
from flarecore.bench.session import Session
from flarecore.bench.transformers_runner import TransformersRunner
from flarecore.config import FlareConfig
from flarecore.engine import Engine
from flarecore.errors import ConfigError
from flarecore.flare import Flare
from flarecore.loop.interfaces import EngineLike
from flarecore.passage_file import PassageKvFile
from flarecore.result import FlareResult

__all__ = ["KeptPassages", "LoopOptions", "Mode", "measure", "own_modes", "peer_modes"]


@dataclass(frozen=True)
class LoopOptions:
    """Sizes and options of the loop.

    Attributes
    ----------
    source : QuestionSource
        Where questions and passages come from.
    num_questions : int
        Answered in each run.
    num_slow_questions : int
        So many of them by engines that compute every context anew.
    theta, beta : float
    k : int
        Passages per search.
    max_new_tokens, max_draft_tokens : int
        Of an answer and of a sentence; published code asks for so many tokens each time.
    """

    source: QuestionSource = field(default_factory=QuestionSource)
    num_questions: int = 8
    num_slow_questions: int = 1
    theta: float = 0.8
    beta: float = 0.4
    k: int = 3
    max_new_tokens: int = 128
    max_draft_tokens: int = 64

    def __post_init__(self) -> None:
        if min(self.num_questions, self.num_slow_questions) < 1:
            raise ConfigError(
                f"num_questions and num_slow_questions must be >= 1, got {self.num_questions} and "
                f"{self.num_slow_questions}")

    def config(self, questions: LoopQuestions, **changes: Any) -> FlareConfig:
        """The loop's options for these questions."""
        return FlareConfig(
            theta=self.theta, beta=self.beta, k=self.k, max_new_tokens=self.max_new_tokens,
            max_draft_tokens=self.max_draft_tokens, template=questions.template, **changes)


class Mode:
    """A way to run the loop: one answer after the other, if :meth:`write` does not say otherwise.

    Parameters
    ----------
    name : str
        Who, in tables.
    config : FlareConfig
    questions : LoopQuestions
    open_engine : callable
        Makes an engine that has seen nothing, before every run.
    num_questions : int
    is_slow : bool
        Takes minutes: it runs once, apart from the others.
    """

    def __init__(
        self, name: str, config: FlareConfig, questions: LoopQuestions,
        open_engine: Callable[[], EngineLike], num_questions: int, *, is_slow: bool = False,
    ) -> None:
        self.name = name
        self.config = config
        self.is_slow = is_slow
        self.answers: list[FlareResult] = []
        self._questions = questions
        self._open_engine = open_engine
        self._num_questions = num_questions
        self._engine: Any = None
        self.on_close: Callable[[Any], None] | None = None

    def prepare(self) -> None:
        """Opens an engine that remembers nothing of the run before."""
        self.close()
        self._engine = self._open_engine()

    def run(self) -> None:
        """Answers all questions."""
        flare = Flare(self._engine, self._questions.retriever, self.config)
        self.answers = self.write(flare, self._questions.questions[:self._num_questions])

    def write(self, flare: Flare, questions: Sequence[str]) -> list[FlareResult]:
        """The answers, in the order of the questions."""
        return [flare.generate(question) for question in questions]

    def total(self, count: str) -> int:
        """Sum of a count of ``FlareStats`` over the answers of the last run."""
        return sum(getattr(answer.stats, count) for answer in self.answers)

    def case(self) -> Case:
        """This mode, to be timed."""
        return Case(self.name, self.run, self.prepare)

    def close(self) -> None:
        """Closes its engine."""
        if self._engine is not None and self.answers and self.on_close is not None:
            self.on_close(self._engine)
        close = getattr(self._engine, "close", None)
        if close is not None:
            close()
        self._engine = None


class KeptPassages:
    """A file of the passages that a first run encoded, for the engines of later ones.

    Parameters
    ----------
    session : Session
        Model and arithmetic.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._folder = tempfile.TemporaryDirectory(prefix="flarecore-bench-")
        self._file = Path(self._folder.name) / "passages.kv"

    def open_engine(self) -> Engine:
        """An engine that has seen nothing but these passages."""
        engine = self._session.own.open_engine()
        if self._file.exists():
            engine.passages.attach_file(PassageKvFile.open(self._file, engine))
        return engine

    def keep(self, engine: Engine) -> None:
        """Writes what the first run encoded."""
        if not self._file.exists():
            PassageKvFile.write(self._file, engine, engine.passages.passages())

    def close(self) -> None:
        """Removes the file."""
        self._folder.cleanup()


def own_modes(
    session: Session, options: LoopOptions, questions: LoopQuestions, kept: KeptPassages
) -> list[Mode]:
    """flarecore's placements; the first without proposals, the last with passages from a file."""
    def mode(name: str, opener: Callable[[], EngineLike] = session.own.open_engine,
             **changes: Any) -> Mode:
        return Mode(f"flarecore {name}", options.config(questions, **changes), questions, opener,
                    options.num_questions)

    on_file = mode("parallel, kept passages", kept.open_engine, placement="parallel")
    on_file.on_close = kept.keep
    return [
        mode("prefix", placement="prefix"),
        mode("prefix, no proposals", placement="prefix", speculative=False),
        mode("boundary", placement="boundary"),
        mode("parallel", placement="parallel"),
        on_file,
    ]


def peer_modes(session: Session, options: LoopOptions, questions: LoopQuestions) -> list[Mode]:
    """The same loop around the peers: the paper's placement, drafts written whole or not."""
    config = options.config(questions, placement="prefix", speculative=False)
    modes = []
    for peer in session.peers:
        if isinstance(peer, LlamaRunner):
            for whole, how in ((False, "to the sentence's end"), (True, "whole drafts")):
                def open_engine(peer: LlamaRunner = peer, whole: bool = whole) -> EngineLike:
                    peer.open_text(session.model.config.context_length)
                    return PeerEngine(peer, session.model, whole_drafts=whole)

                modes.append(Mode(f"{peer.name}, {how}", config, questions, open_engine,
                                  options.num_questions))
        elif isinstance(peer, TransformersRunner):
            def open_slow(peer: TransformersRunner = peer) -> EngineLike:
                return PeerEngine(peer, session.model, whole_drafts=True)

            modes.append(Mode(f"{peer.name}, no cache", config, questions, open_slow,
                              options.num_slow_questions, is_slow=True))
    return modes


def measure(session: Session, options: LoopOptions) -> Report:
    """A row per mode: wall time of an accepted sentence and token, and what a kept token cost.

    Raises
    ------
    ProofError
        flarecore's modes of one placement differ in their answers.
    """
    questions = LoopQuestions.open(options.source, session.progress)
    kept = KeptPassages(session)
    own = own_modes(session, options, questions, kept)
    modes = [*own, *peer_modes(session, options, questions)]
    slow = [mode for mode in modes if mode.is_slow]
    try:
        fast_seconds = run_rounds(
            [mode.case() for mode in modes if not mode.is_slow], session.options.rounds,
            stage="loop", progress=session.progress)
        # Minutes a run: once is enough to tell tens of times from none.
        slow_seconds = run_rounds([mode.case() for mode in slow], 1, warmup=0, stage="loop, slow",
                                  progress=session.progress) if slow else {}
        _prove(own)
        rows = [_row(mode, own[0], fast_seconds, slow_seconds, questions)
                for mode in modes]
    finally:
        for mode in modes:
            mode.close()
        kept.close()
    return session.report("loop", rows, [
        "the answers are the same with and without proposals, and with passages from a file, "
        "token by token"])


def _prove(own: Sequence[Mode]) -> None:
    """Proposals change no token, and neither does where passages were kept."""
    for first, second, what in ((0, 1, "with proposals"), (3, 4, "with computed passages")):
        for got, expected in zip(own[first].answers, own[second].answers, strict=True):
            prove_equal(f"an answer {what}", got.token_ids, expected.token_ids)


def _row(
    mode: Mode, first: Mode, fast: dict[str, tuple[float, ...]],
    slow: dict[str, tuple[float, ...]], questions: LoopQuestions,
) -> Row:
    seconds = slow[mode.name] if mode.is_slow else fast[mode.name]
    num_sentences = max(mode.total("num_sentences"), 1)
    num_tokens = max(mode.total("num_tokens"), 1)
    num_accepted = mode.total("num_accepted")
    values: dict[str, Any] = {
        "num_sentences": mode.total("num_sentences"),
        "num_retrievals": mode.total("num_retrievals"),
        "seconds_per_token": Quantiles.of(seconds).median / num_tokens,
        "tokens_per_sentence": mode.total("num_tokens") / num_sentences,
        "prefilled_per_token": mode.total("num_prefilled") / num_tokens,
        # Those that a proposal gave away are not decoded one by one.
        "decoded_per_token": (mode.total("num_decoded") - num_accepted) / num_tokens,
        "accepted_per_token": num_accepted / num_tokens}
    if mode is not first:
        own_sentences = max(first.total("num_sentences"), 1)
        if mode.is_slow:
            own_time = Quantiles.of(fast[first.name]).median / own_sentences
            faster = Quantiles.of([t / num_sentences / own_time for t in seconds])
        else:
            faster = ratios(fast, first.name, mode.name, own_sentences / num_sentences)
        values["flarecore_is_faster"] = faster.median
    return Row(
        "loop", questions.name, mode.name, {"questions": len(mode.answers)},
        Quantiles.of(seconds).scaled(1 / num_sentences), len(seconds),
        round(num_tokens / num_sentences), values=values)
