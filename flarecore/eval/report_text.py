"""The report as Markdown, and its table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from flarecore.eval.bootstrap import Interval
from flarecore.eval.failures import CLASSES, count_failures, needless
from flarecore.eval.plots import plots_of
from flarecore.eval.report import EvalReport
from flarecore.eval.summary import METRICS, MethodSummary

__all__ = ["COST_COLUMNS", "METRIC_NAMES", "cost_cells", "interval_text", "markdown", "notes_of",
           "percent_text", "signed_text", "terminal_table"]

METRIC_NAMES = {"em": "EM", "f1": "F1", "contained": "Contained"}
COST_COLUMNS = (
    ("retrievals", "Searches", "per answer, the initial one included"),
    ("trigger_rate", "Trigger rate", "share of drafts that were looked up"),
    ("gold_recall", "Gold recall", "share of the gold passages that came into view"),
    ("evidence_use", "Evidence use", "share of the answer's word trigrams that stand in evidence"),
    ("passage_overlap", "Overlap", "share of a search's passages that the one before had found"),
    ("pattern_rate", "Format", "share of answers that say what their answer is"),
    ("prefilled", "Prefilled", "tokens per answer"),
    ("decoded", "Decoded", "tokens per answer"),
    ("reused", "Reused", "tokens per answer whose keys and values were there"),
    ("wall_ms", "Time", "wall time per answer"),
)
_SHARES = frozenset(
    {"trigger_rate", "gold_recall", "evidence_use", "passage_overlap", "pattern_rate"})


def percent_text(value: float | None) -> str:
    """``41.5`` (percent) or a dash."""
    return "–" if value is None else f"{100 * value:.1f}"


def interval_text(interval: Interval) -> str:
    """``41.5 [34.0, 48.5]`` in percent."""
    return (f"{percent_text(interval.mean)} [{percent_text(interval.low)}, "
            f"{percent_text(interval.high)}]")


def signed_text(interval: Interval) -> str:
    """``+3.5 [-1.0, +8.0]`` in points of percent."""
    mean, low, high = (f"{100 * v:+.1f}" for v in (interval.mean, interval.low, interval.high))
    return f"{mean} [{low}, {high}]"


def cost_cells(method: MethodSummary) -> list[str]:
    """The costs of a method in the order of `COST_COLUMNS`."""
    cells = []
    for name, _, _ in COST_COLUMNS:
        value = method.costs[name]
        if value is None:
            cells.append("–")
        elif name in _SHARES:
            cells.append(f"{100 * value:.0f}%")
        elif name == "wall_ms":
            cells.append(f"{value / 1000:.2f} s" + ("*" if method.num_parallel > 1 else ""))
        else:
            cells.append(f"{value:,.2f}" if name == "retrievals" else f"{value:,.0f}")
    return cells


def notes_of(report: EvalReport) -> list[str]:
    """What a reader must know to read the tables right."""
    some, count = report.methods[0], len(report.methods[0].records)
    prompt = some.settings["prompt"]
    retriever = next((m.settings["retriever"] for m in report.methods if m.settings["retriever"]),
                     "none")
    notes = [
        f"{count} question{'s' * (count != 1)}, the same for all methods. Quality in percent with "
        "95% bootstrap intervals; differences are paired by question.",
        f"Prompt: {prompt['num_exemplars']} exemplars of {prompt['exemplars']} as "
        f"{prompt['style']}, {'with' if prompt['exemplar_passages'] else 'without'} passages. "
        f"Retriever: {retriever}. Model: {some.settings['model']['name']} "
        f"({some.settings['model']['compute']}).",
    ]
    if any(m.num_parallel > 1 for m in report.methods):
        notes.append("* Several answers were written at the same time: times are not those of one "
                     "answer.")
    if report.num_left_out:
        left = report.num_left_out
        notes.append(f"{left} answer{'s are' if left > 1 else ' is'} left out: not every method "
                     "has answered the question, or it was not asked for.")
    return notes


def terminal_table(report: EvalReport) -> str:
    """Quality and the main costs, aligned."""
    head = ["method", *METRIC_NAMES.values(), "searches", "trigger", "gold", "format", "time"]
    rows = [head]
    for method in report.methods:
        cells = dict(zip((n for n, _, _ in COST_COLUMNS), cost_cells(method), strict=True))
        rows.append([method.label, *(interval_text(method.quality[m]) for m in METRICS),
                     *(cells[n] for n in ("retrievals", "trigger_rate", "gold_recall",
                                          "pattern_rate", "wall_ms"))])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join([row[0].ljust(widths[0]),
                        *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
             for row in rows]
    return "\n".join([report.title, *lines])


def markdown(report: EvalReport, name: str) -> str:
    """The report as Markdown; `name` is the start of its plots' names."""
    parts = [f"# Evaluation: {_escape(report.title)}",
             "\n".join(f"- {note}" for note in notes_of(report)),
             "## Quality", _quality_table(report), "## Cost per answer", _cost_table(report)]
    parts += [f"![{plot_name}]({name}-{plot_name}.svg)" for plot_name in plots_of(report)]
    if report.grid is not None:
        parts += ["## θ and β", _grid_table(report)]
    else:
        parts += ["## Why answers were wrong", _failure_table(report), *_examples(report)]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    flat = " ".join(text.split())
    for char in "\\`*_[]<>|#":
        flat = flat.replace(char, "\\" + char)
    return flat


def _quality_table(report: EvalReport) -> str:
    others = len(report.methods) > 1
    head = ["Method", *METRIC_NAMES.values()]
    if others:
        head += [f"EM − {_escape(report.baseline)}", f"F1 − {_escape(report.baseline)}"]
    rows = []
    for method, difference in zip(report.methods, report.differences, strict=True):
        row = [_escape(method.label), *(interval_text(method.quality[m]) for m in METRICS)]
        if others:
            is_base = method.label == report.baseline
            row += ["" if is_base else signed_text(difference[m]) for m in ("em", "f1")]
        rows.append(row)
    return _table(head, rows)


def _cost_table(report: EvalReport) -> str:
    table = _table(["Method", *(title for _, title, _ in COST_COLUMNS)],
                   [[_escape(m.label), *cost_cells(m)] for m in report.methods])
    key = "\n".join(f"- {title}: {meaning}." for _, title, meaning in COST_COLUMNS)
    return f"{table}\n\n{key}"


def _grid_table(report: EvalReport) -> str:
    grid = report.grid
    assert grid is not None, "only a sweep has a grid"
    head = ["θ"] + ([f"β = {beta:g}" for beta in grid.betas] or ["EM / F1 / trigger rate"])
    rows = []
    for theta, labels in zip(grid.thetas, grid.labels, strict=True):
        cells = []
        for label in labels:
            method = report.method(label)
            rate = method.costs["trigger_rate"] or 0.0
            cells.append(f"{percent_text(method.quality['em'].mean)} / "
                         f"{percent_text(method.quality['f1'].mean)} / {100 * rate:.0f}%")
        rows.append([f"{theta:g}", *cells])
    return "Each cell: EM / F1 / trigger rate.\n\n" + _table(head, rows)


def _failure_table(report: EvalReport) -> str:
    rows = []
    counts = [count_failures(m) for m in report.methods]
    for name, meaning in CLASSES.items():
        if any(found[name] for found in counts):
            rows.append([meaning, *(str(found[name]) for found in counts)])
    rows.append(["right (exact match)", *(
        str(len(m.records) - sum(found.values()))
        for m, found in zip(report.methods, counts, strict=True))])
    rows.append(["sentences looked up and not changed (fired needlessly), of all looked up", *(
        "{} of {}".format(*needless(m)) for m in report.methods)])
    return _table(["Answers", *(_escape(m.label) for m in report.methods)], rows)


def _examples(report: EvalReport) -> list[str]:
    parts = []
    for example in report.examples:
        record = example.record
        link = f" ([trace]({example.link}))" if example.link else ""
        lines = [f"**{_escape(example.method)}**, {CLASSES[example.failure]}{link}",
                 f"- Question: {_escape(record.question)}",
                 f"- Known: {_escape(' / '.join(record.answers))}",
                 f"- Answer: {_escape(record.answer) or '(empty)'}",
                 f"- Text: {_escape(record.text) or '(empty)'}"]
        if record.error is not None:
            lines.append(f"- Error: {_escape(record.error)}")
        parts.append("\n".join([lines[0], "", *lines[1:]]))
    return ["## Examples", *parts] if parts else []
