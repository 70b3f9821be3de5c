"""``flarecore bench``: how fast, beside whom, and how right."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flarecore.cli.options import add_model_option, add_quantize_option
from flarecore.errors import ConfigError

if TYPE_CHECKING:
    from flarecore.bench.rows import Report
    from flarecore.bench.suite import SuiteOptions

__all__ = ["add_parser", "run"]

_WHAT = {
    "decode": "one sequence, several at once, verification of proposals",
    "prefill": "prompts of several lengths",
    "load": "process start to first token, and memory",
    "sampling": "confidence, minimum, mask and boundary as a share of a decode step",
    "quality": "perplexity and greedy tokens against float32",
    "loop": "the whole FLARE loop, in our modes and around the peers",
    "growth": "one retrieval while the answer grows",
    "answers": "whole answers at once against in turn",
    "retrieval": "query embedding and search over a corpus",
    "all": "everything, one after the other",
}


def _integers(text: str, at_least: int = 1) -> tuple[int, ...]:
    """Integers from a comma-separated list."""
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < at_least:
        raise argparse.ArgumentTypeError(
            f"integers >= {at_least} with commas between, got {text!r}")
    return values


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "bench", parents=[common], allow_abbrev=False,
        help="measure speed and quality, beside llama.cpp and transformers",
        description="Checks results against a reference, then times them in interleaved rounds: "
        "median, p20, p80, tokens/s, bytes/s, share of the memory bandwidth measured in the same "
        "run, ratio to the peers in the same run. Benchmarks: "
        + "; ".join(f"{name} ({text})" for name, text in _WHAT.items()) + ".")
    parser.add_argument("what", choices=tuple(_WHAT), metavar="BENCHMARK",
                        help="one of: " + ", ".join(_WHAT))
    add_model_option(parser, default="smollm2-135m")
    parser.add_argument("--threads", type=int, metavar="N",
                        help="threads (default: those this process may use)")
    parser.add_argument("--compute", choices=("int8", "float32"), default="int8")
    add_quantize_option(parser)
    parser.add_argument("--peers", default="all", metavar="LIST",
                        help="llama (the same file and its best formats made from it), llama-f16, "
                        "llama-q8_0, llama-q4_0, transformers; all or none (default: all; what is "
                        "not installed is named and left out)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N",
                        help="timed rounds (default: 7)")
    parser.add_argument("--text", type=Path, metavar="FILE",
                        help="text of the contexts and of the perplexity: .txt, or .jsonl with "
                        "\"text\" a line (default: Python's own documentation)")
    parser.add_argument("--json", action="store_true", help="print one row a line as JSON")
    parser.add_argument("--write", type=Path, metavar="FILE",
                        help="write a page of results (Markdown)")
    _add_sizes(parser)
    parser.set_defaults(run=run)


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    """Sizes: None leaves the benchmark's own default."""
    lists: dict[str, Any] = {"type": _integers, "metavar": "N,N"}
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    group = parser.add_argument_group("decode")
    group.add_argument("--busy", action="store_true",
                       help="instead: beside a process that spins on one core")
    group.add_argument("--contexts", help="tokens of context (default: 64,2000)", **lists)
    group.add_argument("--sequences", help="sequences at once (default: 1,2,4,8)", **lists)
    group.add_argument("--rows", help="rows of a verification (default: 1,4,8,16)", **lists)
    group.add_argument("--tokens", help="tokens decoded in a run (default: 32)", **number)
    group = parser.add_argument_group("prefill")
    group.add_argument("--sizes", help="tokens of a prompt (default: 64,128,512,2048)", **lists)
    group = parser.add_argument_group("sampling")
    group.add_argument("--vocab-sizes", help="logits of a row, beside the model's own "
                       "(default: 49152,262144)", **lists)
    group = parser.add_argument_group("loop, answers, retrieval")
    group.add_argument("--data", type=Path, metavar="DIR",
                       help="folder with queries.jsonl and corpus.jsonl (default: the "
                       "demonstration's)")
    group.add_argument("--questions", help="questions of a run of loop (default: 8) or "
                       "retrieval (default: 50)", **number)
    group.add_argument("--theta", type=float, metavar="P",
                       help="threshold of loop and answers (default: 0.8)")
    group.add_argument("--at-once", help="answers at once (default: 8)", **number)
    group.add_argument("--k", help="passages per search of retrieval (default: 10)", **number)
    group = parser.add_argument_group("growth")
    group.add_argument("--answers", help="tokens of the answer (default: "
                       "0,500,1000,1500,2000)", metavar="N,N",
                       type=functools.partial(_integers, at_least=0))
    group = parser.add_argument_group("quality")
    group.add_argument("--max-tokens", help="tokens of the text (default: 20000)", **number)
    group.add_argument("--window", help="tokens of a window (default: 512)", **number)
    group.add_argument("--prompts", help="prompts, at most 20 (default: 20)", **number)


def _suite(args: argparse.Namespace) -> SuiteOptions:
    """What to run with which sizes. Raises ConfigError for a size out of range."""
    from flarecore.bench.answers import AnswersOptions
    from flarecore.bench.decode import DecodeOptions
    from flarecore.bench.growth import GrowthOptions
    from flarecore.bench.loop import LoopOptions
    from flarecore.bench.prefill import PrefillOptions
    from flarecore.bench.quality import QualityOptions
    from flarecore.bench.questions import QuestionSource
    from flarecore.bench.retrieval import RetrievalOptions
    from flarecore.bench.sampling import SamplingOptions
    from flarecore.bench.suite import BENCHMARKS, SuiteOptions

    def given(**names: Any) -> dict[str, Any]:
        return {name: value for name, value in names.items() if value is not None}

    if args.busy and args.what not in ("decode", "all"):
        raise ConfigError(f"--busy goes with decode, got {args.what}")
    source = given(source=args.data and QuestionSource(args.data))
    whole_loop = LoopOptions(**source, **given(num_questions=args.questions, theta=args.theta))
    benchmarks = BENCHMARKS if args.what == "all" else ("busy" if args.busy else args.what,)
    return SuiteOptions(
        benchmarks,
        decode=DecodeOptions(**given(contexts=args.contexts, sequences=args.sequences,
                                     rows=args.rows, num_tokens=args.tokens)),
        prefill=PrefillOptions(**given(sizes=args.sizes)),
        sampling=SamplingOptions(**given(vocab_sizes=args.vocab_sizes)),
        loop=whole_loop,
        growth=GrowthOptions(**given(answer_tokens=args.answers)),
        answers=AnswersOptions(loop=whole_loop, **given(num_answers=args.at_once)),
        retrieval=RetrievalOptions(**source, **given(num_questions=args.questions, k=args.k)),
        quality=QualityOptions(**given(max_tokens=args.max_tokens, window=args.window,
                                       prompts=args.prompts)))


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from flarecore.bench.peers import parse_peers
    from flarecore.bench.results_page import write_page
    from flarecore.bench.session import BenchOptions
    from flarecore.bench.suite import run_suite
    from flarecore.cli.display import make_console
    from flarecore.cli.progress import StageProgress

    options = BenchOptions(args.model, args.threads, args.compute, parse_peers(args.peers),
                           args.rounds, args.text, args.quantize)
    suite = _suite(args)
    if args.write is not None and not args.write.absolute().parent.is_dir():
        raise ConfigError(f"--write {args.write}: there is no directory {args.write.parent}")
    reports: list[Report] = []
    console = make_console(sys.stdout)
    with StageProgress(make_console(stderr=True)) as progress:
        for report in run_suite(options, suite, progress):
            reports.append(report)
            if args.json:
                for row in report.to_dicts():
                    print(json.dumps(row, ensure_ascii=False), flush=True)
            else:
                _show(console, report)
            if args.write is not None:
                # After each, so that an interrupted run leaves what it has.
                write_page(args.write, reports, _command(args))
    return 0


def _show(console: Any, report: Report) -> None:
    from flarecore.bench.tables import print_report

    print_report(console, report)


def _command(args: argparse.Namespace) -> str:
    """What was run, without what does not change a result."""
    parts = ["flarecore bench", args.what, f"--model {args.model}", f"--rounds {args.rounds}"]
    if args.threads is not None:
        parts.append(f"--threads {args.threads}")
    if args.peers != "all":
        parts.append(f"--peers {args.peers}")
    if args.quantize is not None:
        parts.append(f"--quantize {args.quantize}")
    if args.text is not None:
        parts.append(f"--text {args.text.name}")
    if args.data is not None:
        parts.append(f"--data {args.data.resolve().name}")
    if args.busy:
        parts.append("--busy")
    for name in ("contexts", "sequences", "rows", "tokens", "sizes", "vocab_sizes", "max_tokens",
                 "window", "prompts", "questions", "theta", "at_once", "k", "answers"):
        value = getattr(args, name)
        if value is not None:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            parts.append(f"--{name.replace('_', '-')} {shown}")
    return " ".join(parts)
