"""One session for all files: the model, the peers that are installed, and what was proven."""

from __future__ import annotations

from pathlib import Path

import pytest

from flarecore.bench.peers import PEERS, parse_peers
from flarecore.bench.questions import QuestionSource
from flarecore.bench.session import BenchOptions, open_session

ENGINES = ("flarecore", *PEERS)


def pytest_addoption(parser):
    group = parser.getgroup("flarecore")
    group.addoption("--model", default="smollm2-135m", help="name or GGUF file")
    group.addoption("--threads", type=int, default=None, help="default: those there are")
    group.addoption("--peers", default="all", help="as of flarecore bench; none for none")
    group.addoption("--data", type=Path, default=None,
                    help="folder of questions and passages (default: the demonstration's)")
    group.addoption("--rounds", type=int, default=5, help="timed rounds (default: 5)")


def pytest_generate_tests(metafunc):
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", ENGINES)


@pytest.fixture(scope="session")
def session(pytestconfig):
    """Opening proves: float32 against a reference, everything else against float32."""
    options = BenchOptions(
        pytestconfig.getoption("--model"), pytestconfig.getoption("--threads"),
        peers=parse_peers(pytestconfig.getoption("--peers")))
    with open_session(options) as opened:
        yield opened


@pytest.fixture(scope="session")
def source(pytestconfig):
    """Where questions and passages come from."""
    return QuestionSource(pytestconfig.getoption("--data"))


@pytest.fixture
def runner(session, engine):
    """The engine of that name; skipped with the reason if there is none."""
    for candidate in session.runners:
        if candidate.key == engine:
            return candidate
    reasons = [note for note in session.notes if note.startswith(f"no {engine}:")]
    pytest.skip(reasons[0] if reasons else f"{engine} was not asked for (--peers)")


@pytest.fixture
def time_case(benchmark, session, pytestconfig):
    """``time_case(case, group, tokens)`` times a Case of flarecore.bench."""
    def run(case, group, tokens=0):
        benchmark.group = group
        benchmark.extra_info |= {"machine": session.machine.to_dict(), "proofs": session.proofs}
        benchmark.pedantic(case.run, setup=case.prepare, warmup_rounds=1,
                           rounds=pytestconfig.getoption("--rounds"))
        if tokens and benchmark.stats is not None:
            benchmark.extra_info["tokens_per_s"] = tokens / benchmark.stats.stats.median

    return run
