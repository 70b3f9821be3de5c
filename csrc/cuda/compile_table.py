"""Compiles every .cu for each architecture and keeps what ptxas says of its kernels in COMPILED.md.

``python csrc/cuda/compile_table.py`` writes the table, ``--check`` compares only. Exit code 1 if a
kernel spills registers, a compiler warns, or (``--check``) the table is out of date.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True  # a folder in csrc/ that changes would look like new sources
import nvcc_toolchain  # noqa: E402

TABLE = Path(__file__).resolve().parent / "COMPILED.md"
ARCHITECTURES = nvcc_toolchain.DEFAULT_ARCHITECTURES
MAX_SHARED_BYTES = 48 << 10  # static shared memory of a block
# Template arguments as they stand in a mangled name.
ARGUMENTS = {"": "", "If": "float32", "INS0_4HalfE": "float16", "INS0_8Bfloat16E": "bfloat16",
             "Ih": "1 byte", "It": "2 bytes", "Ij": "4 bytes", "INS0_7Bytes16E": "16 bytes"}


@dataclass(frozen=True)
class Row:
    """One kernel on one architecture; registers per thread, the rest in bytes."""

    source: str
    kernel: str
    argument: str
    architecture: int
    registers: int
    spills: int
    stack: int
    shared: int

    def cells(self) -> list[str]:
        return [self.source, self.kernel, self.argument, f"sm_{self.architecture}",
                *map(str, (self.registers, self.spills, self.stack, self.shared))]


def compile_source(nvcc: nvcc_toolchain.Nvcc, source: Path, architecture: int) -> list[Row]:
    """ptxas's figures of one file; raises RuntimeError with the compiler's words."""
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc.path, *nvcc_toolchain.COMPILE_FLAGS, "-Werror", "all-warnings", "-Xptxas",
                   "-v", "-cubin", f"-arch=sm_{architecture}", str(source), "-o",
                   str(Path(folder) / "kernels.cubin")]
        result = subprocess.run(command, capture_output=True, text=True)
    report = result.stdout + result.stderr
    if result.returncode != 0:
        raise RuntimeError(f"{source.name} does not compile for sm_{architecture}:\n{report}")
    return [read_kernel(source.name, architecture, part)
            for part in report.split("Compiling entry function")[1:]]


def read_kernel(source: str, architecture: int, report: str) -> Row:
    name = re.search(r"\d([a-z_]+)_kernel(I\w*?E)?Ev?", report.split("for 'sm_")[0])
    if name is None:
        raise RuntimeError(f"no kernel named in ptxas's report of {source}: {report}")
    argument = (name[2] or "").removesuffix("E") if name[2] and "S0_" not in name[2] \
        else name[2] or ""
    stack, stored, loaded = (
        int(re.search(rf"(\d+) bytes {what}", report)[1])
        for what in ("stack frame", "spill stores", "spill loads"))
    shared = re.search(r"(\d+) bytes smem", report)
    return Row(source, name[1], ARGUMENTS[argument], architecture,
               int(re.search(r"Used (\d+) registers", report)[1]), stored + loaded, stack,
               int(shared[1]) if shared else 0)


def rows(nvcc: nvcc_toolchain.Nvcc) -> list[Row]:
    """Every kernel on every architecture."""
    pairs = [(s, a) for s in nvcc_toolchain.SOURCES for a in ARCHITECTURES]
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(lambda pair: compile_source(nvcc, *pair), pairs)
        return sorted((row for part in parts for row in part), key=Row.cells)


def render(found: list[Row], version: str) -> str:
    lines = [
        "# What the compiler makes of the CUDA kernels", "",
        "Written by `python csrc/cuda/compile_table.py`; registers are per thread, the rest in "
        "bytes; shared memory is per block of 256 threads.", "",
        f"nvcc {version}", "",
        "| source | kernel | for | architecture | registers | spills | stack | shared memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join(lines + [f"| {' | '.join(row.cells())} |" for row in found]) + "\n"


def problems(found: list[Row]) -> list[str]:
    """Kernels that spill or ask for more shared memory than there is."""
    out = []
    for row in found:
        name = f"{row.kernel} {row.argument} in {row.source} (sm_{row.architecture})"
        if row.spills:
            out.append(f"{name} spills {row.spills} bytes of registers")
        if row.shared > MAX_SHARED_BYTES:
            out.append(f"{name} needs {row.shared} bytes of shared memory")
    return out


def differences(text: str, version: str) -> list[str]:
    """Why COMPILED.md is out of date; figures count for the same nvcc only."""
    kept = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
    same_version = f"nvcc {version}\n" in kept

    def cells(table: str) -> set[tuple[str, ...]]:
        split = [line.strip("| ").split(" | ") for line in table.splitlines() if "| sm_" in line]
        return {tuple(c if same_version else c[:4]) for c in split}

    new, old = cells(text), cells(kept)
    return [f"not in COMPILED.md: {' | '.join(row)}" for row in sorted(new - old)] + [
        f"no longer true in COMPILED.md: {' | '.join(row)}" for row in sorted(old - new)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check = parser.parse_args().check
    try:
        nvcc = nvcc_toolchain.find()
        found = rows(nvcc)
    except (nvcc_toolchain.NvccUnavailable, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    text = render(found, nvcc.version)
    wrong = problems(found) + (differences(text, nvcc.version) if check else [])
    print(text)
    for problem in wrong:
        print(problem, file=sys.stderr)
    if not check:
        TABLE.write_text(text, encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
