"""Every benchmark in turn, on one session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from flarecore.bench import (
    answers,
    busy,
    decode,
    growth,
    load,
    loop,
    prefill,
    quality,
    retrieval,
    sampling,
)
from flarecore.bench.harness import Progress, no_progress
from flarecore.bench.rows import Report
from flarecore.bench.session import BenchOptions, Session, open_session
from flarecore.errors import ConfigError

__all__ = ["BENCHMARKS", "SuiteOptions", "run_suite"]

BENCHMARKS = ("decode", "busy", "prefill", "load", "sampling", "loop", "growth", "answers",
              "retrieval", "quality")
# load runs in processes of its own, sampling and answers have no peer, that of retrieval is no
# decoder.
_WITHOUT_PEERS = ("load", "sampling", "answers", "retrieval")


@dataclass(frozen=True)
class SuiteOptions:
    """What to run, and the sizes of each."""

    benchmarks: tuple[str, ...] = BENCHMARKS
    decode: decode.DecodeOptions = field(default_factory=decode.DecodeOptions)
    prefill: prefill.PrefillOptions = field(default_factory=prefill.PrefillOptions)
    load: load.LoadOptions = field(default_factory=load.LoadOptions)
    sampling: sampling.SamplingOptions = field(default_factory=sampling.SamplingOptions)
    quality: quality.QualityOptions = field(default_factory=quality.QualityOptions)
    loop: loop.LoopOptions = field(default_factory=loop.LoopOptions)
    growth: growth.GrowthOptions = field(default_factory=growth.GrowthOptions)
    answers: answers.AnswersOptions = field(default_factory=answers.AnswersOptions)
    retrieval: retrieval.RetrievalOptions = field(default_factory=retrieval.RetrievalOptions)

    def __post_init__(self) -> None:
        unknown = [name for name in self.benchmarks if name not in BENCHMARKS]
        if unknown or not self.benchmarks:
            raise ConfigError(f"unknown benchmark {unknown}; known: {', '.join(BENCHMARKS)}")


def run_suite(
    options: BenchOptions, suite: SuiteOptions, progress: Progress = no_progress
) -> Iterator[Report]:
    """Runs the benchmarks; yields each report when it is there.

    Parameters
    ----------
    options : BenchOptions
    suite : SuiteOptions
    progress : callable
        ``progress(stage, done, total)``.

    Raises
    ------
    ProofError
        Something is wrong: nothing further is timed.
    """
    measures: dict[str, Callable[[Session], Report]] = {
        "decode": lambda s: decode.measure(s, suite.decode),
        "busy": lambda s: busy.measure(s, suite.decode),
        "prefill": lambda s: prefill.measure(s, suite.prefill),
        "load": lambda s: load.measure(s, suite.load),
        "sampling": lambda s: sampling.measure(s, suite.sampling),
        "quality": lambda s: quality.measure(s, suite.quality),
        "loop": lambda s: loop.measure(s, suite.loop),
        "growth": lambda s: growth.measure(s, suite.growth),
        "answers": lambda s: answers.measure(s, suite.answers),
        "retrieval": lambda s: retrieval.measure(s, suite.retrieval),
    }
    with_peers = any(name not in _WITHOUT_PEERS for name in suite.benchmarks)
    with open_session(options, progress, with_peers=with_peers) as session:
        for name in suite.benchmarks:
            notes = list(session.notes)
            yield measures[name](session)
            session.notes[:] = notes
