"""What a row was measured on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarecore import _C, __version__

__all__ = ["Machine", "describe_machine", "dram_bandwidth"]

# Larger than the caches of the machines this runs on.
_LARGE_BYTES = 1 << 30


@dataclass(frozen=True)
class Machine:
    """CPU, level, threads, versions, commit, date; what everything was measured on.

    Attributes
    ----------
    cpu : str
        The CPU's own name.
    isa : str
        Level of the kernels in force.
    cores, threads : int
        Cores of the machine, and threads that were used.
    l3_bytes : int or None
        Largest cache, as the system tells it.
    load : float or None
        Processes that wanted to run when it began, mean of a minute: above 0.3 the machine was
        not quiet.
    memory_bytes_per_s : float or None
        Read speed of a buffer of 1 GiB on these threads, if it was measured.
    versions : dict of str to str
        Of flarecore, Python, numpy and every peer that is installed.
    commit : str
        Of the checkout, with ``+`` if files differ from it; ``unknown`` outside of one.
    date : str
        ISO 8601, UTC.
    """

    cpu: str
    isa: str
    cores: int
    threads: int
    l3_bytes: int | None
    load: float | None
    memory_bytes_per_s: float | None
    versions: dict[str, str]
    commit: str
    date: str

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def lines(self) -> list[str]:
        """A few lines for people."""
        cache = f", L3 {self.l3_bytes >> 20} MB" if self.l3_bytes else ""
        lines = [f"{self.cpu}, {self.cores} cores{cache}; level {self.isa}, {self.threads} threads"]
        if self.memory_bytes_per_s:
            lines.append(f"memory read (1 GiB): {self.memory_bytes_per_s / 1e9:.1f} GB/s")
        lines.append(", ".join(f"{name} {text}" for name, text in self.versions.items()))
        lines.append(f"commit {self.commit}, {self.date}")
        if self.load is not None and self.load > 0.3:
            lines.append(f"load {self.load:.1f} when it began: the machine was not quiet")
        return lines


def describe_machine(threads: int, *, measure_memory: bool = False) -> Machine:
    """The machine now.

    Parameters
    ----------
    threads : int
        Threads of the benchmarks.
    measure_memory : bool
        Measure the read speed of memory too: needs a free GiB and about a second.
    """
    versions = {"flarecore": __version__, "Python": platform.python_version()}
    for name in ("numpy", "llama-cpp-python", "torch", "transformers"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    now = datetime.datetime.now(datetime.timezone.utc)
    return Machine(
        cpu=_cpu_name(), isa=_C.cpu_isa(), cores=os.cpu_count() or 1, threads=threads,
        l3_bytes=_l3_bytes(), load=_load(),
        memory_bytes_per_s=dram_bandwidth(threads) if measure_memory else None,
        versions=versions, commit=_commit(), date=now.isoformat(timespec="seconds"))


def dram_bandwidth(threads: int) -> float:
    """Bytes a second of reading 1 GiB, median of seven passes."""
    return float(_C.memory_read_bandwidth(_LARGE_BYTES, threads, 7))


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _l3_bytes() -> int | None:
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(text.rstrip("KM")) << (20 if text.endswith("M") else 10)
    except (OSError, ValueError):
        return None


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def _commit() -> str:
    folder = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True,
                              check=True, timeout=10)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "--short", "HEAD")
        return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
