"""Stacked bars as SVG, and numbers for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flarecore.trace_html.markup import Markup, tag

__all__ = ["Segment", "bar", "count", "percent", "seconds", "share"]


@dataclass(frozen=True)
class Segment:
    """Part of a bar.

    Parameters
    ----------
    kind : str
        Class that the style sheet knows as ``f-KIND``.
    value : float
        Its length in the unit of the bar; below 0 counts as 0.
    label : str
        What it is, with the value in words.
    """

    kind: str
    value: float
    label: str


def bar(segments: Sequence[Segment], full: float, *, cls: str = "") -> Markup:
    """A bar of segments one after the other; `full` would fill its whole width."""
    shown, position = [], 0.0
    for segment in segments:
        width = 100 * share(segment.value, full)
        if width > 0:
            shown.append(tag(
                "rect", tag("title", segment.label), cls=f"f-{segment.kind}",
                x=f"{position:.3f}%", width=f"{width:.3f}%", height="100%"))
        position += width
    label = ", ".join(s.label for s in segments if s.value > 0) or "nothing"
    return tag("svg", shown, cls=f"bar {cls}".strip(), role="img", aria_label=label)


def share(part: float, whole: float) -> float:
    """`part` of `whole` in [0, 1]; 0 where there is no whole."""
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0


def percent(part: float, whole: float) -> str:
    """``64%``."""
    return f"{100 * share(part, whole):.0f}%"


def count(number: int, noun: str = "", plural: str | None = None) -> str:
    """``1,234`` or ``1 token``, ``2 tokens``."""
    if not noun:
        return f"{number:,}"
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def seconds(ms: float) -> str:
    """``12.3 s``, ``850 ms`` or ``0.4 ms``."""
    if ms >= 1000:
        return f"{ms / 1000:,.2f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"
