"""Decoding beside a neighbour that takes a core whenever it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import TracebackType

from flarecore.bench.decode import DecodeOptions
from flarecore.bench.decode import prepare as prepare_runner
from flarecore.bench.harness import Case, Quantiles, ratios, run_rounds
from flarecore.bench.proofs import prove_equal
from flarecore.bench.rows import Report, Row
from flarecore.bench.runner import Runner
from flarecore.bench.session import Session

__all__ = ["Neighbour", "measure"]

_BUSY, _QUIET = "busy", "quiet"

# Ends if its parent does, however that ends: on Linux also while it is stopped (PR_SET_PDEATHSIG).
_SPIN = """
import ctypes, os
parent = os.getppid()
try:
    ctypes.CDLL(None).prctl(1, 9)
except (AttributeError, OSError):
    pass
print(flush=True)
while os.getppid() == parent:
    for _ in range(1000000):
        pass
"""


class Neighbour:
    """A process that spins on one core; a context manager that ends it.

    It is made asleep. On Linux it is bound to the last core that this process may use, so that the
    scheduler cannot keep it out of the way.

    Attributes
    ----------
    where : str
        The core, in words.
    """

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        # A session of its own: Ctrl-C is for the parent, which ends it.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SPIN], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            start_new_session=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.where = "a core"
        if cores:
            os.sched_setaffinity(self._process.pid, {cores[-1]})
            self.where = f"one of {len(cores)} core{'s' if len(cores) > 1 else ''}"
        self.rest()

    def spin(self) -> None:
        """Takes the core until :meth:`rest`."""
        self._process.send_signal(signal.SIGCONT)

    def rest(self) -> None:
        """Lets go of the core."""
        self._process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def measure(session: Session, options: DecodeOptions) -> Report:
    """Decoding of one sequence, quiet and beside a process that spins on one core.

    Raises
    ------
    ProofError
        The engine's own results contradict each other.
    """
    context, num_tokens = min(options.contexts), min(options.num_tokens, 16)
    if not session.fits(context + num_tokens):
        return session.report("busy", (), ())
    cases = []
    with Neighbour() as neighbour:
        for runner in session.runners:
            runner.set_contexts([session.context(context)])
            expected = prepare_runner(session, runner, num_tokens, 1, (1,))
            for state in (_QUIET, _BUSY):
                cases.append(_busy_case(
                    runner, expected[:num_tokens], neighbour, state, runner is session.own))
        seconds = run_rounds(cases, session.options.rounds, stage="decode, busy neighbour",
                             progress=session.progress)
    rows = []
    for runner in session.runners:
        quiet, busy = f"{runner.name} {_QUIET}", f"{runner.name} {_BUSY}"
        kept = ratios(seconds, busy, quiet)
        rows.append(Row(
            "busy", f"context {context}, a neighbour spins on {neighbour.where}", runner.name,
            {"context": context, "sequences": 1, "rows": 1},
            Quantiles.of(seconds[busy]).scaled(1 / num_tokens), len(seconds[busy]), 1,
            ratios={peer.name: ratios(seconds, busy, f"{peer.name} {_BUSY}")
                    for peer in session.peers} if runner is session.own else {},
            values={"quiet_seconds": Quantiles.of(seconds[quiet]).median / num_tokens,
                    "share_of_quiet_speed": kept.median, "share_p20": kept.p20,
                    "share_p80": kept.p80}))
    return session.report("busy", rows, ["the tokens are the same with and without a neighbour"])


def _busy_case(
    runner: Runner, expected: list[int], neighbour: Neighbour, state: str, is_own: bool
) -> Case:
    def prepare() -> None:
        runner.reset()
        if state == _BUSY:
            neighbour.spin()

    def run() -> None:
        try:
            got = runner.decode(len(expected))[0]
        finally:
            neighbour.rest()
        if is_own:
            prove_equal(f"{runner.name} {state}", got, expected)

    return Case(f"{runner.name} {state}", run, prepare)
