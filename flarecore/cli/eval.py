"""``flarecore eval``: methods beside each other on questions with known answers."""

from __future__ import annotations

import argparse
import functools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flarecore.cli.options import add_engine_options
from flarecore.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from flarecore.eval.dataset import EvalData
    from flarecore.eval.runner import Evaluation, PreparedRun
    from flarecore.eval.settings import MethodRequest

__all__ = ["add_parser", "run"]

_WHAT = ("run", "sweep", "report")


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "eval", parents=[common], allow_abbrev=False,
        help="compare methods on questions with known answers",
        description="Answers the questions of a data set with each method, scores the answers "
        "(exact match, F1, answer contained, bootstrap intervals) and writes report.md and "
        "report.html. 'sweep' does so over θ and β; 'report' writes the report of a folder again. "
        "A stopped run goes on where it was: give the same command again.")
    parser.add_argument("what", nargs="?", choices=_WHAT, default="run", metavar="run|sweep|report")
    _add_data(parser)
    group = parser.add_argument_group("methods")
    group.add_argument("--method", action="append", metavar="M[,M...]",
                       help="methods, each NAME or NAME:option=value:...; may be repeated "
                            "(default: no-retrieval,single-retrieval,flare; sweep: flare)")
    group.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE",
                       help="an option of all methods: those of 'flarecore generate' "
                            "(theta=0.6, placement=boundary, preset=paper_2wiki) or a method's own")
    group.add_argument("--baseline", metavar="M", help="what the others are compared with "
                       "(default: the first method)")
    group.add_argument("--theta", type=_numbers, metavar="X,X...", help="sweep: values of θ")
    group.add_argument("--beta", type=_numbers, metavar="X,X...", help="sweep: values of β")
    group.add_argument("--parallel", type=int, default=1, metavar="N",
                       help="answers at the same time; above 1, times are not those of one answer "
                            "(default: 1)")
    group = parser.add_argument_group("prompt")
    group.add_argument("--exemplars", default="auto", metavar="NAME_OR_FILE",
                       help="two-hop-en, single-en, single-zh or a JSON file (default: by the "
                            "questions)")
    group.add_argument("--num-exemplars", type=int, default=8, metavar="N",
                       help="how many of them (default: 8, as in the paper)")
    group.add_argument("--exemplar-passages", action=argparse.BooleanOptionalAction, default=True,
                       help="show their passages (default: on)")
    group.add_argument("--prompt-style", default="auto",
                       choices=("auto", "turns", "system", "text"),
                       help="exemplars as turns of a chat, in its system message, or all as "
                            "running text (default: auto, which is text)")
    parser.add_argument("--model", metavar="NAME_OR_FILE", help="a name or a .gguf file")
    parser.add_argument("-o", "--output", metavar="DIR",
                        help="folder for answers, index and report (default: eval-DATA-MODEL)")
    add_engine_options(parser)
    parser.set_defaults(run=run)


def _add_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument("--data", metavar="DIR", help="holds queries.jsonl and corpus.jsonl")
    group.add_argument("--prefix", default="", metavar="P",
                       help="the files are P.queries.jsonl and P.corpus.jsonl")
    group.add_argument("--queries", metavar="FILE", help="questions from this file")
    group.add_argument("--corpus", metavar="FILE", help="passages from this file or folder")
    group.add_argument("--limit", type=int, metavar="N", help="only the first N questions")
    group.add_argument("--language", choices=("auto", "en", "zh"), default="auto",
                       help="how answers are scored (default: by the script of the question)")
    group.add_argument("--retriever", default="bm25", metavar="KIND",
                       choices=("bm25", "hnsw", "exact", "hybrid"),
                       help="bm25, hnsw, exact or hybrid (default: bm25, the paper's)")
    group.add_argument("--encoder", default="minilm-l6-v2", metavar="NAME_OR_DIR",
                       help="sentence encoder of the others (default: minilm-l6-v2)")


def _numbers(text: str) -> tuple[float, ...]:
    """Different numbers from a comma-separated list."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or len(set(values)) != len(values) or not all(0 <= v <= 1 for v in values):
        raise argparse.ArgumentTypeError(
            f"different numbers in [0, 1] with commas between, got {text!r}")
    return values


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from flarecore.cli.display import make_console
    from flarecore.cli.session import open_engine

    _check(args)
    if args.what == "report":
        return _report(Path(args.output), args.baseline)
    notes = make_console(stderr=True)
    data, output = _data(args, notes)
    with open_engine(args, notes) as engine:
        evaluation = _evaluation(args, notes, data, engine, output)
        runs, grid = _prepare(args, evaluation)
        labels = [r.request.label for r in runs]
        if args.baseline not in (None, *labels):
            raise ConfigError(
                f"--baseline {args.baseline!r} is none of {', '.join(map(repr, labels))}")
        _answer(runs, notes)
    return _report(output, args.baseline, runs=runs, grid=grid)


def _check(args: argparse.Namespace) -> None:
    """Refuses options that do not go together."""
    if args.what == "report":
        if args.output is None:
            raise ConfigError("report needs --output DIR, the folder of an evaluation")
        return
    if args.model is None:
        raise ConfigError("--model NAME_OR_FILE is needed")
    if args.what == "sweep":
        if args.theta is None:
            raise ConfigError("sweep needs --theta, such as --theta 0,0.2,0.4,0.6,0.8,1")
    elif args.theta is not None or args.beta is not None:
        raise ConfigError("--theta and --beta with lists are for 'eval sweep'; use "
                          "--set theta=X --set beta=X")


def _data(args: argparse.Namespace, notes: Console) -> tuple[EvalData, Path]:
    from flarecore.cli.progress import StageProgress
    from flarecore.eval.dataset import load_data

    with StageProgress(notes) as progress:
        data = load_data(args.data, prefix=args.prefix, queries=args.queries, corpus=args.corpus,
                         limit=args.limit, progress=progress)
    name = f"eval-{data.name}-{Path(args.model).stem}"
    output = Path(args.output or re.sub(r"[^\w.-]+", "-", name).strip("-"))
    if output.exists() and not output.is_dir():
        raise ConfigError(f"{output}: is not a folder")
    return data, output


def _evaluation(
    args: argparse.Namespace, notes: Console, data: EvalData, engine: Any, output: Path
) -> Evaluation:
    from flarecore.cli.progress import StageProgress
    from flarecore.eval.exemplars import default_exemplars, load_exemplars
    from flarecore.eval.metrics import text_language
    from flarecore.eval.retrievers import open_retriever
    from flarecore.eval.runner import Evaluation, PromptOptions
    from flarecore.eval.settings import split_settings
    from flarecore.methods import METHODS

    searching = any(r.name not in METHODS or METHODS[r.name].needs_retriever
                    for r in _requests(args))
    language = text_language(data.questions[0].text) if args.language == "auto" else args.language
    exemplars = load_exemplars(default_exemplars(data.num_gold, language)
                               if args.exemplars == "auto" else args.exemplars)
    settings = split_settings(args.set)
    with StageProgress(notes) as progress:
        retriever = open_retriever(
            args.retriever, data, output / "index", encoder=args.encoder, threads=args.threads,
            progress=progress) if searching else None
    name = args.retriever if args.retriever == "bm25" else f"{args.retriever}, {args.encoder}"
    return Evaluation(
        engine=engine, data=data, retriever=retriever, retriever_name=name,
        exemplars=exemplars, output=output, language=args.language, num_parallel=args.parallel,
        prompt=PromptOptions(args.prompt_style, args.num_exemplars, args.exemplar_passages),
        settings=settings)


def _requests(args: argparse.Namespace) -> list[MethodRequest]:
    from flarecore.eval.settings import parse_methods

    default = "flare" if args.what == "sweep" else "no-retrieval,single-retrieval,flare"
    return parse_methods(args.method or [default])


def _prepare(args: argparse.Namespace, evaluation: Evaluation) -> tuple[list[PreparedRun], Any]:
    """All runs, checked before the first begins; for a sweep also the grid."""
    from flarecore.eval.sweep import Grid

    requests = _requests(args)
    if args.what == "run":
        return [evaluation.prepare(request) for request in requests], None
    if len(requests) != 1:
        raise ConfigError(f"sweep takes one --method, got {len(requests)}")
    grid = Grid.make(requests[0], args.theta, args.beta)
    return [evaluation.prepare(request) for request in grid.requests], grid


def _answer(runs: list[PreparedRun], notes: Console) -> None:
    from flarecore.cli.progress import StageProgress

    try:
        with StageProgress(notes) as progress:
            for prepared in runs:
                prepared.run(functools.partial(progress, prepared.request.label))
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on with the next question", file=sys.stderr)
        raise


def _report(output: Path, baseline: str | None, *, runs: Any = None, grid: Any = None) -> int:
    """Writes the report of a folder, and prints its table."""
    from flarecore.eval.report import write_report

    ids = None if runs is None else [q.id for q in runs[0].evaluation.data.questions]
    labels = None if runs is None else [r.request.label for r in runs]
    text, files = write_report(output, baseline=baseline, labels=labels, ids=ids, grid=grid)
    print(text)
    print("wrote " + ", ".join(str(file) for file in files))
    return 0
