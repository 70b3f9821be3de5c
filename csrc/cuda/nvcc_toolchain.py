"""Finds nvcc, says why it cannot be used, and holds the flags of every .cu file.

Used by setup.py and by compile_table.py; needs nothing but the standard library.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

CUDA_FOLDER = Path(__file__).resolve().parent
INCLUDE_FOLDER = CUDA_FOLDER.parent
SOURCES = sorted(CUDA_FOLDER.glob("*.cu"))
OLDEST = (11, 8)  # the first that knows sm_90
DEFAULT_ARCHITECTURES = (80, 90)

# fmad=false: a multiply and an add are fused only where the source says so, as in the emulation and
# in the CPU core, so that all of them give the same bits. visibility: nothing but the module's init
# function is exported.
COMPILE_FLAGS = [
    "-std=c++17", "-O3", "-fmad=false", "--expt-relaxed-constexpr",
    "-Xcompiler", "-fPIC,-fvisibility=hidden,-Wall,-Wextra", f"-I{INCLUDE_FOLDER}",
]  # fmt: skip
# The runtime is linked in, so that the module loads without a driver and beside any torch.
LINK_FLAGS = ["-shared", "-cudart", "static", "-Xlinker", "--exclude-libs=ALL"]

PROBE = """
#include <cuda_runtime_api.h>
#include <vector>
__global__ void probe_kernel(int* out) { *out = 1; }
std::vector<int> probe(int* out) { probe_kernel<<<1, 1>>>(out); return {cudaGetLastError()}; }
"""


class NvccUnavailable(Exception):
    """Why there is no usable nvcc, and what to do about it."""


@dataclass(frozen=True)
class Nvcc:
    """A compiler that compiles and links.

    Attributes
    ----------
    path
        Of the executable.
    version
        As text, such as 13.0.88.
    architectures
        Compute capabilities to build for, ascending, such as (80, 90); the last one also as PTX,
        which newer devices compile when they first load it.
    """

    path: str
    version: str
    architectures: tuple[int, ...]

    @property
    def key(self) -> str:
        """Names everything that objects depend on besides their sources."""
        return f"nvcc-{self.version}-" + "-".join(map(str, self.architectures))

    def compile_command(self, source: Path | str, target: Path | str) -> list[str]:
        newest = self.architectures[-1]
        codes = [f"arch=compute_{n},code=sm_{n}" for n in self.architectures]
        codes.append(f"arch=compute_{newest},code=compute_{newest}")
        options = [option for code in codes for option in ("-gencode", code)]
        return [self.path, *COMPILE_FLAGS, *options, "-c", str(source), "-o", str(target)]

    def link_command(self, objects: list[str], target: Path | str) -> list[str]:
        return [self.path, *LINK_FLAGS, "-o", str(target), *objects]


def mode() -> str:
    """FLARECORE_CUDA: "1" (build or fail), "0" (never) or "" (build if possible)."""
    value = os.environ.get("FLARECORE_CUDA", "")
    if value not in ("", "0", "1"):
        raise SystemExit(
            f"FLARECORE_CUDA must be 1 (build flarecore._cuda or fail), 0 (never build it) or "
            f"unset (build it if nvcc can), got {value!r}"
        )
    return value


def find_executable() -> str:
    """nvcc of CUDA_HOME or CUDA_PATH if one is set, else of PATH or of the usual place."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            places = [str(Path(os.environ[name]) / "bin" / "nvcc")]
            where = f"bin of {name}={os.environ[name]}"
            break
    else:
        places, where = ["nvcc", "/usr/local/cuda/bin/nvcc"], "PATH and /usr/local/cuda/bin"
    for place in places:
        found = shutil.which(place)
        if found is not None:
            return found
    raise NvccUnavailable(f"nvcc not found in {where}; install the CUDA toolkit")


@lru_cache(maxsize=1)
def find() -> Nvcc:
    """The nvcc to use, after a trial; raises NvccUnavailable."""
    path = find_executable()
    version = _version(path)
    nvcc = Nvcc(path, version, _architectures(path))
    _try_out(nvcc)
    return nvcc


def _version(path: str) -> str:
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    except OSError as error:
        raise NvccUnavailable(f"{path} does not run: {error}") from error
    match = re.search(r"V(\d+)\.(\d+)\.(\d+)", text)
    if match is None:
        raise NvccUnavailable(f"{path} does not tell its version")
    if (int(match[1]), int(match[2])) < OLDEST:
        raise NvccUnavailable(
            f"{path} is version {match[0][1:]}, older than {OLDEST[0]}.{OLDEST[1]}; install a "
            "newer CUDA toolkit"
        )
    return match[0][1:]


def _architectures(path: str) -> tuple[int, ...]:
    """FLARECORE_CUDA_ARCHS ("80 90") or the default, as far as nvcc knows them."""
    listed = subprocess.run([path, "--list-gpu-arch"], capture_output=True, text=True).stdout
    known = {int(n) for n in re.findall(r"compute_(\d+)\b", listed)}
    given = os.environ.get("FLARECORE_CUDA_ARCHS", "")
    try:
        wanted = tuple(sorted({int(n) for n in given.replace(",", " ").split()}))
    except ValueError:
        wanted = (-1,)
    wanted = wanted or tuple(n for n in DEFAULT_ARCHITECTURES if n in known)
    if not wanted or min(wanted) < 80 or not set(wanted) <= known:
        raise NvccUnavailable(
            f"FLARECORE_CUDA_ARCHS must name architectures from 80 on that {path} knows "
            f"({' '.join(str(n) for n in sorted(known) if n >= 80)}), got {given!r}"
        )
    return wanted


def _try_out(nvcc: Nvcc) -> None:
    """Compile and link a kernel: host compilers that are too new and runtimes that are not there
    show here, not halfway through a build."""
    with tempfile.TemporaryDirectory() as folder:
        source, obj, target = (Path(folder) / f"probe.{end}" for end in ("cu", "o", "so"))
        source.write_text(PROBE)
        for command in (nvcc.compile_command(source, obj), nvcc.link_command([str(obj)], target)):
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                lines = (result.stderr + result.stdout).strip().splitlines() or ["no message"]
                error = next((line for line in lines if "error" in line.lower()), lines[0])
                raise NvccUnavailable(
                    f"nvcc {nvcc.version} cannot build here: {error.strip()} (NVCC_CCBIN names a "
                    "host compiler that it accepts; libcudart_static comes with the toolkit)"
                )
