"""``flarecore generate``: one answer with a model and an index."""

from __future__ import annotations

import argparse
import collections
import sys
from typing import TYPE_CHECKING, Any

from flarecore.cli.method_options import check_method
from flarecore.cli.numbers import print_numbers
from flarecore.cli.options import (
    add_engine_options,
    add_flare_options,
    add_model_option,
    check_engine_options,
    flare_config,
    json_or_text,
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

__all__ = ["METHOD_NAMES", "add_parser", "run"]

# Limits by what a trace says where they were reached.
_SEARCH_LIMITS = ("max_retrievals", "max_retrievals_per_sentence", "cooldown_sentences")
_ANSWER_LIMITS = {"max_sentences": "max_sentences", "max_new_tokens": "max_new_tokens",
                  "deadline": "deadline_ms"}

METHOD_NAMES = (
    "flare", "no-retrieval", "single-retrieval", "previous-sentence", "previous-window",
    "next-sentence", "question-decomposition", "flare-instruct", "marker", "token-level")
"""Names of ``flarecore.methods.METHODS``, here so that help needs no native core."""


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "generate", parents=[common], allow_abbrev=False,
        help="answer a question with a model and an index",
        description="Writes the answer to standard output, sentence by sentence.")
    parser.add_argument("question", metavar="QUESTION", help="'-' reads it from standard input")
    add_model_option(parser, required=True)
    parser.add_argument("--index", metavar="INDEX", help="an index made by 'flarecore index'")
    parser.add_argument("--encoder", metavar="NAME_OR_DIR",
                        help="the sentence encoder of the index, if it was made with a folder of "
                        "your own (default: what the index names)")
    parser.add_argument("--no-retrieval", action="store_true", help="answer without any index")
    parser.add_argument("--method", choices=METHOD_NAMES, default="flare", metavar="NAME",
                        help="how the answer is written: FLARE or a baseline, one of "
                             f"{', '.join(METHOD_NAMES)} (default: flare)")
    parser.add_argument("--method-option", action="append", default=[], metavar="NAME=JSON",
                        help="an option that only the method has, such as window_tokens=32; may "
                             "be repeated")
    parser.add_argument("--scope", metavar="TEXT",
                        help="text put before every query, such as a product or a year")
    parser.add_argument("--filter", metavar="JSON",
                        help="metadata conditions of every search, such as '{\"lang\": \"en\"}'")
    parser.add_argument("--passages", metavar="FILE",
                        help="with --placement parallel: keep encoded passages in this file, for "
                             "instance beside the index; it is made if it is not there")
    parser.add_argument("-v", "--verbose", action="store_true",
                        help="with --quantize: say on standard error by how much it changed the "
                        "weights, for each kind of matrix")
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
    from flarecore.methods import METHODS, make_method

    # Whatever is wrong with the options is told before anything is loaded.
    config, options = _config(args), _method_options(args.method_option)
    given = argparse.Namespace(**{**vars(args), "preset": "default"})
    check_method(METHODS[args.method], _config(given), options, f"--method {args.method}")
    if args.preset != "default":  # what only the preset sets may not apply
        config = METHODS[args.method].narrowed(config)
    check_engine_options(args)
    check_trace_option(args)
    question = _question(args.question)
    filter = parse_filter(args.filter)
    notes = make_console(stderr=True)
    index = None if args.index is None else _load_index(args, notes)
    _tell_unknown(index, f"{args.scope or ''} {question}", notes)
    with open_engine(args, notes) as engine, kept_passages(args.passages, engine):
        flare = make_method(args.method, engine, index, config, **options)
        try:
            with flare.stream(question, scope=args.scope, filter=filter) as events:
                _print(args, flare, events, question)
            result = events.result
            _tell(result, flare.config, notes)
        except FlarecoreError as error:
            # What led to the error is worth the most.
            if args.trace is not None and error.partial is not None:
                save_traces(args.trace, [error.partial.trace])
            raise
    if args.trace is not None:
        save_traces(args.trace, [result.trace])
    return 0


def _tell_unknown(index: Any, text: str, notes: Console) -> None:
    """Says so where the index's encoder cannot read the question."""
    from flarecore.retrieval.store import MANY_UNKNOWN, unknown_share

    for part in getattr(index, "retrievers", (index,)):
        encoder = getattr(part, "encoder", None)
        share = unknown_share(encoder, [text])
        if encoder is not None and share > MANY_UNKNOWN:
            notes.print(
                f"the encoder {encoder.name!r} of the index does not know {share:.0%} of the words "
                "of the question: search by meaning will find little; make the index with "
                "--retriever bm25", style="yellow", markup=False, highlight=False, soft_wrap=True)


def _tell(result: FlareResult, config: FlareConfig, notes: Console) -> None:
    """Says so where the answer is an approximation, was cut, or rests on nothing that was found."""
    num_sentences = result.stats.num_sentences
    because = collections.Counter(s.unsupported_because for s in result.sentences)
    unsupported = because["no_evidence"]
    first = result.trace.initial_retrieval
    found_first = first is not None and any(p.num_tokens > 0 for p in first.passages)
    if result.trace.is_approximate and result.stats.num_retrievals:
        notes.print("placement parallel is an approximation: passages were encoded on their own",
                    style="dim")
    if unsupported:
        notes.print(f"no usable passage was found for {unsupported} of {num_sentences} "
                    "sentences: they are the model's own", style="yellow")
    elif first is not None and not found_first:
        notes.print("no usable passage was found for the question", style="yellow")
    for name in _SEARCH_LIMITS:
        if because[name]:
            notes.print(f"{because[name]} of {num_sentences} sentences asked for a search that "
                        f"{_option(name, config)} forbade: they are as drafted", style="yellow")
    if (end := _cut_by(result.stop_reason, config)) is not None:
        notes.print(f"{end} ended the answer after {num_sentences} "
                    f"sentence{'s' * (num_sentences != 1)}", style="yellow")


def _cut_by(stop_reason: str, config: FlareConfig) -> str | None:
    """What ended an answer that the model had not ended itself."""
    if stop_reason in _ANSWER_LIMITS:
        return _option(_ANSWER_LIMITS[stop_reason], config)
    return {
        "context_length": "the model's context, which is full,",
        "no_evidence": "--no-evidence stop, with no usable passage found,",
        "no_progress": "the model, which wrote nothing more,",
    }.get(stop_reason)


def _option(name: str, config: FlareConfig) -> str:
    """A limit as it is said on the command line."""
    value = getattr(config, name)
    shown = f"{value:g}" if isinstance(value, float) else value
    return f"--{name.replace('_', '-')} {shown}"


def _config(args: argparse.Namespace) -> FlareConfig:
    is_alone = args.method == "no-retrieval"
    if args.index is None and not args.no_retrieval and not is_alone:
        raise ConfigError("--index INDEX is needed, or --no-retrieval to answer without one")
    if args.index is not None and (args.no_retrieval or is_alone):
        given = "--method no-retrieval" if is_alone else "--no-retrieval"
        raise ConfigError(f"--index and {given} exclude each other")
    if args.encoder is not None and args.index is None:
        raise ConfigError("--encoder goes with --index")
    changes = {"gate": "never"} if args.no_retrieval else {}
    config = flare_config(args, **changes)
    if args.passages is not None and config.placement != "parallel":
        raise ConfigError("--passages goes with --placement parallel")
    return config


def _method_options(given: list[str]) -> dict[str, Any]:
    """The method's own options: values are JSON, or text where they are none."""
    options: dict[str, Any] = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier() or name == "clock":
            raise ConfigError(
                f"--method-option must be NAME=VALUE such as window_tokens=32, got {entry!r}")
        options[name] = json_or_text(value)
    return options


def _question(text: str) -> str:
    question = sys.stdin.read() if text == "-" else text
    if not question.strip():
        raise ConfigError("QUESTION is empty; give the question as one argument, or '-' and text "
                          "on standard input")
    return question.strip()


def _load_index(args: argparse.Namespace, notes: Console) -> Any:
    from flarecore.cli.progress import waiting
    from flarecore.retrieval.loading import load_index

    with waiting(notes, f"loading {args.index}"):
        return load_index(args.index, args.encoder)


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
