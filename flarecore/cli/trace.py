"""``flarecore trace``: traces as a page for people."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from flarecore.errors import ConfigError

__all__ = ["add_parser", "run"]


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "trace", parents=[common], allow_abbrev=False,
        help="show how answers came about, as a page for the browser",
        description="Writes one self-contained HTML page: the answer sentence by sentence, drafts "
        "with their confidences, queries, passages, what was rewritten, and what it cost. Make "
        "traces with 'flarecore generate --trace FILE', 'flarecore demo --trace FILE' or "
        "Trace.to_json().")
    parser.add_argument("file", metavar="FILE",
                        help="a trace, or JSON lines with several (then the page has an index); "
                             "'-' reads standard input")
    parser.add_argument("-o", "--output", metavar="PAGE",
                        help="the page to write, '-' for standard output (default: FILE with the "
                             "ending .html)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from flarecore.trace_file import read_traces
    from flarecore.trace_html import trace_page
    from flarecore.whole_file import write_whole

    output = _output(args.file, args.output)
    if args.file == "-":
        data, where = sys.stdin.buffer.read(), "standard input"
    else:
        data, where = Path(args.file).read_bytes(), args.file
    traces = read_traces(data, where)
    page = trace_page(traces)
    if output == "-":
        sys.stdout.buffer.write(page.encode("utf-8"))
        return 0
    write_whole(output, page)
    num_sentences = sum(len(trace.sentences) for trace in traces)
    print(f"{output}: {len(traces)} answer{'s' * (len(traces) != 1)}, "
          f"{num_sentences} sentence{'s' * (num_sentences != 1)}")
    return 0


def _output(source: str, output: str | None) -> str:
    """Where the page goes.

    Raises
    ------
    ConfigError
        Nowhere, or over the traces.
    """
    if output is None:
        if source == "-":
            raise ConfigError("-o PAGE is needed where the trace comes from standard input")
        output = str(Path(source).with_suffix(".html"))
    is_same = output != "-" and source != "-" and os.path.exists(output) \
        and os.path.samefile(output, source)
    if is_same or output == source != "-":
        raise ConfigError(f"the page would replace the trace {source}; name another with -o PAGE")
    return output
