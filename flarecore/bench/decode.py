"""Decoding: one sequence, several at once, verification of proposals, a busy neighbour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flarecore.bench.harness import Case, Quantiles, ratios, run_rounds
from flarecore.bench.proofs import prove_equal
from flarecore.bench.rows import Report, Row
from flarecore.bench.runner import Runner
from flarecore.bench.session import MEMORY, Session, memory_case
from flarecore.errors import ConfigError

__all__ = ["DecodeOptions", "decode_case", "measure", "prepare", "prove", "verify_case"]

# A forward pass or two are too short to time one at a time.
_REPEATS = 8


@dataclass(frozen=True)
class DecodeOptions:
    """Sizes.

    Attributes
    ----------
    contexts : tuple of int
        Tokens before the first decoded one.
    sequences : tuple of int
        Sequences that decode at once, at the shortest context.
    rows : tuple of int
        Rows of one verification; 1 is what the others are compared with.
    num_tokens : int
        Tokens that each timed run decodes.
    """

    contexts: tuple[int, ...] = (64, 2000)
    sequences: tuple[int, ...] = (1, 2, 4, 8)
    rows: tuple[int, ...] = (1, 4, 8, 16)
    num_tokens: int = 32

    def __post_init__(self) -> None:
        for name in ("contexts", "sequences", "rows"):
            values = getattr(self, name)
            if not values or min(values) < (2 if name == "contexts" else 1):
                least = 2 if name == "contexts" else 1
                raise ConfigError(f"{name} must be integers >= {least}, got {values}")
        if not 1 <= self.num_tokens <= 128 or max(self.rows) > 128:
            raise ConfigError(f"num_tokens and rows must be in 1 to 128, got {self.num_tokens} and "
                              f"{max(self.rows)}")


def decode_case(runner: Runner, num_tokens: int, num_sequences: int = 1) -> Case:
    """A timed run that decodes `num_tokens` after each of the runner's first contexts."""
    def run() -> None:
        runner.decode(num_tokens, num_sequences)

    return Case(f"{runner.name} x{num_sequences}", run, runner.reset)


def verify_case(runner: Runner, expected: Sequence[int]) -> Case:
    """A timed run that verifies these tokens in one pass, some times over."""
    def run() -> None:
        for repeat in range(_REPEATS):
            if repeat:
                runner.reset()
            runner.verify(expected)

    return Case(f"{runner.name} rows {len(expected)}", run, runner.reset)


def prove(runner: Runner, num_tokens: int, num_sequences: int, rows: Sequence[int]) -> list[int]:
    """Decoding alone, decoding together and verification give the same tokens.

    Parameters
    ----------
    runner : Runner
        With its contexts set.
    num_tokens, num_sequences : int
    rows : sequence of int
        Sizes of the verifications.

    Returns
    -------
    list of int
        What follows the first context: at least as many tokens as the largest of `rows`.

    Raises
    ------
    ProofError
        They do not.
    """
    longest = max(num_tokens, *rows)
    runner.reset()
    expected = runner.decode(longest)[0]
    prove_equal(f"{runner.name}: number of decoded tokens", len(expected), longest)
    for what, got, wanted in _other_ways(runner, expected, num_tokens, num_sequences, rows):
        prove_equal(what, got, wanted)
    return expected


def _other_ways(
    runner: Runner, expected: list[int], num_tokens: int, num_sequences: int, rows: Sequence[int]
) -> Iterator[tuple[str, list[int], list[int]]]:
    """What was done, the tokens that it gave, and those of decoding alone."""
    runner.reset()
    if num_sequences > 1:
        together = runner.decode(num_tokens, num_sequences)
        yield (f"{runner.name}: the first of {num_sequences} sequences at once", together[0],
               expected[:num_tokens])
        runner.reset()
    for count in rows:
        yield (f"{runner.name}: verification of {count} rows", runner.verify(expected[:count]),
               expected[:count])
        runner.reset()


def prepare(
    session: Session, runner: Runner, num_tokens: int, num_sequences: int, rows: Sequence[int]
) -> list[int]:
    """As :func:`prove`; what a peer's arithmetic does differently with more rows is only noted."""
    if runner is session.own:
        return prove(runner, num_tokens, num_sequences, rows)
    runner.reset()
    expected = runner.decode(max(num_tokens, *rows))[0]
    for what, got, wanted in _other_ways(runner, expected, num_tokens, num_sequences, rows):
        different = sum(a != b for a, b in zip(got, wanted, strict=True))
        if different:
            session.notes.append(f"{what}: {different} of {len(wanted)} tokens are others than "
                                 f"when it decodes alone")
    return expected


def measure(session: Session, options: DecodeOptions) -> Report:
    """Rows for every context, number of sequences and number of rows.

    Raises
    ------
    ProofError
        An engine's own results contradict each other.
    """
    rows: list[Row] = []
    for context in options.contexts:
        if session.fits(context + max(options.num_tokens, *options.rows)):
            rows += _measure_context(session, options, context)
    several = tuple(n for n in options.sequences if n > 1)
    shortest = min(options.contexts)
    if several and session.fits(shortest + options.num_tokens):
        rows += _measure_sequences(session, options, shortest)
    proof = (f"{session.own.name}: decoded tokens are the same alone, among other sequences and "
             f"verified as proposals")
    return session.report("decode", rows, [proof])


def _measure_context(session: Session, options: DecodeOptions, context: int) -> list[Row]:
    """One sequence: decoding, and verification of several rows."""
    num_tokens, cases = options.num_tokens, []
    for runner in session.runners:
        runner.set_contexts([session.context(context)])
        expected = prepare(session, runner, num_tokens, 1, options.rows)
        cases.append(decode_case(runner, num_tokens))
        cases += [verify_case(runner, expected[:count]) for count in options.rows]
    # What an average step reads: half of the new tokens are there already.
    seen = context + num_tokens // 2
    cases.append(memory_case(session.step_bytes(session.own, seen), session.threads))
    seconds = run_rounds(cases, session.options.rounds, stage=f"decode, context {context}",
                         progress=session.progress)
    results = _Results(session, seconds, session.step_bytes(session.own, seen))
    rows = [
        results.row(runner, f"context {context}, 1 sequence", f"{runner.name} x1",
                    {"context": context, "sequences": 1, "rows": 1}, num_tokens, seen)
        for runner in session.runners]
    for count in options.rows:
        for runner in session.runners:
            # How many rows of one pass may be had for what one row costs.
            cost = ratios(seconds, f"{runner.name} rows 1", f"{runner.name} rows {count}") \
                if 1 in options.rows else None
            rows.append(results.row(
                runner, f"context {context}, {count} row{'s' if count > 1 else ''} verified",
                f"{runner.name} rows {count}",
                {"context": context, "sequences": 1, "rows": count}, _REPEATS, context,
                {"cost_of_one_row": cost.median} if cost else {}))
    return rows


def _measure_sequences(session: Session, options: DecodeOptions, context: int) -> list[Row]:
    """Several sequences at once, and one alone in the same rounds."""
    counts = tuple(sorted({1, *options.sequences}))
    cases = []
    for runner in session.runners:
        runner.set_contexts([session.context(context, n) for n in range(max(counts))])
        prepare(session, runner, options.num_tokens, max(counts), (1,))
        cases += [decode_case(runner, options.num_tokens, count) for count in counts]
    seen = context + options.num_tokens // 2
    cases.append(memory_case(session.step_bytes(session.own, seen), session.threads))
    seconds = run_rounds(cases, session.options.rounds, stage="decode, several sequences",
                         progress=session.progress)
    results = _Results(session, seconds, session.step_bytes(session.own, seen))
    rows = []
    for count in counts[1:]:
        for runner in session.runners:
            name = f"{runner.name} x{count}"
            gain = ratios(seconds, name, f"{runner.name} x1", count)
            rows.append(results.row(
                runner, f"context {context}, {count} sequences", name,
                {"context": context, "sequences": count, "rows": count}, options.num_tokens, seen,
                {"tokens_per_s_of_one": gain.median}))
    return rows


class _Results:
    """Seconds of one set of rounds, to be turned into rows.

    Parameters
    ----------
    session : Session
    seconds : mapping of str to sequence of float
        Per case and round.
    memory_bytes : int
        Bytes that the memory case read.
    """

    def __init__(
        self, session: Session, seconds: Mapping[str, Sequence[float]], memory_bytes: int
    ) -> None:
        self._session = session
        self._seconds = seconds
        self._memory = memory_bytes / Quantiles.of(seconds[MEMORY]).median

    def row(
        self, runner: Runner, case: str, name: str, params: Mapping[str, int], num_steps: int,
        seen: int, values: Mapping[str, float] | None = None,
    ) -> Row:
        """The row of the case `name`, which made `num_steps` passes with `seen` tokens before."""
        session, seconds = self._session, self._seconds
        found = dict(values or {})
        peers = {}
        if runner is session.own:
            peers = {peer.name: ratios(seconds, name, name.replace(runner.name, peer.name, 1))
                     for peer in session.peers}
        else:
            own_name = name.replace(runner.name, session.own.name, 1)
            found["flarecore_is_faster"] = ratios(seconds, own_name, name).median
        return Row(
            "decode", case, runner.name, params,
            Quantiles.of(seconds[name]).scaled(1 / num_steps), len(seconds[name]), params["rows"],
            session.step_bytes(runner, seen, params["sequences"]), self._memory, peers, found)
