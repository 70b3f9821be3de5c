"""The command behind ``benchmarks/gpu_check.py``."""

from __future__ import annotations

import argparse
import faulthandler
import functools
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flarecore.bench.gpu.report import Report, Settings, format_row
from flarecore.errors import FlarecoreError
from flarecore.whole_file import write_whole

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[3]
_SECTIONS = ("kernels", "engine", "sanitizer", "timing")
_SANITIZER_SECONDS = 90
_STUCK_SECONDS = 280  # more than it may take: what hangs is shown with the threads' places


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu_check.py", allow_abbrev=False,
        description="Checks and times the GPU engine on one card, in under five minutes. Exit code "
        "1 if a check failed.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="cpu: Triton's interpreter at tiny sizes, to try the script itself")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller sizes")
    parser.add_argument("--json", metavar="FILE", help="write all rows there")
    parser.add_argument("--section", action="append", choices=_SECTIONS,
                        help="only this one; may be repeated")
    return parser


def _build_what_is_missing(show: Callable[[str], object]) -> None:
    """In a checkout: the CUDA module, where setup.py can. What fails is said and left out."""
    is_missing = importlib.util.find_spec("flarecore._cuda") is None
    if not is_missing or not (_ROOT / "setup.py").is_file():
        return
    show("building flarecore._cuda, which is missing")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--only=_cuda"], cwd=_ROOT,
        capture_output=True, text=True)
    importlib.invalidate_caches()
    if importlib.util.find_spec("flarecore._cuda") is None:
        lines = (done.stderr or done.stdout).strip().splitlines()
        show(f"flarecore._cuda was not built: {lines[-1] if lines else 'no message'}")


def _cuda_module(settings: Settings) -> str:
    """Whether the rows named cuda are there; where not, Triton and torch stand in silently."""
    import torch

    from flarecore.gpu.device_ops import load_cuda

    try:
        info = load_cuda(torch.device(settings.torch_device)).build_info()
    except FlarecoreError as error:
        return f"not used: {error}"
    return f"runtime {info['runtime']}, {info['architectures']}"


def _environment(settings: Settings) -> dict[str, Any]:
    import torch
    import triton

    found: dict[str, Any] = {
        "device": settings.device, "python": sys.version.split()[0], "torch": torch.__version__,
        "triton": triton.__version__, "cuda": torch.version.cuda,
        "_cuda": _cuda_module(settings),
        "flashinfer": importlib.util.find_spec("flashinfer") is not None}
    if settings.is_cuda:
        free, total = torch.cuda.mem_get_info()
        found |= {"gpu": torch.cuda.get_device_name(), "free_bytes": free, "total_bytes": total,
                  "capability": list(torch.cuda.get_device_capability())}
    return found


def _sanitize(settings: Settings) -> str:
    """The kernel checks once more under compute-sanitizer."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not settings.is_cuda or not os.path.exists(tool):
        return "not here: left out"
    # What torch asks the driver and gets refused is no fault of a kernel. Every tensor in an
    # allocation of its own: inside of torch's large ones nothing is out of bounds.
    command = [tool, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9",
               sys.executable, str(_ROOT / "benchmarks" / "gpu_check.py"), "--quick", "--section",
               "kernels"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    try:
        output, _ = process.communicate(timeout=_SANITIZER_SECONDS)
    except subprocess.TimeoutExpired:
        # With the process that the tool has started: it would take its share of every timing.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"took more than {_SANITIZER_SECONDS} s: left out"
    if process.returncode == 9:
        raise AssertionError([line for line in output.splitlines() if "=====" in line][-1])
    if process.returncode != 0:
        return f"does not work here: {(output.strip().splitlines() or ['no message'])[-1]}"
    return "memcheck found nothing"


def _smollm2() -> Path | None:
    from flarecore.model_files import find_model

    try:
        return Path(find_model("smollm2-135m"))
    except FlarecoreError:
        return None


def _run_engine_checks(report: Report, folder: Path) -> None:
    from flarecore.bench.gpu.engine_checks import EngineChecks
    from flarecore.bench.gpu.shapes import SHAPES, write_random_model

    settings = report.settings
    path = folder / "tiny.gguf"
    write_random_model(path, SHAPES["tiny"])
    compute, tolerance, num_tokens = ("float16", 2e-2, 24) if settings.is_cuda else (
        "float32", 1e-4, 3)
    EngineChecks(settings, path, compute, tolerance, num_tokens).run(report, "engine, tiny")
    EngineChecks(settings, path, compute, tolerance, num_tokens, quantize="q4").run_quantized(
        report, "tiny, q4")
    smollm2 = _smollm2() if settings.is_cuda else None
    if smollm2 is not None:
        EngineChecks(settings, smollm2, "bfloat16", 0.1, 24).run(report, "SmolLM2")
    elif settings.is_cuda:
        report.show("SmolLM2      its package is not installed: no rows for it")


def _run_timings(report: Report, folder: Path) -> None:
    from flarecore.bench.gpu.quantized_checks import measure_quantized
    from flarecore.bench.gpu.shapes import SHAPES, write_random_model
    from flarecore.bench.gpu.timings import (
        measure_engine,
        measure_limits,
        measure_samplers,
        measure_shape,
    )

    settings = report.settings
    limits = measure_limits(report)
    measure_samplers(report)
    _guarded(report, "products",
             lambda: measure_quantized(report, limits.copy_bytes_per_s))
    names = [name for name in SHAPES if (name != "tiny") == settings.is_cuda]
    for name in names[:1] if settings.is_quick else names:
        for quantize in (None,) if name == "SmolLM2-135M" else (None, "q8", "q4"):
            _guarded(report, name,
                     functools.partial(measure_shape, report, name, limits, quantize))
    path = _smollm2() if settings.is_cuda else None
    if path is None:
        path = folder / "tiny.gguf"
        write_random_model(path, SHAPES["tiny"])
    tokens = 64 if settings.is_cuda else 4
    _guarded(report, "engine", lambda: measure_engine(report, path, "engine", tokens))


def _guarded(report: Report, section: str, part: Callable[[], None]) -> None:
    """A section that fails is a row; the memory it held goes before the next one."""
    before = len(report.rows)

    def run() -> str:
        part()
        return f"{len(report.rows) - before} rows"

    report.check(section, "section", run)
    if report.settings.is_cuda:
        import torch

        torch.cuda.empty_cache()


def _run_section(report: Report, section: str, folder: Path) -> None:
    if section == "kernels":
        from flarecore.bench.gpu.kernel_checks import check_kernels

        _guarded(report, section, lambda: check_kernels(report))
    elif section == "engine":
        _guarded(report, section, lambda: _run_engine_checks(report, folder))
    elif section == "sanitizer":
        report.check(section, "compute-sanitizer", lambda: _sanitize(report.settings))
    else:
        _guarded(report, section, lambda: _run_timings(report, folder))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    args = _parser().parse_args(arguments)
    settings = Settings("cuda" if args.device == "cuda" else "interpreter", args.quick)
    from flarecore.gpu.device import open_device

    begin = time.perf_counter()
    # At once: a run that is ended from outside has said how far it came, and where it hangs.
    report = Report(settings, show=functools.partial(print, flush=True))
    if settings.is_cuda:
        faulthandler.dump_traceback_later(_STUCK_SECONDS)
        _build_what_is_missing(report.show)
    try:
        open_device(settings.device)
    except FlarecoreError as error:
        print(f"gpu_check: {error}")
        return 2
    environment = _environment(settings)
    report.show("  ".join(f"{name}: {value}" for name, value in environment.items()))
    wanted = args.section or _SECTIONS
    with tempfile.TemporaryDirectory(prefix="flarecore-gpu-check-") as name:
        for section in (section for section in _SECTIONS if section in wanted):
            _run_section(report, section, Path(name))
            seconds = time.perf_counter() - begin
            if args.json:
                write_whole(args.json, json.dumps({
                    "environment": environment, "seconds": seconds, "rows": report.to_dict()},
                    indent=1))
    faulthandler.cancel_dump_traceback_later()
    print("\n" + "\n".join(format_row(row) for row in report.rows))
    print(f"\n{len(report.rows)} rows, {report.num_failed} failed, {seconds:.0f} s")
    return 1 if report.num_failed else 0
