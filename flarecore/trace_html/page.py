"""The page around the answers: head, policy, index."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

from flarecore import __version__
from flarecore.errors import ConfigError
from flarecore.trace import Trace
from flarecore.trace_html.answer import answer_body, heading_of
from flarecore.trace_html.bars import count, seconds
from flarecore.trace_html.facts import shown_value
from flarecore.trace_html.markup import Markup, join, language, raw, tag

__all__ = ["asset", "document", "trace_page"]

_DATA = Path(__file__).resolve().parent.parent / "data" / "trace"
# Hatches keep the parts of a bar apart where colours do not.
_PATTERNS = (("h-reused", "M-1 7L7 -1M-1 1L1 -1M5 7L7 5"), ("h-accepted", "M3 -1V7"),
             ("h-regenerate", "M-1 -1L7 7M5 -1L7 1M-1 5L1 7"))


def trace_page(traces: Sequence[Trace]) -> str:
    """One self-contained HTML page that shows answers sentence by sentence.

    Nothing is loaded from anywhere, and the page's own policy forbids it: styles and the script
    are named by their checksums, so text of a model or a passage could not run even if it got out
    of its place.

    Parameters
    ----------
    traces : sequence of Trace
        At least one; with several the page begins with an index.

    Returns
    -------
    str
        The page, to be stored as UTF-8.

    Raises
    ------
    ConfigError
        There is no trace, or one contradicts itself.
    """
    if not traces:
        raise ConfigError("a page needs at least one trace, got none")
    try:
        title, main = _content(traces)
        page = document(f"{title} · FLARE trace", asset("page.css"), asset("page.js"),
                        _patterns(), tag("main", main))
    except RecursionError:
        # Only a filter or an option can be nested at all.
        raise ConfigError("a filter or an option is nested too deeply to be shown") from None
    return page


def document(title: str, style: str, script: str, *body: Markup) -> str:
    """A self-contained page: its policy lets nothing load or run but what is given here.

    Parameters
    ----------
    title : str
        Of the window.
    style, script : str
        Of our own files; an empty script is left out.
    body : Markup
        What it shows; a footer is added.
    """
    return "<!DOCTYPE html>\n" + tag(
        "html", _head(title, style, script), tag(
            "body", body, tag("footer", "Written by flarecore ", __version__, "."),
            tag("script", raw(script)) if script else None), lang="en") + "\n"


def _content(traces: Sequence[Trace]) -> tuple[str, Markup]:
    """Title and main part: the answer, or an index and all answers."""
    if len(traces) == 1:
        title = heading_of(traces[0])
        return title, tag(
            "article", _kicker("FLARE trace"), tag("h1", title, dir="auto", lang=language(title)),
            answer_body(traces[0], "a1"), cls="answer", id="a1")
    title = f"{len(traces)} answers"
    anchors = [f"a{number}" for number in range(1, len(traces) + 1)]
    return title, join(
        tag("div", _kicker("FLARE traces"), tag("h1", title), _index(traces, anchors),
            cls="contents"),
        [_folded(trace, anchor, at, len(traces))
         for at, (trace, anchor) in enumerate(zip(traces, anchors, strict=True), start=1)])


def _kicker(text: str) -> Markup:
    return tag("p", text, cls="kicker")


@functools.cache
def asset(name: str) -> str:
    """A style sheet or script of the pages."""
    return (_DATA / name).read_text(encoding="utf-8")


def _head(title: str, style: str, script: str) -> Markup:
    policy = (f"default-src 'none'; style-src '{_checksum(style)}'; "
              f"script-src '{_checksum(script)}'; img-src data:; base-uri 'none'; "
              "form-action 'none'")
    return tag(
        "head", tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        # An empty icon keeps browsers from asking a server for one.
        tag("link", rel="icon", href="data:,"),
        tag("style", raw(style)))


def _checksum(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")


def _patterns() -> Markup:
    patterns = [
        tag("pattern", tag("rect", width=6, height=6, cls=f"{name}-0"),
            tag("path", d=path, cls=f"{name}-1"), id=name, width=6, height=6,
            patternUnits="userSpaceOnUse")
        for name, path in _PATTERNS]
    return tag("svg", tag("defs", patterns), width=0, height=0, cls="patterns", aria_hidden="true")


def _index(traces: Sequence[Trace], anchors: Sequence[str]) -> Markup:
    """A table of all answers."""
    differing = _differing_options(traces)
    model = "Model, options that differ" if differing else "Model"
    names = ("", "Question", model, "Sentences", "Needed evidence", "Searches", "Prefilled", "Time")
    rows = []
    for at, (trace, anchor) in enumerate(zip(traces, anchors, strict=True), start=1):
        stats, question = trace.stats, heading_of(trace)
        numbers = (count(stats.num_sentences),
                   f"{count(stats.num_triggers)} of {count(stats.num_drafts)}",
                   count(stats.num_retrievals), count(stats.num_prefilled),
                   seconds(stats.total_ms))
        rows.append(tag(
            "tr", tag("td", str(at), cls="number"),
            tag("th", tag("a", question, href=f"#{anchor}", dir="auto", lang=language(question)),
                scope="row"),
            tag("td", trace.model, [tag("small", f"{name} {shown_value(trace.config.get(name))}")
                                    for name in differing], cls="model"),
            [tag("td", number, data_label=name, cls="number")
             for number, name in zip(numbers, names[3:], strict=True)]))
    head = tag("tr", [tag("th", name, scope="col") for name in names])
    return tag("nav", tag("table", tag("thead", head), tag("tbody", rows), cls="index"),
               aria_label="answers")


def _differing_options(traces: Sequence[Trace]) -> list[str]:
    """Names of options that are not the same in all answers."""
    names = dict.fromkeys(name for trace in traces for name in trace.config)
    return [name for name in names
            if len({shown_value(trace.config.get(name)) for trace in traces}) > 1]


def _folded(trace: Trace, anchor: str, number: int, total: int) -> Markup:
    """An answer that opens; the first one is open."""
    title = heading_of(trace)
    heading = tag("h2", title, dir="auto", lang=language(title))
    # The id is inside, so that a link to it opens the answer without any script.
    body = tag("div", answer_body(trace, anchor), cls="body", id=anchor)
    return tag("details", tag("summary", _kicker(f"Answer {number} of {total}"), heading), body,
               cls="answer", open=number == 1)
