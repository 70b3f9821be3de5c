"""Loading: from the start of a process to the first token, with a warm file cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarecore.bench.harness import Case, Quantiles, ratios, run_rounds
from flarecore.bench.peers import make_format
from flarecore.bench.proofs import ProofError, prove_equal
from flarecore.bench.rows import Report, Row
from flarecore.bench.runner import file_format
from flarecore.bench.session import Session
from flarecore.errors import ConfigError, FlarecoreError, UnsupportedError

__all__ = ["LoadOptions", "load_cases", "load_once", "measure"]

_PROMPT = "The first token of this prompt is what the process was started for, and"
_PHASES = ("import_s", "open_s", "first_token_s")


@dataclass(frozen=True)
class LoadOptions:
    """``timeout_s``: seconds after which a process that has not ended counts as failed."""

    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise ConfigError(f"timeout_s must be > 0, got {self.timeout_s}")


def load_once(engine: str, path: Path, token_ids: list[int], threads: int, compute: str,
              timeout_s: float) -> dict[str, Any]:
    """Starts a process that opens the model and decodes one token.

    Parameters
    ----------
    engine : str
        ``flarecore`` or a peer's name.
    path : Path
    token_ids : list of int
        The prompt for peers; flarecore gets the text and tokenises it itself.
    threads : int
    compute : str
    timeout_s : float

    Returns
    -------
    dict
        ``total_s`` from the start of the process to the token, phases, ``peak_rss_bytes`` and
        ``anonymous_bytes``, and the token itself.

    Raises
    ------
    UnsupportedError
        The peer is not installed, or does not know the model.
    ProofError
        flarecore's own process failed.
    """
    request = json.dumps({"engine": engine, "path": str(path), "token_ids": token_ids,
                          "text": _PROMPT, "threads": threads, "compute": compute})
    # CLOCK_MONOTONIC is one clock for all processes.
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "flarecore.bench.load_child"], input=request,
                          capture_output=True, text=True, timeout=timeout_s, env=_environment())
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        kind: type[FlarecoreError] = ProofError if engine == "flarecore" else UnsupportedError
        raise kind(f"{engine}: the process that loads it failed: {reason}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    times = [start, *(result.pop(name) for name in ("imported", "opened", "finished"))]
    for name, begin, end in zip(_PHASES, times[:-1], times[1:], strict=True):
        result[name] = end - begin
    result["total_s"] = times[-1] - start
    return result


def measure(session: Session, options: LoadOptions) -> Report:
    """A row per engine; every one in processes of its own, in turn.

    Raises
    ------
    ProofError
        The first token is not the one that this process decodes.
    """
    token_ids = _prompt_ids(session)
    results: dict[str, list[dict[str, Any]]] = {}
    cases: list[Case] = []
    for engine, path in _engines(session):
        name = _display(session, engine, path)
        results[name] = []
        case = _case(session, engine, name, path, token_ids, options, results[name])
        try:
            case.run()
        except (UnsupportedError, subprocess.TimeoutExpired) as error:
            session.notes.append(f"no {engine}: {error}")
            del results[name]
            continue
        if engine == "flarecore":
            prove_equal("first token of the process", results[name][0]["token_id"],
                        session.own.prefill(token_ids))
        cases.append(case)
    seconds = run_rounds(cases, session.options.rounds, stage="load", progress=session.progress)
    rows = [_row(session, name, seconds, found) for name, found in results.items()]
    return session.report("load", rows, [
        "the first token of the fresh process is the one that this process decodes"])


def load_cases(session: Session, options: LoadOptions) -> dict[str, Case]:
    """A case per engine, by its name on the command line; not tried yet."""
    token_ids = _prompt_ids(session)
    return {engine: _case(session, engine, engine, path, token_ids, options, [])
            for engine, path in _engines(session)}


def _prompt_ids(session: Session) -> list[int]:
    tokenizer = session.model.tokenizer
    return tokenizer.encode(_PROMPT, add_bos=tokenizer.adds_bos)


def _engines(session: Session) -> list[tuple[str, Path]]:
    engines = [("flarecore", session.model.path)]
    for name in session.options.peers:
        if name.startswith("llama-"):
            try:
                kind = name.removeprefix("llama-").upper()
                engines.append((name, make_format(session.model.path, kind, session.threads)))
            except (ImportError, FlarecoreError) as error:
                session.notes.append(f"no {name}: {error}")
        else:
            engines.append((name, session.model.path))
    return engines


def _display(session: Session, engine: str, path: Path) -> str:
    """The name that the other benchmarks give this engine."""
    if engine == "flarecore":
        return session.own.name
    return engine if engine == "transformers" else f"llama.cpp {file_format(str(path))}"


def _case(
    session: Session, engine: str, name: str, path: Path, token_ids: list[int],
    options: LoadOptions, found: list[dict[str, Any]],
) -> Case:
    def prepare() -> None:
        # All of the file once, so that none of it comes from the disk.
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 22):
                pass

    def run() -> float:
        result = load_once(engine, path, token_ids, session.threads, session.options.compute,
                           options.timeout_s)
        found.append(result)
        return float(result["total_s"])

    return Case(name, run, prepare)


def _row(
    session: Session, name: str, seconds: Mapping[str, tuple[float, ...]],
    found: list[dict[str, Any]],
) -> Row:
    found = found[-len(seconds[name]):]  # without the runs that warmed up
    values: dict[str, Any] = {
        key: Quantiles.of([result[key] for result in found]).median for key in _PHASES}
    for key in ("peak_rss_bytes", "anonymous_bytes"):
        values[key] = max(result[key] for result in found)
    own = session.own.name
    if name != own:
        values["flarecore_is_faster"] = ratios(seconds, own, name).median
    return Row(
        "load", "process start to first token, warm file cache", name,
        {"threads": session.threads}, Quantiles.of(seconds[name]), len(seconds[name]),
        ratios={peer: ratios(seconds, name, peer) for peer in seconds if peer != name}
        if name == own else {}, values=values)


def _environment() -> dict[str, str]:
    """The environment with this flarecore first on the path, wherever it was imported from."""
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": root + (os.pathsep + known if known else "")}
