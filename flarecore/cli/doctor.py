"""``flarecore doctor``: what this installation can do, what was chosen and why."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flarecore import __version__
from flarecore.cli.options import add_quantize_option
from flarecore.errors import ConfigError, FlarecoreError
from flarecore.model_files import find_model
from flarecore.reference.transformers_import import INSTALL_TRANSFORMERS

__all__ = ["Check", "add_parser", "checks", "run"]

# (module, distribution, what for, how to get it)
_NEEDED = (
    ("numpy", "numpy"), ("tokenizers", "tokenizers"), ("jinja2", "Jinja2"),
    ("hnswlib", "hnswlib"), ("rich", "rich"),
)
_EXTRAS = (
    ("bm25s", "bm25s", "BM25 and hybrid indexes", "pip install 'flarecore[bm25]'"),
    ("Stemmer", "PyStemmer", "indexes that stem words", "pip install 'flarecore[stemming]'"),
    ("torch", "torch", "the reference and the tests", INSTALL_TRANSFORMERS),
    ("transformers", "transformers", "the reference and the tests", INSTALL_TRANSFORMERS),
    ("llama_cpp", "llama-cpp-python", "benchmarks beside llama.cpp",
     "pip install 'flarecore[bench]' (compiles for minutes)"),
    ("triton", "triton", "GPU kernels", "pip install 'flarecore[gpu]'"),
)


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Parameters
    ----------
    name, value : str
        What was looked at, and what was found.
    state : {"ok", "missing", "bad"}
        ``missing`` is optional and does no harm, ``bad`` keeps the core from working.
    hint : str
        What to do about it.
    """

    name: str
    value: str
    state: str = "ok"
    hint: str = ""


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "doctor", parents=[common], allow_abbrev=False,
        help="show what this installation can do and what was chosen",
        description="Prints versions, CPU level, threads, memory, models and extras, with a hint "
        "for whatever is missing. Exit code 1 if the core cannot work.")
    parser.add_argument("--model", metavar="NAME_OR_PATH",
                        help="open this model, too, and say what it is")
    add_quantize_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    if args.quantize is not None and args.model is None:
        raise ConfigError("--quantize says how to load a model: --model NAME_OR_PATH is missing")
    found = list(checks())
    if args.model is not None:
        found += _model(args.model, args.quantize)
    width = max(len(check.name) for check in found)
    marks = {"ok": " ", "missing": "-", "bad": "!"}
    for check in found:
        print(f"{marks[check.state]} {check.name:<{width}}  {check.value}")
        if check.hint:
            print(f"  {'':<{width}}  → {check.hint}")
    bad = [check.name for check in found if check.state == "bad"]
    print(f"\nnot usable: {', '.join(bad)}" if bad else "\nready")
    return 1 if bad else 0


def checks() -> Iterator[Check]:
    """Everything that is looked at, in the order of the report."""
    yield Check("flarecore", __version__)
    yield Check("python", f"{platform.python_version()} ({sys.executable})")
    yield Check("machine", f"{platform.machine()}, {platform.platform(terse=True)}")
    yield from _core()
    yield _memory()
    for module, distribution in _NEEDED:
        yield _package(module, distribution, "bad", f"pip install {distribution}")
    yield from _models()
    for module, distribution, purpose, hint in _EXTRAS:
        yield _package(module, distribution, "missing", f"for {purpose}: {hint}")
    yield from _gpu()


def _core() -> Iterator[Check]:
    try:
        from flarecore import _C
    except ImportError as error:
        yield Check("native core", f"not loadable: {error}", "bad",
                    "build it: pip install -e . (in a checkout: make setup)")
        return
    yield Check("native core", "flarecore._C")
    forced = os.environ.get("FLARECORE_CPU_ISA", "")
    available = ", ".join(_C.available_isas())
    try:
        level = _C.cpu_isa()
    except FlarecoreError as error:
        yield Check("cpu level", f"FLARECORE_CPU_ISA={forced}", "bad", str(error))
        return
    why = f"forced by FLARECORE_CPU_ISA={forced}" if forced else "the highest this CPU can run"
    yield Check("cpu level", f"{level} ({why}; available: {available})")
    yield Check("threads", _threads(_C.usable_num_threads()))


def _threads(usable: int) -> str:
    cores = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    if usable < allowed:
        why = f"the cgroup's CPU quota; {allowed} of {cores} cores by affinity"
    elif allowed < cores:
        why = f"CPU affinity, of {cores} cores; no smaller cgroup quota"
    else:
        why = "all cores; neither affinity nor a cgroup quota sets less"
    return f"{usable} ({why})"


def _memory() -> Check:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        free = _available_bytes()
    except (ValueError, OSError, AttributeError):
        return Check("memory", "unknown")
    text = f"{total / 2**30:.1f} GiB" + ("" if free is None else f", {free / 2**30:.1f} GiB free")
    if free is not None and free < 1 << 29:
        return Check("memory", text, "ok", "less than 0.5 GiB free: the demo needs about that much")
    return Check("memory", text)


def _available_bytes() -> int | None:
    """What the kernel could give a new process; None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return None


def _package(module: str, distribution: str, state: str, hint: str) -> Check:
    """Looks for a package without importing it."""
    if importlib.util.find_spec(module) is None:
        return Check(module, "not installed", state, hint)
    try:
        return Check(module, importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return Check(module, "installed, version unknown")


def _models() -> Iterator[Check]:
    from flarecore.model_files import KNOWN_MODELS, find_model

    for name, model in KNOWN_MODELS.items():
        path = model.locate()
        if model.parts is not None and path is not None and not path.exists():
            yield Check(name, "installed in parts, joined when it is first used")
            continue
        try:
            yield Check(name, str(find_model(name)))
        except FlarecoreError:
            yield Check(name, "not installed", "missing", model.pip_command)


def _gpu_engine() -> Check:
    from flarecore.gpu.device import has_driver, probe_device

    if not has_driver():  # spares the import of torch
        return Check("gpu engine", "not available: no NVIDIA driver was found", "missing",
                     'only needed for device="cuda"')
    report = probe_device()
    if report.name is None:
        return Check("gpu engine", f"not available: {report.reason}", "missing",
                     'only needed for device="cuda"')
    return Check("gpu engine", f'{report.name}: device="cuda" works')


def _model(name: str, quantize: str | None) -> Iterator[Check]:
    """One model or sentence encoder, opened; with `quantize`, what that changes in each kind of
    matrix."""
    from flarecore.model import Model
    from flarecore.retrieval.encoder import SentenceEncoder

    opened: Model | SentenceEncoder
    try:
        if _is_encoder(name):
            opened = encoder = SentenceEncoder.load(name, quantize=quantize)
            yield Check("encoder", f"{name}: {encoder.dim} dimensions, texts of up to "
                        f"{encoder.max_tokens} tokens")
        else:
            opened = model = Model.load(name, quantize=quantize)
            c = model.config
            yield Check("model", f"{name}: {c.architecture}, {c.num_layers} layers of "
                        f"{c.hidden_size}, {c.vocab_size} tokens, context {c.context_length}")
        if opened.quantization is not None:
            for line in opened.quantization.lines():
                yield Check("quantized" if not line.startswith(" ") else "", line.strip())
    except FlarecoreError as error:
        yield Check("model", f"{name}: not usable", "bad", str(error))


def _is_encoder(name: str) -> bool:
    """Whether the folder says that it holds a BERT; what is wrong with it shows when it opens."""
    try:
        config = json.loads((find_model(name) / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == "bert"


def _gpu() -> Iterator[Check]:
    yield _gpu_engine()
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    try:
        from flarecore import _cuda
    except ImportError as error:
        yield _without_cuda(error, nvcc)
    else:
        built = _cuda.build_info()
        how = f"built by nvcc {built['nvcc']} for {built['architectures']}"
        yield Check("flarecore._cuda", how)
        count = _cuda.device_count()
        yield Check("cuda devices", _cuda.device_status(), "ok" if count else "missing",
                    "" if count else "needed for device=\"cuda\" only")
    if nvcc is None:
        yield Check("nvcc", "not found", "missing", "only needed to build flarecore._cuda")
    else:
        yield Check("nvcc", nvcc)


def _without_cuda(error: ImportError, nvcc: str | None) -> Check:
    """Why there is no CUDA module, as far as it can be told now."""
    if importlib.util.find_spec("flarecore._cuda") is not None:
        return Check("flarecore._cuda", f"not loadable: {error}", "missing",
                     "build it again: FLARECORE_CUDA=1 pip install -e .")
    if nvcc is None:
        return Check("flarecore._cuda", "not built: there is no nvcc here", "missing",
                     "for NVIDIA GPUs: install the CUDA toolkit (11.8 or later) and build again")
    return Check("flarecore._cuda", "not built, although there is an nvcc", "missing",
                 "FLARECORE_CUDA=1 pip install -e . builds it or says why it cannot")
