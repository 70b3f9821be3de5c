"""Plots as SVG without a plotting library; colours and type are in ``data/eval/plot.css``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flarecore.eval.bootstrap import Interval
from flarecore.eval.summary import PHASES, MethodSummary
from flarecore.trace_html.markup import Markup, join, raw, tag

if TYPE_CHECKING:
    from flarecore.eval.report import EvalReport

__all__ = ["plot_style", "plots_of", "standalone"]

_STYLE = Path(__file__).resolve().parent.parent / "data" / "eval" / "plot.css"
_WIDTH = 760
_SERIES = (("em", "EM"), ("f1", "F1"))
_PHASE_NAMES = {"draft": "draft", "query": "query", "retrieve": "search",
                "regenerate": "regeneration", "other": "other"}
_Scale = Callable[[float], float]


def plot_style() -> str:
    """The style sheet of all plots."""
    return _STYLE.read_text(encoding="utf-8")


def standalone(plot: Markup) -> str:
    """A plot as a file of its own."""
    begin, rest = plot.split(">", 1)
    style = tag("style", raw(plot_style()))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{begin}>{style}{rest}\n'


def plots_of(report: EvalReport) -> dict[str, Markup]:
    """The plots of a report by name."""
    plots = {"quality": quality_plot(report.methods)}
    if any(m.costs["trigger_rate"] for m in report.methods):
        plots["trigger"] = trigger_plot(report)
    if report.grid is not None and len(report.grid.betas) > 1:
        plots["grid"] = grid_plot(report)
    plots["time"] = time_plot(report.methods)
    return plots


def quality_plot(methods: Sequence[MethodSummary]) -> Markup:
    """EM and F1 of each method as points with their intervals."""
    left, top, row = _label_width(methods), 34, 44
    height = top + row * len(methods) + 34
    highest = max(m.quality[name].high for m in methods for name, _ in _SERIES)
    full, ticks = _scale_to(highest)
    x = _linear(full, left, _WIDTH - 24)
    parts = [_grid_lines(x, ticks, top, height - 34, "{:.0f}%", 100)]
    for at, method in enumerate(methods):
        y = top + row * at + row / 2
        parts.append(_label(method.label, left, y))
        for shift, (name, title) in zip((-7, 7), _SERIES, strict=True):
            parts.append(_whisker(name, title, method.label, method.quality[name], x, y + shift))
    return _svg("Quality with 95% intervals", height, _key(_SERIES, left), parts)


def trigger_plot(report: EvalReport) -> Markup:
    """Trigger rate on x, EM and F1 on y, with intervals."""
    left, top, height = 56, 34, 380
    bottom = height - 46
    highest = max(m.quality[name].high for m in report.methods for name, _ in _SERIES)
    full, ticks = _scale_to(highest)
    x, y = _linear(1.0, left, _WIDTH - 30), _linear(full, bottom, top)
    parts: list[Markup | list[Markup]] = [
        _grid_lines(x, [0, .2, .4, .6, .8, 1], top, bottom, "{:.0f}%", 100),
        [join(tag("line", cls="grid", x1=left, x2=_WIDTH - 30, y1=_n(y(t)), y2=_n(y(t))),
              tag("text", f"{100 * t:.0f}%", cls="tick end", x=left - 8, y=_n(y(t) + 4)))
         for t in ticks],
        tag("text", "share of drafts that were looked up (trigger rate)", cls="axis",
            x=_n((left + _WIDTH - 30) / 2), y=height - 6)]
    taken: list[tuple[float, float, float]] = []
    for method in report.methods:
        rate = method.costs["trigger_rate"] or 0.0
        for shift, (name, title) in zip((-3, 3), _SERIES, strict=True):
            interval, cx = method.quality[name], x(rate) + shift
            parts.append(tag(
                "g", tag("title", _words(method.label, title, interval)
                         + f", trigger rate {100 * rate:.0f}%"),
                tag("line", cls="whisker", x1=_n(cx), x2=_n(cx), y1=_n(y(interval.low)),
                    y2=_n(y(interval.high))),
                _mark(name, cx, y(interval.mean)), cls=f"series {name}"))
        best = y(max(method.quality[name].mean for name, _ in _SERIES))
        parts.append(_point_label(_short(method.label, report), x(rate), best - 6, taken))
    return _svg("Trigger rate and quality", height, _key(_SERIES, left), parts)


def grid_plot(report: EvalReport) -> Markup:
    """EM and F1 for each θ and β, darker is better."""
    grid = report.grid
    assert grid is not None, "only a sweep has a grid"
    panel, cell_height, top, left = _WIDTH / 2, 34, 62, 60
    height = top + cell_height * len(grid.thetas) + 16
    parts: list[Markup] = []
    for number, (name, title) in enumerate(_SERIES):
        begin = panel * number + left
        width = (panel - left - 20) / len(grid.betas)
        means = [[report.method(label).quality[name].mean for label in row]
                 for row in grid.labels]
        low, high = min(map(min, means)), max(map(max, means))
        parts.append(tag("text", f"{title} by θ (rows) and β", cls="heading", x=_n(begin), y=22))
        parts += [tag("text", f"β = {beta:g}", cls="tick middle", x=_n(begin + width * (c + .5)),
                      y=top - 10) for c, beta in enumerate(grid.betas)]
        for r, theta in enumerate(grid.thetas):
            middle = top + cell_height * (r + .5)
            parts.append(tag("text", f"θ = {theta:g}", cls="tick end", x=_n(begin - 8),
                             y=_n(middle + 4)))
            parts += [_cell(begin + width * c, middle, width, cell_height, value,
                            (value - low) / (high - low) if high > low else 0.0)
                      for c, value in enumerate(means[r])]
    return _svg("Quality by θ and β", height, None, parts)


def time_plot(methods: Sequence[MethodSummary]) -> Markup:
    """Time of each phase per answer, stacked."""
    left, top, row = _label_width(methods), 34, 30
    height = top + row * len(methods) + 34
    totals = [sum(m.costs[f"{p}_ms"] or 0.0 for p in PHASES) for m in methods]
    full, ticks = _scale_to(max(totals) / 1000, cap=math.inf)
    x = _linear(full, left, _WIDTH - 24)
    parts = [_grid_lines(x, ticks, top, height - 34, "{:g} s", 1)]
    for at, method in enumerate(methods):
        middle, begin = top + row * (at + .5), 0.0
        parts.append(_label(method.label, left, middle))
        for phase in PHASES:
            seconds = (method.costs[f"{phase}_ms"] or 0.0) / 1000
            parts.append(tag(
                "rect", tag("title", f"{method.label}: {_PHASE_NAMES[phase]} {seconds:.2f} s"),
                cls=f"phase p-{phase}", x=_n(x(begin)), y=_n(middle - 8),
                width=_n(x(begin + seconds) - x(begin)), height=16))
            begin += seconds
    return _svg("Time per answer by phase", height, _key(
        [(f"phase p-{p}", _PHASE_NAMES[p]) for p in PHASES], left, square=True), parts)


def _svg(title: str, height: float, key: Markup | None, parts: Sequence[object]) -> Markup:
    return tag("svg", tag("title", title), key, parts, cls="plot",  # type: ignore[arg-type]
               xmlns="http://www.w3.org/2000/svg", role="img",
               viewBox=f"0 0 {_WIDTH} {_n(height)}")


def _n(value: float) -> str:
    return f"{value:.1f}"


def _linear(full: float, begin: float, end: float) -> _Scale:
    return lambda value: begin + (end - begin) * value / full


def _scale_to(highest: float, cap: float = 1.0) -> tuple[float, list[float]]:
    """A round end of an axis from 0 that holds `highest`, and its ticks."""
    if highest <= 0:
        return min(.1, cap), [0, min(.1, cap)]
    power = 10.0 ** math.floor(math.log10(highest / 4))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if highest / (s * power) <= 5)
    full = min(step * math.ceil(highest / step - 1e-9), max(cap, highest))
    return full, [step * i for i in range(int(full / step + 1e-9) + 1)]


def _grid_lines(
    x: _Scale, ticks: Sequence[float], top: float, bottom: float, text: str, factor: float
) -> Markup:
    return join([join(
        tag("line", cls="grid", x1=_n(x(t)), x2=_n(x(t)), y1=_n(top), y2=_n(bottom)),
        tag("text", text.format(factor * t), cls="tick middle", x=_n(x(t)), y=_n(bottom + 18)))
        for t in ticks])


def _label_width(methods: Sequence[MethodSummary]) -> float:
    return min(max(90.0, 7.0 * max(len(m.label) for m in methods) + 16), 300.0)


def _label(text: str, left: float, y: float) -> Markup:
    shown = text if len(text) <= 40 else text[:39] + "…"
    return tag("text", tag("title", text), shown, cls="label end", x=_n(left - 12), y=_n(y + 4))


def _words(label: str, title: str, interval: Interval) -> str:
    return (f"{label}: {title} {100 * interval.mean:.1f}% "
            f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]")


def _whisker(
    name: str, title: str, label: str, interval: Interval, x: _Scale, y: float
) -> Markup:
    return tag(
        "g", tag("title", _words(label, title, interval)),
        tag("line", cls="whisker", x1=_n(x(interval.low)), x2=_n(x(interval.high)), y1=_n(y),
            y2=_n(y)),
        _mark(name, x(interval.mean), y), cls=f"series {name}")


def _mark(name: str, x: float, y: float) -> Markup:
    """A circle for EM, a square for F1: colour is not all that tells them apart."""
    if name == "em":
        return tag("circle", cls="mark", cx=_n(x), cy=_n(y), r=5)
    return tag("rect", cls="mark", x=_n(x - 4.5), y=_n(y - 4.5), width=9, height=9)


def _key(
    series: Sequence[tuple[str, str]], left: float, *, square: bool = False
) -> Markup:
    parts, x = [], left + 6
    for name, title in series:
        mark = tag("rect", cls=name, x=_n(x - 5), y=9, width=10, height=10) if square else \
            tag("g", _mark(name, x, 14), cls=f"series {name}")
        parts.append(join(mark, tag("text", title, cls="tick", x=_n(x + 10), y=18)))
        x += 34 + 7 * len(title)
    return join(parts)


def _short(label: str, report: EvalReport) -> str:
    """A label without what all points have in common."""
    if report.grid is not None:
        label = label.removeprefix(report.grid.method + ":")
    return label.replace("theta=", "θ ").replace("beta=", "β ").replace(":", ", ")


def _point_label(
    text: str, x: float, y: float, taken: list[tuple[float, float, float]]
) -> Markup:
    """A label beside a point, lower where another one stands; `taken` are (begin, end, y)."""
    width, is_left = 6.0 * len(text), x > _WIDTH * .6
    begin = x - 10 - width if is_left else x + 10
    while any(begin < right and left < begin + width and abs(y - other) < 12
              for left, right, other in taken):
        y += 12
    taken.append((begin, begin + width, y))
    return tag("text", text, cls=f"point {'end' if is_left else 'start'}",
               x=_n(x - 10 if is_left else x + 10), y=_n(y))


def _cell(
    x: float, middle: float, width: float, height: float, value: float, strength: float
) -> Markup:
    dark = " strong" if strength > .6 else ""
    return join(
        tag("rect", cls="cell", x=_n(x + 1), y=_n(middle - height / 2 + 1), width=_n(width - 2),
            height=_n(height - 2), fill_opacity=f"{.08 + .82 * strength:.2f}"),
        tag("text", f"{100 * value:.1f}", cls=f"value middle{dark}", x=_n(x + width / 2),
            y=_n(middle + 4)))
