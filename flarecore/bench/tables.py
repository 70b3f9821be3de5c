"""Reports as tables: for a terminal of 80 columns, and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from flarecore.bench.harness import Quantiles
from flarecore.bench.rows import Report, Row

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["columns", "markdown", "print_report"]

Column = tuple[str, Callable[[Row], str]]


def _number(value: float | None, digits: int = 3) -> str:
    """At least so many significant digits, without an exponent."""
    if value is None:
        return ""
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(digits - magnitude, 0)}f}"


def _percent(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{100 * value:.{digits}f}%"


def _median(unit: float) -> Callable[[Row], str]:
    return lambda row: _number(row.seconds.median * unit) if row.seconds else ""


def _spread(unit: float) -> Callable[[Row], str]:
    return lambda row: _range(row.seconds, unit)


def _range(quantiles: Quantiles | None, unit: float = 1.0) -> str:
    if quantiles is None:
        return ""
    return f"{_number(quantiles.p20 * unit)}–{_number(quantiles.p80 * unit)}"


def _value(name: str, unit: float = 1.0, digits: int = 3) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        value = row.values.get(name)
        return "" if value is None else _number(value * unit, digits)

    return show


def _share(name: str, digits: int) -> Callable[[Row], str]:
    return lambda row: _percent(row.values.get(name), digits)


def _versus_one(row: Row) -> str:
    """Cost of the rows against one row, or tokens a second against one sequence."""
    value = row.values.get("cost_of_one_row", row.values.get("tokens_per_s_of_one"))
    return "" if value is None else f"{_number(value)}×"


def _times(name: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        value = row.values.get(name)
        return "" if value is None else f"{_number(value)}×"

    return show


def _ours(row: Row) -> str:
    value = row.values.get("flarecore_is_faster")
    return "" if value is None else f"{value:.0f}×" if value >= 100 else f"{value:.2f}×"


_ENGINE: Column = ("", lambda row: row.engine)
_TOKENS: Column = ("tokens/s", lambda row: _number(row.tokens_per_s))
_OURS: Column = ("ours", _ours)
_COLUMNS: dict[str, tuple[Column, ...]] = {
    "decode": (
        _ENGINE, ("ms/step", _median(1e3)), ("p20–p80", _spread(1e3)), _TOKENS,
        ("GB/s", lambda row: _number(row.bytes_per_s and row.bytes_per_s / 1e9)),
        ("of read", lambda row: _percent(row.memory_share)), ("vs one", _versus_one), _OURS),
    "busy": (
        _ENGINE, ("ms/step", _median(1e3)), ("p20–p80", _spread(1e3)), _TOKENS,
        ("quiet ms", _value("quiet_seconds", 1e3)), ("kept", _share("share_of_quiet_speed", 0)),
        _OURS),
    "prefill": (
        _ENGINE, ("ms", _median(1e3)), ("p20–p80", _spread(1e3)), _TOKENS,
        ("GMAC/s", _value("multiply_adds_per_s", 1e-9)), _OURS),
    "load": (
        _ENGINE, ("s", _median(1)), ("p20–p80", _spread(1)), ("import", _value("import_s")),
        ("open", _value("open_s")), ("token", _value("first_token_s")),
        ("peak MB", _value("peak_rss_bytes", 1e-6, 0)),
        ("own MB", _value("anonymous_bytes", 1e-6, 0)), _OURS),
    "sampling": (
        _ENGINE, ("µs", _median(1e6)), ("p20–p80", _spread(1e6)),
        ("step", _share("share_of_step", 2)), ("p80", _share("share_p80", 2))),
    "loop": (
        _ENGINE, ("ms/sentence", _median(1e3)), ("p20–p80", _spread(1e3)),
        ("ms/token", _value("seconds_per_token", 1e3)),
        ("prefilled", _value("prefilled_per_token")),
        ("decoded", _value("decoded_per_token")), _OURS),
    "growth": (
        _ENGINE, ("ms", _median(1e3)), ("p20–p80", _spread(1e3)),
        ("prefilled", _value("num_prefilled", 1, 0))),
    "answers": (
        _ENGINE, ("s/answer", _median(1)), ("p20–p80", _spread(1)),
        ("answers/s", _value("answers_per_s")), ("tokens", _value("tokens_per_answer")),
        ("prefilled", _value("prefilled_per_token")),
        ("vs turn", _times("answers_per_s_of_in_turn"))),
    "retrieval": (
        _ENGINE, ("p50 ms", _median(1e3)), ("p20–p80", _spread(1e3)),
        ("recall", _share("recall", 1)), _OURS),
    "quality": (
        _ENGINE, ("perplexity", _value("perplexity", 1, 5)), ("loss", _share("loss", 2)),
        ("±", _share("loss_error", 2)), ("|Δp|", _value("mean_probability_difference", 1, 4)),
        ("Δ log p", _value("log_deviation", 1, 4)),
        ("equal", _share("equal_greedy_given", 1)), ("in a row", _share("equal_greedy_free", 1))),
}
_LEGENDS = {
    "decode": "of read: of the best speed at which as many bytes are merely read in the same "
              "rounds. vs one: time against one row, or tokens/s against one sequence.",
    "busy": "kept: share of the quiet speed while a neighbour spins on a core.",
    "prefill": "Time from a prompt that nobody has seen to the token after it.",
    "load": "From the start of the process. peak MB: with pages of the model file; own MB: "
            "without.",
    "sampling": "Time a token. all: confidence, minimum, mask and sentence boundary; step: what "
                "they add to a plain argmax, as a share of a decode step of this model.",
    "loop": "Wall time of an accepted sentence and, since sentences differ in length, of an "
            "accepted token; tokens prefilled and decoded for each of these.",
    "growth": "One retrieval: from found passages to the first token written with them.",
    "answers": "Whole answers on one engine: wall time over their number; tokens of an answer, "
               "and prefilled for each of them. vs turn: answers/s against one after the "
               "other.",
    "retrieval": "One question at a time, quantiles over questions and rounds. recall: share of "
                 "the passages that exact search finds.",
    "quality": "loss: of perplexity against float32, ± its standard error. Δ log p: root of the "
               "mean squared difference of log probabilities. equal: greedy tokens behind "
               "the exact engine's own; in a row: until the first difference.",
}


_OURS_LEGENDS = {
    "loop": "ours: times as long for a sentence as the first row.",
    "retrieval": "ours: times as long as flarecore's embedding, or its search in a graph.",
}
_OURS_LEGEND = "ours: times as fast as this row flarecore is."
_ENOUGH_ROUNDS = 3


def columns(benchmark: str, rows: Sequence[Row]) -> Sequence[Column]:
    """Headers, and what each shows of a row; "ours" only if there is something to compare with."""
    shown = _COLUMNS[benchmark]
    return shown if any(map(_ours, rows)) else [column for column in shown if column is not _OURS]


def _legend(report: Report) -> str:
    """What the columns mean, and which rows rest on too little."""
    parts = [_LEGENDS[report.benchmark]]
    if _OURS in columns(report.benchmark, report.rows):
        parts.append(_OURS_LEGENDS.get(report.benchmark, _OURS_LEGEND))
    few = {row.engine: row.rounds for row in report.rows
           if row.seconds is not None and row.rounds < _ENOUGH_ROUNDS}
    if few and len(few) == len({row.engine for row in report.rows}):
        most = max(few.values())
        parts.append(f"Hardly a median: {most} round{'s' * (most != 1)}.")
    elif few:
        parts.append("Hardly a median: " + ", ".join(
            f"{name} ({rounds} round{'s' * (rounds != 1)})" for name, rounds in few.items()) + ".")
    return " ".join(parts)


def _cases(report: Report) -> Iterator[tuple[str, list[Row]]]:
    """Rows by case, in order."""
    for case in dict.fromkeys(row.case for row in report.rows):
        yield case, [row for row in report.rows if row.case == case]


def print_report(console: Console, report: Report) -> None:
    """Prints a report, at most 80 columns wide but for rows with long names.

    Parameters
    ----------
    console : rich.console.Console
    report : Report
    """
    from rich.text import Text

    console.print(Text(f"{report.benchmark}: {report.model} ({report.model_format})", "bold"))
    for line in report.machine.lines():
        console.print(Text(line, "dim"))
    console.print()
    shown = columns(report.benchmark, report.rows)
    cells = {id(row): [show(row) for _, show in shown] for row in report.rows}
    widths = [max(len(header), *(len(line[i]) for line in cells.values()), 0)
              for i, (header, _) in enumerate(shown)]
    console.print(Text(_line([header for header, _ in shown], widths), "dim"), soft_wrap=True)
    for case, rows in _cases(report):
        console.print(Text(case, "italic"))
        for row in rows:
            style = "bold" if row.engine.startswith("flarecore") else ""
            console.print(Text(_line(cells[id(row)], widths), style), soft_wrap=True)
    console.print()
    console.print(Text(_legend(report), "dim"))
    for proof in report.proofs:
        console.print(Text(f"shown: {proof}", "dim"))
    for note in report.notes:
        console.print(Text(f"note: {note}", "dim"))
    console.print()


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    """The first to the left, the others to the right of their column."""
    first, *others = (text.ljust(width) if i == 0 else text.rjust(width)
                      for i, (text, width) in enumerate(zip(texts, widths, strict=True)))
    return " ".join((" " + first, *others)).rstrip()


def markdown(report: Report) -> str:
    """The report as a section of a Markdown page, with every row's rounds and peers."""
    lines = [f"## {report.benchmark}", "", _legend(report), ""]
    shown = [*columns(report.benchmark, report.rows), ("rounds", lambda row: str(row.rounds or ""))]
    lines.append("| case | " + " | ".join(header or "engine" for header, _ in shown) + " |")
    lines.append("|---" * (len(shown) + 1) + "|")
    for case, rows in _cases(report):
        for row in rows:
            cells = [show(row) for _, show in shown]
            lines.append(f"| {case} | " + " | ".join(cells) + " |")
    lines += ["", *_peer_lines(report)]
    lines += [f"- shown: {proof}" for proof in report.proofs]
    lines += [f"- note: {note}" for note in report.notes]
    return "\n".join(lines).rstrip() + "\n"


def _peer_lines(report: Report) -> list[str]:
    """Ratios of flarecore's rows with their spread."""
    lines = []
    for row in report.rows:
        if row.ratios:
            found = ", ".join(f"{name} {q.median:.2f}× ({_range(q)})"
                              for name, q in row.ratios.items())
            lines.append(f"- {row.case}: as fast as {found}")
    return lines
