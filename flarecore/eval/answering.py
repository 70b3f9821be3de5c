"""Lets a method answer questions, one after the other or several at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flarecore.errors import ConfigError, FlarecoreError, UnsupportedError
from flarecore.eval.answer_log import AnswerLog
from flarecore.eval.dataset import Question
from flarecore.eval.exemplars import PromptMaker
from flarecore.eval.record import Record, failed_record, make_record
from flarecore.result import FlareResult

__all__ = ["Method", "answer_all"]


class Method(Protocol):
    """What answers a prompt; see :mod:`flarecore.methods`."""

    def generate(self, prompt: Any, *, question: str | None = None) -> FlareResult:
        """Writes an answer."""
        ...

    async def agenerate(self, prompt: Any, *, question: str | None = None) -> FlareResult:
        """The same for asyncio."""
        ...


def answer_all(
    method: Method, prompts: PromptMaker, questions: Sequence[Question],
    languages: Sequence[str], log: AnswerLog, *, num_parallel: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Answers the questions that the log does not hold yet.

    What raises for one question (a context that is too long, a retriever that fails) is recorded
    and counts as wrong; wrong options end the run.

    Parameters
    ----------
    method, prompts, questions
        What answers, how it is asked, and what.
    languages : sequence of {"en", "zh"}
        Of each question, for scoring.
    log : AnswerLog
        Open; each answer is in it as soon as it is finished.
    num_parallel : int
        Answers at the same time. Above 1 the times of phases overlap and the records say so.
    progress : callable, optional
        ``progress(done, total)`` with the questions that are answered.

    Returns
    -------
    int
        Answers written by this call.

    Raises
    ------
    ConfigError, UnsupportedError
        The options suit no question.
    KeyboardInterrupt
        As it came; finished answers are in the log.
    """
    left = [(q, language) for q, language in zip(questions, languages, strict=True)
            if q.id not in log.records]
    done = len(questions) - len(left)

    def report(record: Record) -> None:
        nonlocal done
        log.append(record)
        done += 1
        if progress is not None:
            progress(done, len(questions))

    if progress is not None:
        progress(done, len(questions))
    if num_parallel == 1:
        for question, language in left:
            report(_answer(method, prompts, question, language, log.hash))
    else:
        asyncio.run(_answer_together(method, prompts, left, log.hash, num_parallel, report))
    return len(left)


class _Scored:
    """Times an answer and turns it, or its error, into a record."""

    def __init__(self, question: Question, language: str, hash: str, num_parallel: int) -> None:
        self._question = question
        self._common: dict[str, Any] = {
            "language": language, "settings_hash": hash, "num_parallel": num_parallel}
        self._start = time.perf_counter()

    def record(self, outcome: FlareResult | FlarecoreError) -> Record:
        wall_ms = (time.perf_counter() - self._start) * 1000
        if isinstance(outcome, FlarecoreError):
            return failed_record(self._question, outcome, wall_ms=wall_ms, **self._common)
        return make_record(self._question, outcome, wall_ms=wall_ms, **self._common)


def _answer(
    method: Method, prompts: PromptMaker, question: Question, language: str, hash: str
) -> Record:
    scored = _Scored(question, language, hash, 1)
    try:
        return scored.record(
            method.generate(prompts.prompt(question.text), question=question.text))
    except (ConfigError, UnsupportedError):
        raise
    except FlarecoreError as error:
        return scored.record(error)


async def _answer_together(
    method: Method, prompts: PromptMaker, left: Sequence[tuple[Question, str]], hash: str,
    num_parallel: int, report: Callable[[Record], None],
) -> None:
    waiting = iter(left)

    async def work() -> None:
        for question, language in waiting:
            scored = _Scored(question, language, hash, num_parallel)
            try:
                record = scored.record(await method.agenerate(
                    prompts.prompt(question.text), question=question.text))
            except (ConfigError, UnsupportedError):
                raise
            except FlarecoreError as error:
                record = scored.record(error)
            report(record)

    workers = [asyncio.ensure_future(work()) for _ in range(min(num_parallel, len(left)))]
    try:
        for finished in asyncio.as_completed(workers):
            await finished
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
