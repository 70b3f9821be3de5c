"""What one retrieval costs while the answer grows: from found passages to the next token.

The trunk (prompt and answer so far) is in the cache, as it is after a draft; timed is what it takes
to put passages in place and decode the first token of the regeneration. Passages are new each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flarecore.bench.harness import Case, Quantiles, run_rounds
from flarecore.bench.llama_runner import LlamaRunner
from flarecore.bench.rows import Report, Row
from flarecore.bench.session import Session
from flarecore.config import FlareConfig
from flarecore.engine import Engine
from flarecore.errors import ConfigError
from flarecore.loop.evidence import Evidence, EvidenceItem
from flarecore.loop.prompt import Placed, Prompt
from flarecore.loop.prompt_builder import PromptBuilder
from flarecore.retrieval.passage import Passage
from flarecore.sequence import Sequence as EngineSequence

__all__ = ["GrowthOptions", "measure"]

_RECOMPUTED = FlareConfig().recompute_tokens or 1


@dataclass(frozen=True)
class GrowthOptions:
    """Sizes.

    Attributes
    ----------
    answer_tokens : tuple of int
        Lengths of the answer.
    evidence_tokens : int
        Tokens of the passages.
    """

    answer_tokens: tuple[int, ...] = (0, 500, 1000, 1500, 2000)
    evidence_tokens: int = 300

    def __post_init__(self) -> None:
        if not self.answer_tokens or min(self.answer_tokens) < 0 or self.evidence_tokens < 1:
            raise ConfigError(
                f"answer_tokens must be >= 0 and evidence_tokens >= 1, got {self.answer_tokens} "
                f"and {self.evidence_tokens}")


class _Retrieval:
    """One retrieval at one length of the answer, by one engine in one placement."""

    def __init__(self, session: Session, prompt: Prompt, placement: str, answer: list[int],
                 num_evidence: int) -> None:
        self._session = session
        self._prompt = prompt
        self._placement = placement
        self._answer = answer
        self._num_evidence = num_evidence
        self._context: list[int] = []
        self.num_prefilled = 0

    @property
    def trunk(self) -> list[int]:
        """What is in the cache before."""
        return self._prompt.layout(self._placement, None, self._answer)

    def new_passage(self) -> list[int]:
        """A passage that nobody has seen."""
        # Changed near the start: nothing behind it can be found in a cache either.
        return self._session.own.salted(self._session.context(self._num_evidence, 3))

    def renew(self) -> None:
        """Makes a context with a new passage."""
        ids = self.new_passage()
        item = EvidenceItem(Passage(id="p", text="p"), "p", 0, 0, 0, token_ids=tuple(ids))
        placed = Placed(Evidence((item,)), len(self._answer))
        self._context = self._prompt.layout(self._placement, placed, self._answer)


class _Own(_Retrieval):
    """flarecore: the trunk is a sequence, a regeneration finds what it shares in the cache."""

    def open(self, engine: Engine) -> None:
        """Prefills the trunk; it stays in the cache until the engine is closed."""
        self._engine = engine
        self._sequence = self._open_sequence(engine)
        self._sequence.decode(1, until="eos", ignore_eos=True)

    def _open_sequence(self, engine: Engine) -> EngineSequence:
        return engine.sequence(self.trunk)

    def case(self, name: str) -> Case:
        def run() -> None:
            with self._engine.sequence() as sequence:
                decoded = sequence.regenerate(
                    self._context, max_tokens=1, until="eos", ignore_eos=True)
            self.num_prefilled = decoded.stats.num_prefilled

        return Case(name, run, self.renew)


class _Attached(_Own):
    """flarecore, placement ``parallel``: a passage that is encoded already is attached."""

    def _open_sequence(self, engine: Engine) -> EngineSequence:
        return engine.sequence(
            self.trunk, num_head_tokens=self._prompt.num_attach_head,
            num_reserved=self._num_evidence)

    def case(self, name: str) -> Case:
        def prepare() -> None:
            self._passage = self._sequence.encode_passage(self.new_passage())

        def run() -> None:
            with self._sequence.fork() as sequence:
                sequence.truncate(len(self.trunk))
                seen = max(self._prompt.num_attach_head, len(self.trunk) - _RECOMPUTED)
                sequence.attach([self._passage], from_token=seen)
                decoded = sequence.decode(1, until="eos", ignore_eos=True)
            self.num_prefilled = decoded.stats.num_prefilled

        return Case(name, run, prepare)


class _Peer(_Retrieval):
    """llama.cpp with its prefix cache."""

    def case(self, name: str, runner: LlamaRunner) -> Case:
        def prepare() -> None:
            runner.follow(self.trunk)
            self.renew()

        def run() -> None:
            self.num_prefilled, _ = runner.follow(self._context)

        return Case(name, run, prepare)


def measure(session: Session, options: GrowthOptions) -> Report:
    """A row per engine, placement and length of the answer."""
    tokenizer = session.model.tokenizer
    prompt, _ = PromptBuilder(tokenizer, None).build(
        "How does this work?", vocab_size=session.model.config.vocab_size)
    rows: list[Row] = []
    for length in options.answer_tokens:
        answer = session.context(length + 2, 5)[2:]
        longest = prompt.layout("prefix", None, answer)
        if session.fits(len(longest) + options.evidence_tokens + 64):
            rows += _measure_length(session, prompt, answer, options)
    return session.report("growth", rows, ())


def _measure_length(
    session: Session, prompt: Prompt, answer: list[int], options: GrowthOptions
) -> Sequence[Row]:
    engine = session.own.open_engine()
    found: dict[str, _Retrieval] = {}
    cases: list[Case] = []
    try:
        for placement, kind in (("prefix", _Own), ("boundary", _Own), ("parallel", _Attached)):
            own = kind(session, prompt, placement, answer, options.evidence_tokens)
            own.open(engine)
            name = f"flarecore {placement}"
            found[name] = own
            cases.append(own.case(name))
        for peer in session.peers:
            if isinstance(peer, LlamaRunner):
                peer.open_text(session.model.config.context_length)
                theirs = _Peer(session, prompt, "prefix", answer, options.evidence_tokens)
                name = f"{peer.name} prefix"
                found[name] = theirs
                cases.append(theirs.case(name, peer))
        seconds = run_rounds(cases, session.options.rounds,
                             stage=f"a retrieval after {len(answer)} tokens",
                             progress=session.progress)
    finally:
        engine.close()
    return [Row("growth", f"answer of {len(answer)} tokens", name,
                {"answer_tokens": len(answer), "evidence_tokens": options.evidence_tokens},
                Quantiles.of(seconds[name]), len(seconds[name]), retrieval.num_prefilled,
                values={"num_prefilled": retrieval.num_prefilled})
            for name, retrieval in found.items()]
