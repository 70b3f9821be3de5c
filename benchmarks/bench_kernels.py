"""Matrix products of the CPU kernels, one row per weight format, level and thread count.

Each case is first checked against a float64 product of the values by the ``gguf`` package. Then it
is timed on a matrix of ``--megabytes`` packed bytes: one row (GB/s of weights read, beside a plain
read of as many bytes in the same run), few rows (cost against one row), many rows (10^9
multiply-adds a second). Medians, with the 20th and 80th percentile in the JSON rows.

Run: ``python benchmarks/bench_kernels.py --formats Q4_1 Q8_0 --isas avx2 --json``
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from kernel_helpers import (
    QUANTIZED,
    TYPES,
    block_size,
    quantized_values,
    random_tensor,
    spec_values,
)

from flarecore import _C

testing = _C.testing
FEW_ROWS = (2, 4, 8, 16)


def check_case(type_name: str, isa: str) -> None:
    """Raise AssertionError unless the kernel is right on an awkward shape."""
    data = random_tensor(type_name, 37, 512)
    w = spec_values(type_name, data).astype(np.float64)
    x = np.random.default_rng(0).standard_normal((11, 512)).astype(np.float32)
    exact = quantized_values(x) if type_name in QUANTIZED else x.astype(np.float64)
    packed = testing.PackedMatrix(type_name, data, 37, 512, isa)
    error = np.abs(packed.matmul(x, [packed.num_tiles]) - exact @ w.T)
    assert np.all(error <= 2e-6 * (np.abs(exact) @ (np.abs(w) + np.abs(w).max()).T))


def quantiles(seconds: list[float]) -> tuple[float, float, float]:
    p20, p50, p80 = np.percentile(seconds, [20, 50, 80])
    return float(p20), float(p50), float(p80)


def describe_machine() -> dict[str, str]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [n for n in cpuinfo.read_text().splitlines() if n.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return {"machine": model, "commit": commit, "numpy": np.__version__}


def big_matrix(type_name: str, isa: str, cols: int, megabytes: float, pool):
    """A matrix of about that many packed bytes; its rows repeat, which no kernel can notice."""
    values, size = block_size(type_name)
    rows = int(megabytes * 1e6 * values / size / cols) // 256 * 256
    part = random_tensor(type_name, 256, cols)
    data = np.tile(part, (max(rows, 256) // 256, 1))
    return testing.PackedMatrix(type_name, data, data.shape[0], cols, isa, pool=pool), data.shape[0]


def bench_case(type_name: str, isa: str, threads: int, args: argparse.Namespace) -> dict:
    pool = testing.ThreadPool(threads)
    packed, rows = big_matrix(type_name, isa, args.cols, args.megabytes, pool)
    small, small_rows = big_matrix(type_name, isa, args.cols, args.megabytes / 16, pool)
    rng = np.random.default_rng(1)
    memory = np.ones(packed.size_bytes // 8 + 1)
    times = {n: [] for n in (1, *FEW_ROWS)}
    read = []
    for _ in range(args.repeats):  # interleaved, so that a busy neighbour hits all alike
        read += testing.time_read(memory, pool, 1)
        for n in times:
            x = rng.standard_normal((n, args.cols)).astype(np.float32)
            times[n] += testing.time_matmul(packed, x, pool, 1)
    one = quantiles(times[1])
    row = {
        "format": type_name, "isa": isa, "threads": threads, "cols": args.cols, "channels": rows,
        "packed_mb": packed.size_bytes / 1e6, "one_row_s": one,
        "one_row_gb_s": packed.size_bytes / one[1] / 1e9,
        "read_gb_s": memory.nbytes / quantiles(read)[1] / 1e9,
    }  # fmt: skip
    row["of_read"] = row["one_row_gb_s"] / row["read_gb_s"]
    for n in FEW_ROWS:
        row[f"cost_{n}"] = quantiles(times[n])[1] / one[1]
    for n in args.many:
        x = rng.standard_normal((n, args.cols)).astype(np.float32)
        seconds = quantiles(testing.time_matmul(small, x, pool, args.repeats))
        row[f"gmac_{n}"] = n * args.cols * small_rows / seconds[1] / 1e9
        row[f"many_{n}_s"] = seconds
    return row


def print_row(row: dict, many: list[int]) -> None:
    costs = " ".join(f"{row[f'cost_{n}']:5.2f}" for n in FEW_ROWS)
    rates = " ".join(f"{row[f'gmac_{n}']:7.1f}" for n in many)
    print(
        f"{row['format']:5} {row['isa']:8} {row['threads']:2} {row['one_row_gb_s']:7.1f} "
        f"{row['read_gb_s']:7.1f} {row['of_read']:6.0%} {costs} {rates}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="+", default=QUANTIZED, choices=TYPES)
    parser.add_argument("--isas", nargs="+", default=_C.available_isas()[1:] or ["generic"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, _C.usable_num_threads()])
    parser.add_argument("--many", nargs="+", type=int, default=[32, 128, 512])
    parser.add_argument("--cols", type=int, default=1536)
    parser.add_argument("--megabytes", type=float, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON row a line instead")
    args = parser.parse_args()
    machine = describe_machine()
    if not args.json:
        print(machine["machine"], machine["commit"])
        costs = " ".join(f"{'x' + str(n):>5}" for n in FEW_ROWS)
        rates = " ".join(f"{'GMAC@' + str(n):>7}" for n in args.many)
        print(f"{'':5} {'level':8} th {'GB/s':>7} {'read':>7} {'':>6} {costs} {rates}")
    for isa in args.isas:
        for type_name in args.formats:
            check_case(type_name, isa)
            for threads in sorted(set(args.threads)):
                row = bench_case(type_name, isa, threads, args)
                if args.json:
                    print(json.dumps({**machine, **row}), flush=True)
                else:
                    print_row(row, args.many)


if __name__ == "__main__":
    main()
