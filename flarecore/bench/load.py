"""Loading: from the start of a process to the first token, with a warm file cache."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarecore.bench.harness import Case, Quantiles, ratios, run_rounds
from flarecore.bench.load_process import PHASES, PROMPT, load_once
from flarecore.bench.peers import can_repack, make_format
from flarecore.bench.proofs import prove_equal
from flarecore.bench.rows import Report, Row
from flarecore.bench.runner import file_format
from flarecore.bench.session import Session
from flarecore.errors import ConfigError, FlarecoreError, UnsupportedError

__all__ = ["LoadOptions", "load_cases", "measure"]



@dataclass(frozen=True)
class LoadOptions:
    """``timeout_s``: seconds after which a process that has not ended counts as failed."""

    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise ConfigError(f"timeout_s must be > 0, got {self.timeout_s}")


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
    return tokenizer.encode(PROMPT, add_bos=tokenizer.adds_bos)


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
        for part in sorted(path.glob("*.safetensors")) if path.is_dir() else (path,):
            with part.open("rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass

    def run() -> float:
        repack = not engine.startswith("llama") or can_repack(path, session.threads)
        result = load_once(engine, path, token_ids, session.threads, session.options.compute,
                           options.timeout_s, repack=repack,
                           quantize=session.options.quantize)
        found.append(result)
        return float(result["total_s"])

    return Case(name, run, prepare)


def _row(
    session: Session, name: str, seconds: Mapping[str, tuple[float, ...]],
    found: list[dict[str, Any]],
) -> Row:
    found = found[-len(seconds[name]):]  # without the runs that warmed up
    values: dict[str, Any] = {
        key: Quantiles.of([result[key] for result in found]).median for key in PHASES}
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
