"""The report as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flarecore.eval.failures import CLASSES, count_failures, needless
from flarecore.eval.plots import plot_style, plots_of
from flarecore.eval.report import EvalReport, Example
from flarecore.eval.report_text import (
    COST_COLUMNS,
    METRIC_NAMES,
    cost_cells,
    interval_text,
    notes_of,
    percent_text,
    signed_text,
)
from flarecore.eval.summary import METRICS
from flarecore.trace_html.markup import Children, Markup, join, language, tag
from flarecore.trace_html.page import asset, document

__all__ = ["report_page"]

_STYLE = Path(__file__).resolve().parent.parent / "data" / "eval" / "report.css"
_CAPTIONS = {
    "quality": "EM and F1 with their 95% intervals",
    "trigger": "How much is looked up, and how good the answers are",
    "grid": "Quality by θ and β",
    "time": "Time per answer by phase",
}


def report_page(report: EvalReport) -> str:
    """The page: tables, plots, what went wrong and examples. Nothing is loaded from anywhere."""
    plots = plots_of(report)
    main = [
        tag("p", "Evaluation" if report.grid is None else "Sweep over θ and β", cls="kicker"),
        tag("h1", report.title),
        [tag("p", note, cls="note") for note in notes_of(report)],
        _section("Quality", _quality(report), _figure("quality", plots)),
        _section("θ and β", [_figure(n, plots) for n in ("trigger", "grid") if n in plots])
        if report.grid is not None else
        [_section("Trigger rate", _figure("trigger", plots)) if "trigger" in plots else None],
        _section("Cost per answer", _costs(report), _figure("time", plots)),
    ]
    if report.grid is None:
        main.append(_section("Why answers were wrong", _failures(report)))
        if report.examples:
            main.append(_section("Examples of wrong answers", _examples(report)))
    style = asset("page.css") + plot_style() + _STYLE.read_text(encoding="utf-8")
    return document(f"{report.title} · evaluation", style, "", tag("main", main, cls="eval"))


def _section(title: str, *body: Children) -> Markup:
    return tag("section", tag("h2", title), body, cls="report-part")


def _figure(name: str, plots: dict[str, Markup]) -> Markup:
    return tag("figure", tag("figcaption", _CAPTIONS[name]), plots[name])


def _table(head: Sequence[Children], rows: Sequence[Sequence[Children]], cls: str) -> Markup:
    # Wide tables scroll by themselves, so that the page does not.
    return tag("div", tag(
        "table",
        tag("thead", tag("tr", [tag("th", cell, scope="col") for cell in head])),
        tag("tbody", [tag("tr", tag("th", row[0], scope="row"),
                          [tag("td", cell, cls="number") for cell in row[1:]]) for row in rows]),
        cls=cls), cls="scroll", tabindex="0", role="region", aria_label=cls)


def _interval(text: str) -> Markup:
    mean, _, rest = text.partition(" ")
    return join(tag("b", mean), " ", tag("small", rest))


def _quality(report: EvalReport) -> Markup:
    others = len(report.methods) > 1
    head: list[Children] = ["Method", *METRIC_NAMES.values()]
    if others:
        head += [[METRIC_NAMES[m], tag("small", f" less {report.baseline}")] for m in ("em", "f1")]
    rows: list[list[Children]] = []
    for method, difference in zip(report.methods, report.differences, strict=True):
        row: list[Children] = [method.label, *(
            _interval(interval_text(method.quality[m])) for m in METRICS)]
        if others:
            is_base = method.label == report.baseline
            row += ["" if is_base else _interval(signed_text(difference[m])) for m in ("em", "f1")]
        rows.append(row)
    return _table(head, rows, "quality")


def _costs(report: EvalReport) -> Markup:
    head = ["Method", *(tag("span", title, title=meaning) for _, title, meaning in COST_COLUMNS)]
    key = tag("dl", [join(tag("dt", title), tag("dd", meaning))
                     for _, title, meaning in COST_COLUMNS], cls="key-list")
    return join(_table(head, [[m.label, *cost_cells(m)] for m in report.methods], "cost-table"),
                tag("details", tag("summary", "What the columns mean"), key))


def _failures(report: EvalReport) -> Markup:
    counts = [count_failures(m) for m in report.methods]
    rows: list[list[Children]] = [
        [meaning, *(str(found[name]) for found in counts)]
        for name, meaning in CLASSES.items() if any(found[name] for found in counts)]
    rows.append(["right (exact match)", *(
        str(len(m.records) - sum(found.values()))
        for m, found in zip(report.methods, counts, strict=True))])
    found = [(m.label, *needless(m)) for m in report.methods]
    shares = "; ".join(f"{label} {same} of {total}" for label, same, total in found if total)
    note = tag("p", "A search was needless where the sentence came out as it had been drafted: ",
               shares, ".", cls="note") if shares else None
    return join(_table(["Answers", *(m.label for m in report.methods)], rows, "failures"), note)


def _examples(report: EvalReport) -> Markup:
    return tag("ol", [_example(e) for e in report.examples], cls="examples")


def _example(example: Example) -> Markup:
    record = example.record

    def line(name: str, text: str) -> Markup:
        return join(tag("dt", name), tag("dd", text or "(empty)", dir="auto", lang=language(text)))

    recall = [] if record.gold_recall is None else [
        line("Gold in view", f"{percent_text(record.gold_recall)}%")]
    return tag(
        "li",
        tag("p", tag("b", example.method), tag("span", CLASSES[example.failure], cls="badge"),
            tag("a", "trace", href=example.link) if example.link else None, cls="what"),
        tag("dl", line("Question", record.question), line("Known", " / ".join(record.answers)),
            line("Answer", record.answer), line("Text", record.text.strip()), recall,
            line("Error", record.error) if record.error is not None else None))
