"""Other implementations on the same file: which ones there are, and why one is missing."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import importlib.util
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from flarecore.bench.runner import Runner, file_format
from flarecore.errors import ConfigError, FlarecoreError, UnsupportedError

__all__ = [
    "PEERS", "cache_folder", "installed_peers", "make_format", "missing_note", "open_peer",
    "parse_peers",
]

# Name on the command line -> the file it reads: the given one, or one made from it.
_LLAMA_FORMATS = {"llama": None, "llama-f16": "F16", "llama-q8_0": "Q8_0", "llama-q4_0": "Q4_0"}
PEERS = (*_LLAMA_FORMATS, "transformers")
_TRIAL_SECONDS = 120.0
_LLAMA_MISSING = "llama.cpp is not installed: pip install 'flarecore[bench]' (compiles for minutes)"


def parse_peers(text: str) -> tuple[str, ...]:
    """Peers from a comma-separated list; ``none`` is none, ``all`` is all.

    ``llama`` alone also stands for its other formats: it is to be compared at its best.

    Raises
    ------
    ConfigError
        A name is unknown.
    """
    names: list[str] = []
    for name in (part.strip() for part in text.split(",") if part.strip()):
        if name == "none":
            continue
        if name == "all":
            names += PEERS
        elif name == "llama":
            names += _LLAMA_FORMATS
        elif name in PEERS:
            names.append(name)
        else:
            raise ConfigError(f"unknown peer {name!r}; known: {', '.join(PEERS)}, all, none")
    return tuple(dict.fromkeys(names))


# Implementation -> the extra that installs it, and its modules.
_PACKAGES = {"llama.cpp": ("bench", ("llama_cpp",)),
             "transformers": ("transformers", ("torch", "transformers"))}


def installed_peers(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The peers whose packages are there, and the implementations that are not installed."""
    found, missing = [], []
    for name in names:
        package = "llama.cpp" if name in _LLAMA_FORMATS else name
        if all(map(_is_installed, _PACKAGES[package][1])):
            found.append(name)
        else:
            missing.append(package)
    return tuple(found), tuple(dict.fromkeys(missing))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module of that name was made by hand, without a spec
        return True


def missing_note(missing: Sequence[str], *, is_uncompared: bool = False) -> str:
    """One line on what is not shown since packages are missing, and how to get them.

    Parameters
    ----------
    missing : sequence of str
        Implementations, as from :func:`installed_peers`.
    is_uncompared : bool
        Whether nothing is there to compare float32 with.
    """
    shown = [*missing, *["float32 beside a reference"] * is_uncompared]
    needed = [*missing, *["transformers"] * is_uncompared]
    extras = dict.fromkeys(_PACKAGES[name][0] for name in needed)
    return f"not installed, so not shown: {', '.join(shown)} (pip install " \
           f"'flarecore[{','.join(extras)}]')"


def open_peer(name: str, path: Path, threads: int) -> Runner:
    """A peer on the model's file.

    Parameters
    ----------
    name : str
        One of ``PEERS``.
    path : Path
        A GGUF file. A peer of another format reads one that is made from it once.
    threads : int

    Raises
    ------
    UnsupportedError
        It is not installed, or does not know the model.
    """
    if name == "transformers":
        from flarecore.bench.transformers_runner import TransformersRunner

        return TransformersRunner(path, threads)
    if path.is_dir():
        raise UnsupportedError(f"llama.cpp reads GGUF files, {path} is a directory")
    try:
        importlib.import_module("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:
        hint = _LLAMA_MISSING if isinstance(error, ModuleNotFoundError) else ""
        raise UnsupportedError(hint or f"llama.cpp cannot be loaded: {error}") from error
    from flarecore.bench.llama_runner import LlamaRunner

    kind = _LLAMA_FORMATS[name]
    if kind is not None and kind == file_format(str(path)):
        raise UnsupportedError(f"the file is {kind} already")
    file = path if kind is None else make_format(path, kind, threads)
    repack = can_repack(file, threads)
    runner = LlamaRunner(file, threads, repack=repack)
    if not repack:
        runner.remark = ("its kernels for repacked weights crash on this machine: measured without "
                         "them, it could be faster")
    return runner


@functools.cache
def can_repack(path: Path, threads: int) -> bool:
    """Whether llama.cpp computes this file with its default settings.

    A crash of a peer would end the benchmark, so it is tried in a process of its own first: with
    its defaults, then without its kernels for repacked weights.

    Raises
    ------
    UnsupportedError
        It works in neither way; the message says how it fails.
    """
    from flarecore.bench.load_process import load_once

    try:
        load_once("llama", path, [1, 2, 3, 4], threads, "int8", _TRIAL_SECONDS)
        return True
    except (UnsupportedError, subprocess.TimeoutExpired):
        pass
    try:
        load_once("llama", path, [1, 2, 3, 4], threads, "int8", _TRIAL_SECONDS, repack=False)
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(f"llama.cpp gives no token in {_TRIAL_SECONDS:g} s") from error
    return False


def open_peers(
    names: Sequence[str], path: Path, threads: int
) -> tuple[list[Runner], list[str]]:
    """The peers that can be opened, and a line for each that cannot or needs a remark."""
    runners: list[Runner] = []
    notes: list[str] = []
    for name in names:
        try:
            runner = open_peer(name, path, threads)
            runner.key = name
            runners.append(runner)
            if runner.remark:
                notes.append(f"{runner.name}: {runner.remark}")
        except FlarecoreError as error:
            notes.append(f"no {name}: {error}")
    return runners, notes


def cache_folder() -> Path:
    """Where files made for peers are kept: below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache"
    return root / "flarecore" / "bench"


@functools.cache
def _digest(path: Path) -> str:
    """Start of the checksum of a file, which each of its formats asks for."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()[:16]


def make_format(path: Path, kind: str, threads: int) -> Path:
    """The model in another format, made by llama.cpp's own quantisation and kept.

    Parameters
    ----------
    path : Path
        A GGUF file of any format.
    kind : {"F16", "Q8_0", "Q4_0"}
    threads : int

    Returns
    -------
    Path
        A file in the user's cache, named after the model's content.

    Raises
    ------
    UnsupportedError
        llama.cpp refuses, or the file cannot be written.
    """
    if path.is_dir():
        raise UnsupportedError(f"llama.cpp reads GGUF files, {path} is a directory")
    llama = importlib.import_module("llama_cpp")
    target = cache_folder() / f"{_digest(path)}-{kind.lower()}.gguf"
    if target.is_file():
        return target
    quantize = getattr(llama, "llama_model_quantize", None)
    if quantize is None:
        raise UnsupportedError("this version of llama-cpp-python cannot make other formats")
    params = llama.llama_model_quantize_default_params()
    params.nthread = threads
    params.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True
    # Under another name until it is whole: an interrupted run leaves nothing that looks finished.
    partial = target.with_suffix(f".{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        code = quantize(os.fsencode(path), os.fsencode(partial), ctypes.byref(params))
        if code != 0:
            raise UnsupportedError(f"llama.cpp cannot make {kind} from {path.name}: code {code}")
        partial.replace(target)
    except OSError as error:
        raise UnsupportedError(f"cannot write {target}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target
