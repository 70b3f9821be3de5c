"""The whole loop: flarecore's modes, and the same loop around llama.cpp and transformers.

Every engine answers the same questions with the same prompts, triggers, query rules and retriever;
see :mod:`flarecore.bench.loop_engines` for how the peers are asked. Texts differ a little, since
each engine has its own arithmetic: times are per accepted sentence, counts per token kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from flarecore.result import FlareResult

__all__ = ["LoopOptions", "Mode", "Totals", "measure", "own_modes", "peer_modes"]


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


@dataclass
class Totals:
    """What the answers of a run came to."""

    num_sentences: int = 0
    num_tokens: int = 0
    num_prefilled: int = 0
    num_decoded: int = 0
    num_retrievals: int = 0
    num_accepted: int = 0

    def add(self, result: FlareResult) -> None:
        """Counts an answer in."""
        stats = result.stats
        self.num_sentences += stats.num_sentences
        self.num_tokens += stats.num_tokens
        self.num_prefilled += stats.num_prefilled
        self.num_decoded += stats.num_decoded
        self.num_retrievals += stats.num_retrievals
        self.num_accepted += stats.num_accepted


class Mode:
    """A way to run the loop.

    Parameters
    ----------
    name : str
        Who, in tables.
    config : FlareConfig
    questions : LoopQuestions
    open_engine : callable
        Makes an engine that has seen nothing, before every run.
    num_questions : int
    """

    def __init__(
        self, name: str, config: FlareConfig, questions: LoopQuestions,
        open_engine: Callable[[], EngineLike], num_questions: int,
    ) -> None:
        self.name = name
        self.config = config
        self.totals = Totals()
        self.answers: list[FlareResult] = []
        self._questions = questions
        self._open_engine = open_engine
        self._num_questions = num_questions
        self._engine: Any = None

    def prepare(self) -> None:
        """Opens an engine that remembers nothing of the run before."""
        self.close()
        self._engine = self._open_engine()

    def run(self) -> None:
        """Answers all questions, one after the other."""
        flare = Flare(self._engine, self._questions.retriever, self.config)
        self.totals, self.answers = Totals(), []
        for question in self._questions.questions[:self._num_questions]:
            result = flare.generate(question)
            self.totals.add(result)
            self.answers.append(result)

    def case(self) -> Case:
        """This mode, to be timed."""
        return Case(self.name, self.run, self.prepare)

    def close(self) -> None:
        """Closes its engine."""
        close = getattr(self._engine, "close", None)
        if close is not None:
            close()
        self._engine = None


def own_modes(session: Session, options: LoopOptions, questions: LoopQuestions) -> list[Mode]:
    """flarecore's placements, and the first of them without proposals."""
    def open_engine() -> EngineLike:
        return Engine(session.model, compute=session.own.compute)

    def mode(name: str, **changes: Any) -> Mode:
        return Mode(f"flarecore {name}", options.config(questions, **changes), questions,
                    open_engine, options.num_questions)

    return [
        mode("prefix", placement="prefix"),
        mode("prefix, no proposals", placement="prefix", speculative=False),
        mode("boundary", placement="boundary"),
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
                              options.num_slow_questions))
    return modes


def measure(session: Session, options: LoopOptions) -> Report:
    """A row per mode: wall time of an accepted sentence, and what a kept token cost.

    Raises
    ------
    ProofError
        flarecore's modes of one placement differ in their answers.
    """
    questions = LoopQuestions.open(options.source, session.progress)
    own = own_modes(session, options, questions)
    modes = [*own, *peer_modes(session, options, questions)]
    slow = [mode for mode in modes if mode.name.startswith("transformers")]
    try:
        fast_seconds = run_rounds(
            [mode.case() for mode in modes if mode not in slow], session.options.rounds,
            stage="loop", progress=session.progress)
        # Minutes a run: once is enough to tell tens of times from none.
        slow_seconds = run_rounds([mode.case() for mode in slow], 1, warmup=0, stage="loop, slow",
                                  progress=session.progress) if slow else {}
        _prove(own)
        rows = [_row(session, mode, own[0], fast_seconds, slow_seconds, questions)
                for mode in modes]
    finally:
        for mode in modes:
            mode.close()
    return session.report("loop", rows, [
        "the answers are the same with and without proposals, token by token"])


def _prove(own: Sequence[Mode]) -> None:
    """Proposals change no token."""
    with_proposals, without = own[0], own[1]
    for got, expected in zip(with_proposals.answers, without.answers, strict=True):
        prove_equal("an answer with proposals", got.token_ids, expected.token_ids)


def _row(
    session: Session, mode: Mode, first: Mode, fast: dict[str, tuple[float, ...]],
    slow: dict[str, tuple[float, ...]], questions: LoopQuestions,
) -> Row:
    totals = mode.totals
    seconds = fast[mode.name] if mode.name in fast else slow[mode.name]
    num_sentences, num_tokens = max(totals.num_sentences, 1), max(totals.num_tokens, 1)
    values: dict[str, Any] = {
        "num_sentences": totals.num_sentences, "num_retrievals": totals.num_retrievals,
        "tokens_per_sentence": totals.num_tokens / num_sentences,
        "prefilled_per_token": totals.num_prefilled / num_tokens,
        # Those that a proposal gave away are not decoded one by one.
        "decoded_per_token": (totals.num_decoded - totals.num_accepted) / num_tokens,
        "accepted_per_token": totals.num_accepted / num_tokens}
    peers: dict[str, Quantiles] = {}
    if mode is not first:
        own_sentences = max(first.totals.num_sentences, 1)
        if mode.name in fast:
            faster = ratios(fast, first.name, mode.name, own_sentences / num_sentences)
        else:
            own_time = Quantiles.of(fast[first.name]).median / own_sentences
            faster = Quantiles.of([t / num_sentences / own_time for t in seconds])
        values["flarecore_is_faster"] = faster.median
    return Row(
        "loop", questions.name, mode.name, {"questions": len(mode.answers)},
        Quantiles.of(seconds).scaled(1 / num_sentences), len(seconds),
        round(num_tokens / num_sentences), ratios=peers, values=values)
