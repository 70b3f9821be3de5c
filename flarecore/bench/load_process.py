"""Starts a process that opens a model and decodes one token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flarecore.bench.proofs import ProofError
from flarecore.errors import FlarecoreError, UnsupportedError

__all__ = ["PHASES", "PROMPT", "load_once"]

PROMPT = "The first token of this prompt is what the process was started for, and"
PHASES = ("import_s", "open_s", "first_token_s")


def load_once(engine: str, path: Path, token_ids: list[int], threads: int, compute: str,
              timeout_s: float, *, repack: bool = True, quantize: str | None = None
              ) -> dict[str, Any]:
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
    repack : bool
        For llama.cpp, see ``LlamaRunner``.
    quantize : {"q4", "q8"}, optional
        For flarecore, see ``Model.load``.

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
                          "text": PROMPT, "threads": threads, "compute": compute, "repack": repack,
                          "quantize": quantize})
    # CLOCK_MONOTONIC is one clock for all processes.
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "flarecore.bench.load_child"], input=request,
                          capture_output=True, text=True, timeout=timeout_s, env=_environment())
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        if done.returncode < 0:
            reason = f"it crashed with signal {-done.returncode}"
        kind: type[FlarecoreError] = ProofError if engine == "flarecore" else UnsupportedError
        raise kind(f"{engine}: the process that loads it failed: {reason}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    times = [start, *(result.pop(name) for name in ("imported", "opened", "finished"))]
    for name, begin, end in zip(PHASES, times[:-1], times[1:], strict=True):
        result[name] = end - begin
    result["total_s"] = times[-1] - start
    return result


def _environment() -> dict[str, str]:
    """The environment with this flarecore first on the path, wherever it was imported from."""
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": root + (os.pathsep + known if known else "")}
