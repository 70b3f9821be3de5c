"""The report of an evaluation: read back from its folder, written as Markdown and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarecore.codec import dumps, loads_object
from flarecore.errors import ConfigError
from flarecore.eval.answer_log import read_records
from flarecore.eval.bootstrap import Interval
from flarecore.eval.failures import examples
from flarecore.eval.record import Record
from flarecore.eval.summary import MethodSummary, common_records, differences, summarise
from flarecore.eval.sweep import Grid
from flarecore.whole_file import write_whole

__all__ = ["EvalReport", "Example", "load_report", "write_report"]

_GRID = "sweep.json"


@dataclass(frozen=True)
class Example:
    """A wrong answer that the report shows.

    Parameters
    ----------
    method, failure : str
        Label of the method; class of the failure.
    record : Record
        The answer.
    link : str or None
        Its place in the page of traces, relative to the report.
    """

    method: str
    failure: str
    record: Record
    link: str | None


@dataclass(frozen=True)
class EvalReport:
    """Everything a report shows.

    Parameters
    ----------
    title : str
        The data set and the model.
    methods : tuple of MethodSummary
        All over the same questions.
    baseline : str
        Label of the method that the others are compared with.
    differences : tuple of dict
        For each method the paired differences to the baseline by metric.
    examples : tuple of Example
        Of wrong answers.
    grid : Grid or None
        Of a sweep.
    num_left_out : int
        Answers that are not counted, because not all methods answered their question.
    """

    title: str
    methods: tuple[MethodSummary, ...]
    baseline: str
    differences: tuple[dict[str, Interval], ...]
    examples: tuple[Example, ...]
    grid: Grid | None
    num_left_out: int

    def method(self, label: str) -> MethodSummary:
        """The summary of a label."""
        return next(m for m in self.methods if m.label == label)


def write_report(
    output: Path, *, baseline: str | None = None, labels: Sequence[str] | None = None,
    ids: Sequence[str] | None = None, grid: Grid | None = None,
) -> tuple[str, list[Path]]:
    """Writes ``report.md``, ``report.html``, their plots and pages of traces into a folder.

    A sweep writes ``sweep.md`` and ``sweep.html``.

    Parameters
    ----------
    output : Path
        The folder of the evaluation.
    baseline, labels, ids, grid
        As for :func:`load_report`; without labels the last sweep is reported again as well.

    Returns
    -------
    text : str
        A table for the terminal.
    files : list of Path
        The pages that were written.

    Raises
    ------
    ConfigError
        The folder holds no answers, or damaged ones.
    """
    from flarecore.eval.report_html import report_page
    from flarecore.eval.report_text import markdown, terminal_table

    if grid is not None:
        write_whole(output / _GRID, dumps(grid.to_dict(), indent=1) + "\n")
    texts, files = [], []
    todo: list[tuple[str, Any]] = [("report" if grid is None else "sweep", (labels, grid))]
    if labels is None and (output / _GRID).exists():
        old = Grid.from_dict(
            loads_object(_GRID, (output / _GRID).read_bytes()), str(output / _GRID))
        swept = [label for row in old.labels for label in row]
        kept = [label for label in _labels(output) if label not in swept]
        todo = [("report", (kept, None))] if kept else []
        todo.append(("sweep", (list(dict.fromkeys(swept)), old)))
    for name, (chosen, shown_grid) in todo:
        report = load_report(
            output, baseline=baseline, labels=chosen, ids=ids, grid=shown_grid, name=name)
        _write_traces(output, report)
        for kind, text in ((".md", markdown(report, name)), (".html", report_page(report))):
            write_whole(output / (name + kind), text)
            files.append(output / (name + kind))
        _write_plots(output, name, report)
        texts.append(terminal_table(report))
    return "\n\n".join(texts), files


def load_report(
    output: Path, *, baseline: str | None = None, labels: Sequence[str] | None = None,
    ids: Sequence[str] | None = None, grid: Grid | None = None, name: str = "report",
) -> EvalReport:
    """The report of a folder.

    Parameters
    ----------
    output : Path
        The folder of the evaluation.
    baseline : str, optional
        A label; None: the first.
    labels : sequence of str, optional
        Which methods, in this order; None: all that are there.
    ids : sequence of str, optional
        Which questions; None: those that all methods answered.
    grid : Grid, optional
        Of a sweep.
    name : str
        Of the pages, for links.

    Raises
    ------
    ConfigError
        There are no answers, or the baseline is not among the methods.
    """
    read = {label: read_records(_file_of(output, label)) for label in labels or _labels(output)}
    if not read:
        raise ConfigError(f"{output}: holds no answers of an evaluation")
    baseline = next(iter(read)) if baseline is None else baseline
    if baseline not in read:
        raise ConfigError(f"--baseline {baseline!r} is none of {', '.join(map(repr, read))}")
    shared = common_records({label: records for label, (_, records) in read.items()}, ids)
    if not next(iter(shared.values())):
        raise ConfigError(f"{output}: there is no question that every method has answered yet")
    methods = tuple(summarise(label, read[label][0], shared[label]) for label in read)
    reference = next(m for m in methods if m.label == baseline)
    some = methods[0].settings
    return EvalReport(
        title=f"{some['data']['name']} · {some['model']['name']}",
        methods=methods, baseline=baseline,
        differences=tuple(differences(m, reference) for m in methods),
        examples=() if grid is not None else tuple(
            e for m in methods for e in _examples(m, name)),
        grid=grid,
        num_left_out=sum(len(records) for _, records in read.values())
        - sum(len(m.records) for m in methods))


def _labels(output: Path) -> list[str]:
    """Labels of all logs of a folder, in the order in which they were begun."""
    from flarecore.eval.runner import ANSWERS

    found = []
    for file in sorted((output / ANSWERS).glob("*.jsonl")):
        side = file.with_suffix(".json")
        if file.stat().st_size and side.exists():
            label = loads_object(str(side), side.read_bytes()).get("label")
            if not isinstance(label, str):
                raise ConfigError(f"{side}: has no 'label'; it is not of an evaluation")
            found.append((side.stat().st_mtime_ns, label))
    return [label for _, label in sorted(found)]


def _file_of(output: Path, label: str) -> Path:
    from flarecore.eval.runner import ANSWERS
    from flarecore.eval.settings import MethodRequest

    return output / ANSWERS / f"{MethodRequest(label, label).file_name}.jsonl"


def _examples(method: MethodSummary, name: str) -> list[Example]:
    from flarecore.eval.settings import MethodRequest

    page = f"{name}-traces/{MethodRequest(method.label, '').file_name}.html"
    chosen = examples(method)
    with_trace = [record.id for _, record in chosen if record.trace is not None]
    # A page of one trace has no index, but the same anchor.
    return [Example(method.label, failure, record,
                    f"{page}#a{with_trace.index(record.id) + 1}" if record.trace else None)
            for failure, record in chosen]


def _write_traces(output: Path, report: EvalReport) -> None:
    """A page of traces for each method that has examples."""
    from flarecore.trace_html import trace_page

    pages: dict[str, list[Record]] = {}
    for example in report.examples:
        if example.link is not None:
            pages.setdefault(example.link.partition("#")[0], []).append(example.record)
    for link, records in pages.items():
        (output / link).parent.mkdir(exist_ok=True)
        traces = [r.parsed_trace for r in records]
        write_whole(output / link, trace_page([t for t in traces if t is not None]))


def _write_plots(output: Path, name: str, report: EvalReport) -> None:
    from flarecore.eval.plots import plots_of, standalone

    for plot_name, plot in plots_of(report).items():
        write_whole(output / f"{name}-{plot_name}.svg", standalone(plot))
