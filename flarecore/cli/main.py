"""The ``flarecore`` command: arguments, errors and exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped with Ctrl-C, 141 the reader of the output
has gone. A command's module is loaded when its arguments are known, so that ``--version`` and
``--help`` load neither the native core nor the terminal library.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence

from flarecore import __version__
from flarecore.cli import bench, demo, doctor, eval, generate, index, trace
from flarecore.cli.parser import CommandParser
from flarecore.errors import (
    ConfigError,
    ContextOverflowError,
    FlarecoreError,
    IndexFileError,
    ModelFileError,
    OutOfBlocksError,
    PassageFileError,
    RetrievalError,
    RetrievalWarning,
    UnsupportedError,
)

__all__ = ["main"]

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141

_HINTS: tuple[tuple[type[FlarecoreError], str], ...] = (
    (PassageFileError, "delete the file of passages: it is made again where it is not there"),
    (IndexFileError, "build the index again: flarecore index SOURCE -o INDEX"),
    (ModelFileError, "'flarecore doctor' lists the models that are installed"),
    (OutOfBlocksError, "give the KV cache more memory: --kv-cache-mb"),
    (UnsupportedError, "'flarecore doctor' shows what this installation can do"),
    (RetrievalError, "--debug shows where the retriever failed"),
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    common.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS,
        help="show the traceback of an error (also: FLARECORE_DEBUG=1)")
    parser = CommandParser(
        prog="flarecore", parents=[common], allow_abbrev=False,
        description="Answers that look things up while they are written (FLARE), on the CPU.")
    parser.add_argument("--version", action="version", version=f"flarecore {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (demo, generate, index, trace, eval, bench, doctor):
        module.add_parser(commands, common)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; None takes those of the process.

    Returns
    -------
    int
        The exit code. Nothing is raised but ``SystemExit`` (0 or 2) from ``--help``, ``--version``
        and wrong arguments.
    """
    try:
        return _run(argv)
    except KeyboardInterrupt:
        print("\nflarecore: stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return EXIT_BROKEN_PIPE


def _open_closed_streams() -> None:
    """Standard streams that were closed before the start (None in Python) lead nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (kept)


def _run(argv: Sequence[str] | None) -> int:
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show θ or Chinese gets "?" instead of a failure.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    args = build_parser().parse_args(argv)
    debug = getattr(args, "debug", False) or os.environ.get("FLARECORE_DEBUG", "") not in ("", "0")
    try:
        with warnings.catch_warnings():
            show = warnings.showwarning
            warnings.simplefilter("default", RetrievalWarning)
            warnings.showwarning = lambda message, kind, *where: (
                print(f"flarecore: warning: {message}", file=sys.stderr)
                if issubclass(kind, RetrievalWarning) else show(message, kind, *where))
            code: int = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except Exception as error:
        if debug:
            raise
        return _report(error, args.command)


def _with_flags(message: str) -> str:
    """What a message says to do, in the options of the command line."""
    what, _, remedy = message.rpartition("; ")
    remedy = remedy.replace("overflow='drop_oldest'", "--overflow drop_oldest")
    remedy = re.sub(r"\bmax_\w+", lambda name: "--" + name.group().replace("_", "-"), remedy)
    return f"{what}; {remedy}" if what else remedy


def _drop_stdout() -> None:
    """Sends what is still buffered nowhere, so that the interpreter's own flush cannot fail."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):  # a stdout that is no file has nothing to flush
        pass


def _report(error: Exception, command: str) -> int:
    """Prints an error as a message and a hint; returns the exit code."""
    if isinstance(error, ConfigError):
        hint, code = f"'flarecore {command} --help' lists the options", EXIT_USAGE
    elif isinstance(error, FlarecoreError):
        hint = next((text for kind, text in _HINTS if isinstance(error, kind)), "")
        code = EXIT_FAILED
    elif isinstance(error, (OSError, MemoryError)):
        hint, code = "", EXIT_FAILED
    elif isinstance(error, ImportError):
        hint, code = "'flarecore doctor' shows what is missing and how to install it", EXIT_FAILED
    else:
        hint, code = "this should not happen; --debug shows where, please report it", EXIT_FAILED
        error = RuntimeError(f"{type(error).__name__}: {error}")
    message = str(error) or type(error).__name__
    if isinstance(error, ContextOverflowError):
        message = _with_flags(message)
    print(f"flarecore: error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return code
