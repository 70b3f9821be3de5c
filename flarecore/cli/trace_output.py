"""``--trace FILE`` of the commands that write answers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flarecore.errors import ConfigError

if TYPE_CHECKING:
    from flarecore.trace import Trace

__all__ = ["add_trace_option", "check_trace_option", "save_traces"]


def add_trace_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option."""
    parser.add_argument(
        "--trace", metavar="FILE",
        help="write what happened, sentence by sentence: a page for the browser if FILE ends in "
             ".html, else JSON for 'flarecore trace'; '-' prints it after the events of --json")


def check_trace_option(args: argparse.Namespace) -> None:
    """Checks the option before any work is done.

    Raises
    ------
    ConfigError
        The file cannot be written there.
    """
    if args.trace is None:
        return
    if args.trace == "-":
        if not args.json:
            raise ConfigError("--trace - needs --json: standard output holds the answer; name a "
                              "file instead")
        return
    path = Path(args.trace)
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise ConfigError(f"--trace: {args.trace} is a folder or in a folder that does not exist")


def save_traces(path: str, traces: Sequence[Trace]) -> None:
    """Writes traces: as a page, as indented JSON, or as JSON lines if there are several.

    Raises
    ------
    OSError
        The file cannot be written; what was there is as it was.
    """
    from flarecore.whole_file import write_whole

    if path == "-":
        for trace in traces:
            print(trace.to_json(), flush=True)
    elif path.lower().endswith((".html", ".htm")):
        from flarecore.trace_html import trace_page

        write_whole(path, trace_page(traces))
    elif len(traces) == 1:
        write_whole(path, traces[0].to_json(indent=1) + "\n")
    else:
        write_whole(path, "".join(trace.to_json() + "\n" for trace in traces))
