"""``flarecore eval``: methods beside each other on questions with known answers."""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flarecore.cli.options import add_engine_options, add_model_option, check_engine_options
from flarecore.errors import ConfigError
from flarecore.validation import check_int

if TYPE_CHECKING:
    from rich.console import Console

    from flarecore.engine import Engine
    from flarecore.eval.dataset import EvalData
    from flarecore.eval.exemplars import Exemplars
    from flarecore.eval.runner import Evaluation, PreparedRun
    from flarecore.eval.settings import MethodRequest
    from flarecore.eval.sweep import Grid
    from flarecore.retrieval.passage import Retriever

__all__ = ["add_parser", "run"]

_WHAT = ("run", "sweep", "report")
_ENCODER = "minilm-l6-v2"


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
    add_model_option(parser, required=False)  # 'report' needs none
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
    group.add_argument("--retriever", metavar="KIND",
                       choices=("bm25", "hnsw", "exact", "hybrid"),
                       help="bm25, hnsw, exact or hybrid (default: bm25, the paper's)")
    group.add_argument("--index", metavar="INDEX",
                       help="instead of --retriever: an index of this corpus, made by 'flarecore "
                            "index'")
    group.add_argument("--encoder", metavar="NAME_OR_DIR",
                       help=f"sentence encoder of the others (default: {_ENCODER}, or what INDEX "
                            "names)")


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
    from flarecore.cli.session import locate_model, open_engine

    _check(args)
    if args.what == "report":
        return _report(Path(args.output), args.baseline)
    requests, grid = _requests(args)
    notes = make_console(stderr=True)
    locate_model(args.model, notes)
    _check_files(args, requests)
    data, output = _data(args, notes)
    exemplars = _exemplars(args, data)
    searching = _needs_retriever(requests)
    given = _given_index(args, data, notes) if searching and args.index is not None else None
    with open_engine(args, notes) as engine:
        evaluation = _evaluation(args, engine, data, exemplars, output)
        # Everything is known to be right before an index is built, which may take minutes.
        runs = [evaluation.prepare(request) for request in requests]
        if searching:
            evaluation.retriever = given if given is not None else _built_index(
                args, data, output, notes)
        _answer(runs, notes)
    return _report(output, args.baseline, runs=runs, grid=grid)


def _check(args: argparse.Namespace) -> None:
    """Refuses options that are wrong or do not go together, before anything is read."""
    if args.what == "report":
        if args.output is None:
            raise ConfigError("report needs --output DIR, the folder of an evaluation")
        return
    if args.model is None:
        raise ConfigError("--model NAME_OR_PATH is needed")
    if args.what == "sweep":
        if args.theta is None:
            raise ConfigError("sweep needs --theta, such as --theta 0,0.2,0.4,0.6,0.8,1")
    elif args.theta is not None or args.beta is not None:
        raise ConfigError("--theta and --beta with lists are for 'eval sweep'; use "
                          "--set theta=X --set beta=X")
    if args.index is not None and args.retriever is not None:
        raise ConfigError("--index and --retriever exclude each other")
    check_engine_options(args)
    check_int("--parallel", args.parallel, 1, 256)
    check_int("--num-exemplars", args.num_exemplars, 0)
    if args.limit is not None:
        check_int("--limit", args.limit, 1)
    if args.output is not None:
        _check_output(Path(args.output))


def _check_output(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise ConfigError(f"{output}: is not a folder")


def _requests(args: argparse.Namespace) -> tuple[list[MethodRequest], Grid | None]:
    """The runs with their options, all checked, and for a sweep the grid."""
    from flarecore.eval.settings import parse_methods, requested_options, split_settings
    from flarecore.eval.sweep import Grid

    default = "flare" if args.what == "sweep" else "no-retrieval,single-retrieval,flare"
    requests, grid = parse_methods(args.method or [default]), None
    if args.what == "sweep":
        if len(requests) != 1:
            raise ConfigError(f"sweep takes one --method, got {len(requests)}")
        grid = Grid.make(requests[0], args.theta, args.beta)
        requests = list(grid.requests)
    for request in requests:
        requested_options(request, split_settings(args.set))
    labels = [request.label for request in requests]
    if args.baseline not in (None, *labels):
        raise ConfigError(
            f"--baseline {args.baseline!r} is none of {', '.join(map(repr, labels))}")
    return requests, grid


def _needs_retriever(requests: Sequence[MethodRequest]) -> bool:
    from flarecore.methods import METHODS

    return any(METHODS[request.name].needs_retriever for request in requests)


def _check_files(args: argparse.Namespace, requests: Sequence[MethodRequest]) -> None:
    """Files that options name: whether they are what they should be, without loading them."""
    from flarecore.eval.exemplars import load_exemplars
    from flarecore.model_files import find_model
    from flarecore.retrieval import index_info
    from flarecore.retrieval.encoder_files import read_encoder_files

    if args.exemplars != "auto":
        load_exemplars(args.exemplars)
    if not _needs_retriever(requests):
        return
    if args.index is not None:
        index_info(args.index)
    if args.encoder is not None or args.retriever not in (None, "bm25"):
        read_encoder_files(find_model(args.encoder or _ENCODER))


def _data(args: argparse.Namespace, notes: Console) -> tuple[EvalData, Path]:
    from flarecore.cli.progress import StageProgress
    from flarecore.eval.dataset import load_data

    with StageProgress(notes) as progress:
        data = load_data(args.data, prefix=args.prefix, queries=args.queries, corpus=args.corpus,
                         limit=args.limit, progress=progress)
    name = f"eval-{data.name}-{Path(args.model).stem}"
    output = Path(args.output or re.sub(r"[^\w.-]+", "-", name).strip("-"))
    _check_output(output)
    return data, output


def _exemplars(args: argparse.Namespace, data: EvalData) -> Exemplars:
    from flarecore.eval.exemplars import default_exemplars, load_exemplars
    from flarecore.eval.metrics import text_language

    language = text_language(data.questions[0].text) if args.language == "auto" else args.language
    exemplars = load_exemplars(default_exemplars(data.num_gold, language)
                               if args.exemplars == "auto" else args.exemplars)
    check_int("--num-exemplars", args.num_exemplars, 0, len(exemplars.exemplars))
    return exemplars


def _evaluation(
    args: argparse.Namespace, engine: Engine, data: EvalData, exemplars: Exemplars, output: Path
) -> Evaluation:
    """The evaluation; its retriever is not open yet."""
    from flarecore.eval.retrievers import UnopenedRetriever, index_name
    from flarecore.eval.runner import Evaluation, PromptOptions
    from flarecore.eval.settings import split_settings

    kind = args.retriever or "bm25"
    name = kind if kind == "bm25" else f"{kind}, {args.encoder or _ENCODER}"
    if args.index is not None:
        name = index_name(args.index)
    return Evaluation(
        engine=engine, data=data, retriever=UnopenedRetriever(), retriever_name=name,
        exemplars=exemplars, output=output, language=args.language, num_parallel=args.parallel,
        prompt=PromptOptions(args.prompt_style, args.num_exemplars, args.exemplar_passages),
        settings=split_settings(args.set))


def _given_index(args: argparse.Namespace, data: EvalData, notes: Console) -> Retriever:
    from flarecore.cli.progress import waiting
    from flarecore.eval.retrievers import open_index

    with waiting(notes, f"loading {args.index}"):
        return open_index(args.index, data, encoder=args.encoder)


def _built_index(
    args: argparse.Namespace, data: EvalData, output: Path, notes: Console
) -> Retriever:
    from flarecore.cli.progress import StageProgress
    from flarecore.eval.retrievers import open_retriever

    with StageProgress(notes) as progress:
        return open_retriever(
            args.retriever or "bm25", data, output / "index", encoder=args.encoder or _ENCODER,
            threads=args.threads, progress=progress)


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
