"""``flarecore generate``: one answer with a model and an index."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from flarecore.cli.numbers import print_numbers
from flarecore.cli.options import (
    add_engine_options,
    add_flare_options,
    flare_config,
    parse_filter,
)
from flarecore.cli.trace_output import add_trace_option, check_trace_option, save_traces
from flarecore.errors import ConfigError, FlarecoreError
from flarecore.wording import printable

if TYPE_CHECKING:
    from rich.console import Console

    from flarecore.config import FlareConfig
    from flarecore.flare import AnswerStream, Flare
    from flarecore.result import FlareResult

__all__ = ["add_parser", "run"]


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "generate", parents=[common], allow_abbrev=False,
        help="answer a question with a model and an index",
        description="Writes the answer to standard output, sentence by sentence.")
    parser.add_argument("question", metavar="QUESTION", help="'-' reads it from standard input")
    parser.add_argument("--model", required=True, metavar="NAME_OR_FILE",
                        help="a name such as smollm2-135m, or a .gguf file")
    parser.add_argument("--index", metavar="INDEX", help="an index made by 'flarecore index'")
    parser.add_argument("--no-retrieval", action="store_true", help="answer without any index")
    parser.add_argument("--scope", metavar="TEXT",
                        help="text put before every query, such as a product or a year")
    parser.add_argument("--filter", metavar="JSON",
                        help="metadata conditions of every search, such as '{\"lang\": \"en\"}'")
    parser.add_argument("--passages", metavar="FILE",
                        help="with --placement parallel: keep encoded passages in this file, for "
                             "instance beside the index; it is made if it is not there")
    add_trace_option(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one event a line as JSON")
    how.add_argument("--watch", action="store_true",
                     help="show drafts, queries and passages as 'flarecore demo' does")
    add_flare_options(parser)
    add_engine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from flarecore.cli.display import make_console
    from flarecore.cli.session import kept_passages, open_engine
    from flarecore.flare import Flare

    config = _config(args)
    check_trace_option(args)
    question = _question(args.question)
    filter = parse_filter(args.filter)
    notes = make_console(stderr=True)
    index = None if args.index is None else _load_index(args, notes)
    with open_engine(args, notes) as engine, kept_passages(args.passages, engine):
        flare = Flare(engine, index, config)
        try:
            with flare.stream(question, scope=args.scope, filter=filter) as events:
                _print(args, flare, events, question)
            result = events.result
            _tell(result, notes)
        except FlarecoreError as error:
            # What led to the error is worth the most.
            if args.trace is not None and error.partial is not None:
                save_traces(args.trace, [error.partial.trace])
            raise
    if args.trace is not None:
        save_traces(args.trace, [result.trace])
    return 0


def _tell(result: FlareResult, notes: Console) -> None:
    """Says so where the answer is an approximation or rests on nothing that was found."""
    unsupported = sum(s.unsupported_because == "no_evidence" for s in result.sentences)
    first = result.trace.initial_retrieval
    found_first = first is not None and any(p.num_tokens > 0 for p in first.passages)
    if result.trace.is_approximate and result.stats.num_retrievals:
        notes.print("placement parallel is an approximation: passages were encoded on their own",
                    style="dim")
    if unsupported:
        notes.print(f"no usable passage was found for {unsupported} of {len(result.sentences)} "
                    "sentences: they are the model's own", style="yellow")
    elif first is not None and not found_first:
        notes.print("no usable passage was found for the question", style="yellow")


def _config(args: argparse.Namespace) -> FlareConfig:
    if args.index is None and not args.no_retrieval:
        raise ConfigError("--index INDEX is needed, or --no-retrieval to answer without one")
    if args.index is not None and args.no_retrieval:
        raise ConfigError("--index and --no-retrieval exclude each other")
    changes = {"gate": "never"} if args.no_retrieval else {}
    config = flare_config(args, **changes)
    if args.passages is not None and config.placement != "parallel":
        raise ConfigError("--passages goes with --placement parallel")
    return config


def _question(text: str) -> str:
    question = sys.stdin.read() if text == "-" else text
    if not question.strip():
        raise ConfigError("QUESTION is empty; give the question as one argument, or '-' and text "
                          "on standard input")
    return question.strip()


def _load_index(args: argparse.Namespace, notes: Console) -> Any:
    from flarecore.cli.progress import waiting
    from flarecore.retrieval.hnsw import HnswRetriever

    with waiting(notes, f"loading {args.index}"):
        return HnswRetriever.load(args.index)


def _print(args: argparse.Namespace, flare: Flare, events: AnswerStream, question: str) -> None:
    if args.json:
        for event in events:
            print(event.to_json(), flush=True)
    elif args.watch:
        _watch(flare, events, question)
    else:
        _write_text(events)


def _watch(flare: Flare, events: AnswerStream, question: str) -> None:
    from flarecore.cli.display import AnswerView, make_console, print_legend

    console = make_console(sys.stdout)
    theta, beta = flare.config.theta, flare.config.beta
    print_legend(console, theta=theta, beta=beta, remark="")
    with AnswerView(console, question, theta=theta, beta=beta) as view:
        for event in events:
            view.handle(event)
    print_numbers(console, events.result.stats, events.result.trace)


def _write_text(events: AnswerStream) -> None:
    """Accepted text as it comes: exact bytes into a pipe, harmless characters to a terminal."""
    from flarecore.events import SentenceAccepted

    is_terminal = sys.stdout.isatty()
    for event in events:
        if isinstance(event, SentenceAccepted):
            sys.stdout.write(printable(event.text) if is_terminal else event.text)
            sys.stdout.flush()
    sys.stdout.write("\n")
