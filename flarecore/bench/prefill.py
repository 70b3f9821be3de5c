"""Prefill: a prompt's tokens until the first token after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flarecore.bench.harness import Case, Quantiles, ratios, run_rounds
from flarecore.bench.proofs import prove_equal
from flarecore.bench.rows import Report, Row
from flarecore.bench.runner import FlareRunner, Runner
from flarecore.bench.session import Session
from flarecore.errors import ConfigError

__all__ = ["PrefillOptions", "measure", "prefill_case", "prove"]


@dataclass(frozen=True)
class PrefillOptions:
    """Sizes: ``sizes`` are tokens of a prompt, each at least 2."""

    sizes: tuple[int, ...] = (64, 128, 512, 2048)

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 2:
            raise ConfigError(f"sizes must be integers >= 2, got {self.sizes}")


def prefill_case(session: Session, runner: Runner, num_tokens: int) -> Case:
    """A timed prefill of a prompt that nobody has seen before."""
    base = session.context(num_tokens)
    prompt: list[int] = base

    def prepare() -> None:
        nonlocal prompt
        prompt = session.own.salted(base)

    def run() -> None:
        runner.prefill(prompt)

    return Case(runner.name, run, prepare)


def prove(session: Session, num_tokens: int) -> None:
    """A prefill in one piece gives the token and the confidence of one in two pieces, bit for bit.

    Raises
    ------
    ProofError
        They differ, or the prefill that is to be timed was served from the cache.
    """
    prompt = session.own.salted(session.context(num_tokens))
    # An engine of its own for the pieces: a cache shared with the other would prove nothing.
    pieces = FlareRunner(session.model, session.own.compute)
    try:
        with pieces.engine.sequence(prompt[:num_tokens // 2]) as sequence:
            sequence.extend(prompt[num_tokens // 2:])
            expected = sequence.decode(1, until="eos", ignore_eos=True)
    finally:
        pieces.close()
    with session.own.engine.sequence() as sequence:
        got = sequence.regenerate(prompt, max_tokens=1, until="eos", ignore_eos=True)
    prove_equal(f"positions of {num_tokens} that were in the cache", got.stats.num_reused, 0)
    prove_equal(f"token after {num_tokens}", got.token_ids, expected.token_ids)
    prove_equal(f"confidence after {num_tokens}", got.probs.tobytes(), expected.probs.tobytes())


def measure(session: Session, options: PrefillOptions) -> Report:
    """A row per size and engine.

    Raises
    ------
    ProofError
        Prefilling in parts gives something else.
    """
    rows: list[Row] = []
    for size in options.sizes:
        # One token is decoded behind it.
        if session.fits(size + 1):
            prove(session, size)
            rows += _measure_size(session, size)
    return session.report("prefill", rows, [
        "a prefill in one piece and in two gives the same token and the same confidence"])


def _measure_size(session: Session, size: int) -> Sequence[Row]:
    cases = [prefill_case(session, runner, size) for runner in session.runners]
    seconds = run_rounds(cases, session.options.rounds, stage=f"prefill, {size} tokens",
                         progress=session.progress)
    own = session.own
    costs = own.costs(0)
    multiply_adds = size * costs["layer_multiply_adds"] + costs["head_multiply_adds"]
    rows = []
    for runner in session.runners:
        time = Quantiles.of(seconds[runner.name])
        values = {"multiply_adds_per_s": multiply_adds / time.median}
        if runner is not own:
            values["flarecore_is_faster"] = ratios(seconds, own.name, runner.name).median
        peers = {peer.name: ratios(seconds, own.name, peer.name) for peer in session.peers} \
            if runner is own else {}
        rows.append(Row("prefill", f"{size} tokens", runner.name, {"tokens": size}, time,
                        len(seconds[runner.name]), size, runner.weight_bytes,
                        session.machine.memory_bytes_per_s, peers, values))
    return rows
