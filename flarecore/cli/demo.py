"""``flarecore demo``: watch a small model look up what it does not know."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flarecore.cli.numbers import print_numbers, total
from flarecore.cli.options import (
    add_engine_options,
    add_flare_options,
    add_model_option,
    check_engine_options,
    flare_config,
)
from flarecore.cli.trace_output import add_trace_option, check_trace_option, save_traces
from flarecore.demo_data import (
    QUESTIONS,
    DemoQuestion,
    demo_template,
    load_index,
    own_question,
)

if TYPE_CHECKING:
    from rich.console import Console

    from flarecore.flare import Flare
    from flarecore.trace import Trace

__all__ = ["add_parser", "run"]

# What suits a model of 135 million parameters, which is rarely sure of anything.
_DEFAULTS: dict[str, Any] = {"theta": 0.6, "beta": 0.4, "k": 2, "max_sentences": 5}


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "demo", parents=[common], allow_abbrev=False,
        help="watch a small model look up what it does not know",
        description="Answers questions over a small invented knowledge base (biographies and a "
        "travel policy) with SmolLM2-135M and shows how: drafts with their confidences, queries, "
        "passages, accepted sentences.")
    parser.add_argument("--question", action="append", metavar="TEXT",
                        help="ask this instead of the prepared questions; may be repeated")
    parser.add_argument("--scope", metavar="TEXT",
                        help="text put before every query of --question, such as a name or a year")
    add_model_option(parser, default="smollm2-135m")
    parser.add_argument("--json", action="store_true", help="print one event a line as JSON")
    add_trace_option(parser)
    parser.add_argument("--no-cache", action="store_true",
                        help="build the index anew and do not keep it")
    add_flare_options(parser, only=("theta", "beta", "placement", "k", "max_sentences"),
                      defaults=_DEFAULTS)
    add_engine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from flarecore.cli.display import make_console
    from flarecore.cli.progress import StageProgress
    from flarecore.cli.session import open_engine
    from flarecore.flare import Flare
    from flarecore.retrieval.encoder import SentenceEncoder

    config = flare_config(args, **_DEFAULTS)
    check_engine_options(args)
    check_trace_option(args)
    questions = [own_question(text, args.scope) for text in args.question or ()] or QUESTIONS
    notes = make_console(stderr=True)
    with StageProgress(notes) as progress:
        index, remark = load_index(
            SentenceEncoder.load("minilm-l6-v2", threads=args.threads),
            use_cache=not args.no_cache, progress=progress)
    with open_engine(args, notes) as engine:
        if engine.tokenizer.chat_template is not None:
            config = dataclasses.replace(config, template=demo_template())
        flare = Flare(engine, index, config)
        if args.json:
            traces = _print_events(flare, questions)
        else:
            traces = _show(make_console(sys.stdout), flare, questions, f"{args.model}, {remark}")
    if args.trace is not None:
        save_traces(args.trace, traces)
    return 0


def _print_events(flare: Flare, questions: Sequence[DemoQuestion]) -> list[Trace]:
    traces = []
    for question in questions:
        with flare.stream(question.text, scope=question.scope, filter=question.filter) as events:
            for event in events:
                print(event.to_json(), flush=True)
        traces.append(events.result.trace)
    return traces


def _show(
    console: Console, flare: Flare, questions: Sequence[DemoQuestion], remark: str
) -> list[Trace]:
    """The view of all answers, and the numbers."""
    from flarecore.cli.display import AnswerView, print_legend

    theta, beta = flare.config.theta, flare.config.beta
    print_legend(console, theta=theta, beta=beta, remark=remark)
    traces: list[Trace] = []
    for question in questions:
        with (
            flare.stream(question.text, scope=question.scope, filter=question.filter) as events,
            AnswerView(console, question.text, theta=theta, beta=beta) as view,
        ):
            for event in events:
                view.handle(event)
        traces.append(events.result.trace)
    print_numbers(console, total([trace.stats for trace in traces]), traces[0])
    return traces
