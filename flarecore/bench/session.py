"""What all benchmarks of one run share: the model, the peers, the text, and what was proven."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flarecore import _C
from flarecore.bench.harness import Case, Progress, no_progress
from flarecore.bench.machine import Machine, describe_machine
from flarecore.bench.peers import installed_peers, missing_note, open_peers
from flarecore.bench.proofs import Reference, find_reference, prove_close, prove_exact
from flarecore.bench.rows import Report, Row
from flarecore.bench.runner import FlareRunner, Runner, file_format
from flarecore.bench.texts import context_ids, read_text, text_name
from flarecore.bench.transformers_runner import TransformersRunner
from flarecore.errors import ConfigError, FlarecoreError, UnsupportedError
from flarecore.model import Model

__all__ = ["BenchOptions", "Session", "memory_case", "open_session"]

_PROOF_TOKENS = 64
MEMORY = "memory read"
# As many as make a run about as long as one of decoding.
_MEMORY_PASSES = 16
# What a benchmark shows beside flarecore where that is not everybody.
_SHOWN_PEERS = {"sampling": (), "answers": (), "growth": ("llama.cpp",),
                "retrieval": ("transformers",)}


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on.

    Attributes
    ----------
    model : str
        Name, GGUF file or directory of a checkpoint.
    threads : int or None
        None: what the process may use.
    compute : {"int8", "float32"}
    peers : tuple of str
        Names of ``flarecore.bench.peers.PEERS``.
    rounds : int
    text : Path or None
        Text for contexts and perplexity; None: Python's documentation.
    quantize : {"q4", "q8"} or None
        How float weights are quantised at load. Peers get the file as it is.
    """

    model: str = "smollm2-135m"
    threads: int | None = None
    compute: str = "int8"
    peers: tuple[str, ...] = ()
    rounds: int = 7
    text: Path | None = None
    quantize: str | None = None

    def __post_init__(self) -> None:
        if self.compute not in ("int8", "float32"):
            raise ConfigError(f"compute must be 'int8' or 'float32', got {self.compute!r}")
        if self.rounds < 1:
            raise ConfigError(f"rounds must be >= 1, got {self.rounds}")
        if self.text is not None:
            read_text(self.text)  # a wrong one is told before a model is opened


@dataclass
class Session:
    """An open model with its peers; made by :func:`open_session`.

    Attributes
    ----------
    options : BenchOptions
    model : Model
    own : FlareRunner
        What is measured.
    peers : list of Runner
    machine : Machine
    text_ids : list of int
        Tokens of the text.
    text_name : str
    proofs, notes : list of str
        What was shown to be right, and what is missing and why.
    progress : callable
    missing : tuple of str
        Implementations that were asked for and are not installed.
    is_uncompared : bool
        Whether no package is installed that float32 could be compared with.
    """

    options: BenchOptions
    model: Model
    own: FlareRunner
    peers: list[Runner]
    machine: Machine
    text_ids: list[int]
    text_name: str
    proofs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    progress: Progress = no_progress
    missing: tuple[str, ...] = ()
    is_uncompared: bool = False

    @property
    def runners(self) -> list[Runner]:
        """flarecore, then the peers."""
        return [self.own, *self.peers]

    @property
    def threads(self) -> int:
        return self.model.num_threads

    def context(self, num_tokens: int, number: int = 0) -> list[int]:
        """Tokens of the text, another place for each number."""
        return context_ids(self.model.tokenizer, self.text_ids, num_tokens, number)

    def step_bytes(self, runner: Runner, num_context_tokens: int, num_sequences: int = 1) -> int:
        """Bytes that a pass of one row a sequence must read."""
        costs = self.own.costs(num_context_tokens)
        kv = (costs["kv_bytes"] if isinstance(runner, FlareRunner)
              else costs["kv_values"] * runner.kv_value_bytes)
        return runner.weight_bytes + num_sequences * kv

    def fits(self, num_tokens: int) -> bool:
        """Whether a context of so many tokens is within the model's; says so if not."""
        limit = self.model.config.context_length
        if num_tokens <= limit:
            return True
        self.notes.append(f"{num_tokens} tokens do not fit into the model's context of {limit}")
        return False

    def report(self, benchmark: str, rows: Sequence[Row], proofs: Sequence[str]) -> Report:
        """The rows with everything that was proven and noted so far."""
        missing = [name for name in self.missing
                   if name in _SHOWN_PEERS.get(benchmark, self.missing)]
        if missing or self.is_uncompared:
            self.notes.append(missing_note(missing, is_uncompared=self.is_uncompared))
        return Report(benchmark, self.options.model, file_format(str(self.model.path)),
                      self.machine, tuple(rows), (*self.proofs, *proofs),
                      tuple(dict.fromkeys(self.notes)))


def memory_case(num_bytes: int, threads: int) -> Case:
    """Reads a buffer of so many bytes: the bound of whatever reads as many again and again.

    A run is the fastest of some passes. Decoding reads the same weights in every step too, so what
    a large cache keeps of them, it keeps of the buffer; and a pass is so short that a single
    interruption multiplies its time, which is no bound then.
    """
    reader = _C.testing.MemoryReader(num_bytes, threads)
    # Per byte asked for: the buffer is rounded up.
    share: float = num_bytes / reader.size_bytes

    def run() -> float:
        return float(min(reader.read_once() for _ in range(_MEMORY_PASSES))) * share

    return Case(MEMORY, run)


@contextlib.contextmanager
def open_session(
    options: BenchOptions, progress: Progress = no_progress, *, with_peers: bool = True
) -> Iterator[Session]:
    """Opens model and peers and proves them right; closes them at the end.

    Parameters
    ----------
    options : BenchOptions
    progress : callable
        ``progress(stage, done, total)``.
    with_peers : bool
        False for benchmarks that run the peers elsewhere.

    Raises
    ------
    ProofError
        The engine is wrong: nothing is timed.
    ConfigError, ModelFileError, UnsupportedError
        As from ``Model.load``.
    """
    steps = 3
    installed, missing = installed_peers(options.peers)
    options = replace(options, peers=installed)
    progress("opening and checking", 0, steps)
    model = Model.load(options.model, threads=options.threads, quantize=options.quantize)
    text = read_text(options.text)
    text_ids = model.tokenizer.encode(text[:200_000])
    if len(text_ids) < 2:
        raise ConfigError(f"the text has {len(text_ids)} tokens; at least 2 are needed")
    notes: list[str] = []
    if model.quantization is not None:
        notes.append(model.quantization.summary())
    machine = describe_machine(model.num_threads, measure_memory=True)
    own = FlareRunner(model, options.compute)
    progress("opening and checking", 1, steps)
    peers: list[Runner] = []
    if with_peers:
        peers, remarks = open_peers(options.peers, model.path, model.num_threads)
        notes += remarks
    session = Session(options, model, own, peers, machine, text_ids,
                      text_name(options.text, text), notes=notes, progress=progress,
                      missing=missing)
    try:
        progress("opening and checking", 2, steps)
        _prove(session)
        progress("opening and checking", 3, steps)
        yield session
    finally:
        for runner in session.runners:
            runner.close()


def _prove(session: Session) -> None:
    """The exact mode against an independent implementation, everything else against it."""
    limit = session.model.config.context_length
    token_ids = session.context(min(_PROOF_TOKENS, limit))
    # A model of its own: its float32 weights go with it.
    exact = FlareRunner(
        Model.load(session.options.model, threads=session.options.threads), "float32")
    try:
        try:
            name, reference = _reference(session)
        except UnsupportedError as error:
            if installed_peers(("transformers",))[1]:
                session.is_uncompared = True
            else:
                session.notes.append(f"float32 was not compared with a reference: {error}")
        else:
            prompt = token_ids[:min(40, limit - 8)]
            session.proofs.append(f"{prove_exact(exact, reference, prompt)} of {name}")
        expected = exact.score(token_ids, 1)
    finally:
        exact.close()
    session.proofs.append(prove_close(session.own, _expected(session, token_ids, expected),
                                      token_ids))
    for peer in list(session.peers):
        try:
            session.proofs.append(prove_close(peer, expected, token_ids, is_peer=True))
        except FlarecoreError as error:
            session.notes.append(f"{peer.name} is left out: {error}")
            session.peers.remove(peer)
            peer.close()


def _expected(session: Session, token_ids: Sequence[int], exact: npt.NDArray[np.float64]
              ) -> npt.NDArray[np.float64]:
    """What the measured engine must come close to: `exact`, or that of its quantised weights."""
    options = session.options
    if options.quantize is None:
        return exact
    runner = FlareRunner(
        Model.load(options.model, threads=options.threads, quantize=options.quantize), "float32")
    try:
        return runner.score(token_ids, 1)
    finally:
        runner.close()


def _reference(session: Session) -> tuple[str, Reference]:
    """The peer in transformers if there is one: it need not be loaded twice."""
    for peer in session.peers:
        if isinstance(peer, TransformersRunner):
            return peer.name, peer
    return find_reference(session.model.path)
