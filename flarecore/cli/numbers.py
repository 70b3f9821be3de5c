"""The numbers at the end: what an answer cost, and what it would have cost without a cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flarecore.trace import FlareStats, Trace

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_numbers", "total"]


def total(stats: Sequence[FlareStats]) -> FlareStats:
    """The sum of the counts and times of several answers."""
    names = [f.name for f in dataclasses.fields(FlareStats)]
    return FlareStats(**{name: sum(getattr(s, name) for s in stats) for name in names})


def rows(stats: FlareStats, trace: Trace | None = None) -> list[tuple[str, str, str]]:
    """(name, value, remark) of every number; `trace` is that of an answer among them."""
    placed = [] if trace is None else [
        ("placement", trace.placement,
         "an approximation" if trace.is_approximate else "the model's own distribution")]
    if trace is not None and trace.is_approximate:
        placed.append(("passages encoded", f"{stats.num_encoded:,}", "kept for later answers"))
    return [
        *placed,
        ("drafts that were looked up", f"{stats.num_triggers} of {stats.num_drafts}",
         "a confidence below θ"),
        ("searches", f"{stats.num_retrievals}", "those with the questions included"),
        ("sentences, tokens", f"{stats.num_sentences}, {stats.num_tokens:,}", "accepted"),
        ("tokens reused", f"{stats.num_reused:,}", "their keys and values were there already"),
        ("tokens prefilled", f"{stats.num_prefilled:,}", "given tokens that were computed"),
        ("tokens decoded", f"{stats.num_decoded:,}", "generated one by one"),
        ("draft tokens proposed", f"{stats.num_accepted:,} of {stats.num_proposed:,} right",
         "checked while prefilling"),
        ("time drafting", _time(stats.draft_ms), ""),
        ("time writing queries", _time(stats.query_ms), f"{stats.num_asked} by the model"),
        ("time searching", _time(stats.retrieve_ms), "query embedding and search"),
        ("time regenerating", _time(stats.regenerate_ms), "evidence prefill included"),
        ("time, the rest", _time(stats.other_ms), ""),
    ]


def comparison(stats: FlareStats) -> str:
    """What a loop outside the decoder would have had to prefill."""
    whole = stats.num_reused + stats.num_prefilled
    if not whole:
        return "Nothing was prefilled."
    text = (f"A loop that prefills its whole prompt for every draft and every regeneration would "
            f"have prefilled {whole:,} tokens instead of {stats.num_prefilled:,}")
    if not stats.num_prefilled:
        return text + "."
    return f"{text}: {whole / stats.num_prefilled:.1f} times as many."


def print_numbers(console: Console, stats: FlareStats, trace: Trace | None = None) -> None:
    """Prints all numbers as a table that fits narrow terminals; arguments as for :func:`rows`."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    wide = console.width >= 76
    for name, value, remark in rows(stats, trace):
        table.add_row(name, value, remark if wide else "")
    console.print(table)
    console.print()
    console.print(comparison(stats))


def _time(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms >= 1000 else f"{ms:.1f} ms"
