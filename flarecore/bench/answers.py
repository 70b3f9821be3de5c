"""Whole answers at once against the same answers in turn, all on one engine.

At once means as a server would do it: a coroutine for each answer (``Flare.agenerate``) in one
event loop, and an engine that puts the next steps of all of them into each forward pass. In turn
means that each answer waits for the one before it. Every run begins with an engine that has seen
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flarecore.bench.harness import Quantiles, ratios, run_rounds
from flarecore.bench.loop import LoopOptions, Mode
from flarecore.bench.proofs import prove_equal
from flarecore.bench.questions import LoopQuestions
from flarecore.bench.rows import Report, Row
from flarecore.bench.session import Session
from flarecore.errors import ConfigError
from flarecore.flare import Flare
from flarecore.result import FlareResult

__all__ = ["AnswersOptions", "AtOnce", "make_modes", "measure", "prove"]


@dataclass(frozen=True)
class AnswersOptions:
    """Sizes.

    Attributes
    ----------
    num_answers : int
        Written at once; fewer if the source has fewer questions.
    loop : LoopOptions
        Source of the questions and options of the loop; its numbers of questions are not used.
    """

    num_answers: int = 8
    loop: LoopOptions = field(default_factory=LoopOptions)

    def __post_init__(self) -> None:
        if self.num_answers < 2:
            raise ConfigError(f"answers at once must be >= 2, got {self.num_answers}")


class AtOnce(Mode):
    """All answers at the same time."""

    def write(self, flare: Flare, questions: Sequence[str]) -> list[FlareResult]:
        async def answer_all() -> list[FlareResult]:
            return await asyncio.gather(*(flare.agenerate(question) for question in questions))

        return asyncio.run(answer_all())


def make_modes(
    session: Session, options: AnswersOptions, questions: LoopQuestions
) -> tuple[Mode, AtOnce]:
    """The answers in turn, and at once."""
    open_engine = session.own.open_engine
    count = min(options.num_answers, len(questions.questions))
    config = options.loop.config(questions)
    return (Mode("flarecore in turn", config, questions, open_engine, count),
            AtOnce(f"flarecore {count} at once", config, questions, open_engine, count))


def _decisions(result: FlareResult) -> list[tuple[Any, ...]]:
    """Tokens, confidences and triggers of every draft and regeneration."""
    return [(part.token_ids, part.probs, part.triggered) for sentence in result.trace.sentences
            for part in (sentence.draft, *sentence.regenerations)]


def prove(in_turn: Mode, at_once: Mode) -> str:
    """Runs both; every answer has the same tokens, confidences and triggers in both.

    Returns
    -------
    str
        What was shown.

    Raises
    ------
    ProofError
        Something differs.
    """
    for mode in (in_turn, at_once):
        mode.prepare()
        mode.run()
    for got, expected in zip(at_once.answers, in_turn.answers, strict=True):
        prove_equal("an answer among others", got.token_ids, expected.token_ids)
        prove_equal("drafts of an answer among others", _decisions(got), _decisions(expected))
    return (f"{len(at_once.answers)} answers of {at_once.total('num_tokens')} tokens with "
            f"{at_once.total('num_retrievals')} retrievals have the same tokens, confidences and "
            f"triggers at once and in turn")


def measure(session: Session, options: AnswersOptions) -> Report:
    """A row for the answers in turn and one for all at once.

    Raises
    ------
    ProofError
        An answer written among others is not what it is alone.
    """
    questions = LoopQuestions.open(options.loop.source, session.progress)
    modes = make_modes(session, options, questions)
    in_turn, at_once = modes
    try:
        session.progress("the same answers at once", 0, 1)
        proof = prove(in_turn, at_once)
        session.progress("the same answers at once", 1, 1)
        # The proof was the warm-up.
        seconds = run_rounds([mode.case() for mode in modes], session.options.rounds, warmup=0,
                             stage="answers", progress=session.progress)
    finally:
        for mode in modes:
            mode.close()
    if len(at_once.answers) < options.num_answers:
        session.notes.append(f"{questions.name}: only {len(at_once.answers)} questions, "
                             f"{options.num_answers} answers at once were asked for")
    faster = ratios(seconds, at_once.name, in_turn.name)
    return session.report("answers", [
        _row(in_turn, 1, seconds[in_turn.name], questions),
        _row(at_once, len(at_once.answers), seconds[at_once.name], questions,
             ratios={in_turn.name: faster}, answers_per_s_of_in_turn=faster.median)], [proof])


def _row(
    mode: Mode, num_at_once: int, seconds: Sequence[float], questions: LoopQuestions, *,
    ratios: dict[str, Quantiles] | None = None, **more: float,
) -> Row:
    count = len(mode.answers)
    num_tokens = max(mode.total("num_tokens"), 1)
    each = Quantiles.of(seconds).scaled(1 / count)
    values: dict[str, Any] = {
        "answers_per_s": 1 / each.median, "tokens_per_answer": num_tokens / count,
        "num_retrievals": mode.total("num_retrievals"),
        "prefilled_per_token": mode.total("num_prefilled") / num_tokens,
        # Those that a proposal gave away are not decoded one by one.
        "decoded_per_token":
            (mode.total("num_decoded") - mode.total("num_accepted")) / num_tokens, **more}
    return Row("answers", f"{count} answers, {questions.name}", mode.name,
               {"answers": count, "at_once": num_at_once}, each, len(seconds),
               round(num_tokens / count), ratios=ratios or {}, values=values)
