"""The view of an answer that is being written, for a person at a terminal or for a pipe.

Each sentence is a block: the draft with every token coloured by its confidence and the masked ones
struck through, the query, the passages with the words that were used, the accepted sentence. On a
terminal the answer so far grows in a panel below. Without a terminal, masked words stand in
brackets and nothing moves.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from flarecore.cli.reasons import source_note, why_looked_up
from flarecore.events import (
    DraftFinished,
    DraftStarted,
    Event,
    Finished,
    RetrievalFinished,
    RetrievalStarted,
    SentenceAccepted,
)
from flarecore.trace import PassageTrace
from flarecore.wording import content_words, excerpt, filter_words, printable, used_spans

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

__all__ = ["AnswerView", "make_console", "print_legend"]

# Readable on light and dark backgrounds: from sure to unsure.
_SHADES = ((0.8, "green"), (0.6, "color(100)"), (0.4, "color(172)"), (0.2, "color(166)"),
           (0.0, "color(160)"))
_LABEL_WIDTH = 8
_EXCERPT_CHARS = 200
_MIN_USED_WORDS = 2  # a single common word is no use of a passage


def make_console(file: TextIO | None = None, *, stderr: bool = False) -> Console:
    """A rich console that raises BrokenPipeError like every other writer here."""
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return _Console(file=file, stderr=stderr, highlight=False, emoji=False, markup=False)


def shade(prob: float) -> str:
    """Style of a token with that confidence."""
    return next(style for low, style in _SHADES if prob >= low)


def print_legend(console: Console, *, theta: float, beta: float, remark: str) -> None:
    """Says what the colours and marks mean."""
    from rich.text import Text

    legend = Text()
    if _can_move(console):
        legend.append("draft tokens from ")
        for (_, style), name in zip(_SHADES, ("sure", "·", "·", "·", "unsure"), strict=True):
            legend.append(name, style)
            legend.append(" " if name != "unsure" else "")
        legend.append("; ")
        legend.append("struck", "strike")
        legend.append(": ")
    else:
        legend.append("[in brackets]: ")
    legend.append(f"below β = {beta:g}, left out of the query; a sentence with a token below "
                  f"θ = {theta:g} is looked up")
    if remark:
        console.print(Text(printable(remark), "dim"))
    console.print(legend)
    console.print()


def _can_move(console: Console) -> bool:
    """Whether the cursor can; a terminal without is treated like a pipe."""
    return console.is_terminal and not console.is_dumb_terminal


class AnswerView:
    """Shows the events of one answer; a context manager around the loop that feeds it.

    Parameters
    ----------
    console : rich.console.Console
    question : str
    theta, beta : float
        Thresholds, for the words beside a draft.
    """

    def __init__(self, console: Console, question: str, *, theta: float, beta: float) -> None:
        self._console = console
        self._question = question
        self._theta, self._beta = theta, beta
        self._is_live = _can_move(console)
        self._live: Live | None = None
        self._draft: DraftFinished | None = None
        self._passages: tuple[PassageTrace, ...] = ()
        self._answer = ""
        self._has_query = False
        self._searched = False  # since the draft

    def __enter__(self) -> AnswerView:
        from rich.text import Text

        self._console.print(Text.assemble(
            ("? ", "bold cyan"), (printable(self._question), "bold")))
        if self._is_live:
            from rich.live import Live

            self._live = Live(
                self._panel("searching with the question"), console=self._console,
                refresh_per_second=8, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is None:
            return
        self._live.update(self._panel(None if kind is None else "stopped"))
        # The pipe may be gone; what ended the answer matters more.
        with contextlib.suppress(BrokenPipeError):
            self._live.stop()
            self._console.print()

    def handle(self, event: Event) -> None:
        """Shows what an event adds."""
        if isinstance(event, DraftStarted):
            self._draft, self._has_query = None, False
            self._status(f"drafting sentence {event.sentence_index + 1}")
        elif isinstance(event, DraftFinished):
            self._draft, self._searched = event, False
        elif isinstance(event, RetrievalStarted):
            self._show_query(event)
        elif isinstance(event, RetrievalFinished):
            self._show_found(event)
        elif isinstance(event, SentenceAccepted):
            self._show_accepted(event)
        elif isinstance(event, Finished):
            self._show_end(event)

    def _show_query(self, event: RetrievalStarted) -> None:
        if not event.is_initial:
            self._show_draft(event.kept)
        self._has_query = True
        note = "" if event.is_initial else source_note(event.query_source)
        if event.is_initial and event.filter:
            note = f"  where {filter_words(event.filter)}"
        for number, query in enumerate(event.queries):
            label = "query" if number == 0 else ""
            self._row(label, self._text((printable(query), "cyan"), (note, "dim")))
            note = ""
        self._status("searching")

    def _show_found(self, event: RetrievalFinished) -> None:
        self._passages = tuple(p for p in event.passages if p.num_tokens)
        self._searched = True
        if not self._passages:
            self._row("found", self._text(("no usable passage", "dim")))
        if event.is_initial:
            for passage in self._passages:
                self._row("found", self._headline(passage))
            self._rule()
        else:
            number = len(self._passages)
            self._status(f"writing sentence {event.sentence_index + 1} again with {number} "
                         f"passage{'s' * (number != 1)}")

    def _show_accepted(self, event: SentenceAccepted) -> None:
        text = printable(event.text)
        self._answer += text
        if event.source == "remainder":
            return
        if not self._has_query:
            self._show_draft(None)
        draft = "" if self._draft is None else self._draft.text
        if event.source == "regenerated":
            # Words of the question prove nothing: every passage about its subject has them.
            words = content_words([text]) - content_words([self._question])
            for passage in self._passages:
                self._show_passage(passage, words)
            supported = content_words(p.title + "\n" + p.text for p in self._passages)
            new = (words & supported) - content_words([draft])
            self._row("accepted", self._marked(_flat(text), new, "bold green"))
        elif event.unsupported_because is not None:
            because = event.unsupported_because.replace("_", " ")
            self._row("accepted", self._text((f"as drafted, unsupported: {because}", "yellow")))
        else:
            lowest = min(self._draft.probs, default=1.0) if self._draft else 1.0
            # A search that gives the passages already in view leaves nothing to write again.
            why = ", the search found the same passages as before" if self._searched else ""
            self._row("accepted", self._text(
                ("as drafted", "green"), (f", lowest confidence {lowest:.2f}{why}", "dim")))
        self._rule()

    def _show_end(self, event: Finished) -> None:
        if self._live is None:
            self._row("answer", self._text((printable(self._answer).strip(), "bold")))
            self._rule()
        if event.stop_reason not in ("eos", "max_sentences", "stop_string"):
            self._row("end", self._text((event.stop_reason.replace("_", " "), "dim")))

    def _show_draft(self, kept: tuple[bool, ...] | None) -> None:
        """The draft's row; `kept` are the tokens that stay in the query."""
        if self._draft is None:
            return
        draft = self._text()
        marks = kept if kept is not None and not self._is_live else None
        masked = False
        for at, token in enumerate(self._draft.tokens):
            word = _flat(printable(token), strip=False)
            word = word if draft.plain.strip("[") else word.lstrip()
            keep = kept is None or kept[at]
            if marks is not None and keep is masked and word:
                # "[" goes behind the space that opens a token, "]" before it.
                space = len(word) - len(word.lstrip())
                draft.append("]" + word[:space] if masked else word[:space] + "[")
                word, masked = word[space:], not masked
            draft.append(word, shade(self._draft.probs[at]) + ("" if keep else " strike"))
        draft.append("]" if masked else "")
        if self._draft.triggered and not self._is_live:
            draft.append(f"  ({why_looked_up(self._draft, self._theta)})", "dim")
        self._row("draft", draft)

    def _show_passage(self, passage: PassageTrace, words: frozenset[str]) -> None:
        text = printable(passage.text)
        used = content_words([text]) & words
        row = self._headline(passage)
        if len(used) >= _MIN_USED_WORDS:
            begin, end = excerpt(text, used, _EXCERPT_CHARS)
            row.append("\n… " if begin else "\n", "dim")
            row.append_text(self._marked(text[begin:end], used, "bold green", "dim"))
            row.append(" …" if end < len(text) else "", "dim")
        self._row("found", row)

    def _headline(self, passage: PassageTrace) -> Text:
        return self._text((f"{passage.score:.2f} ", "cyan"),
                          (printable(passage.title or passage.id), "italic"))

    def _marked(self, text: str, words: frozenset[str], style: str, rest: str = "") -> Text:
        marked = self._text((text, rest))
        for begin, end in used_spans(text, words):
            marked.stylize(f"not dim {style}", begin, end)
        return marked

    def _text(self, *parts: tuple[str, str]) -> Text:
        from rich.text import Text

        return Text.assemble(*parts)

    def _row(self, label: str, content: Text) -> None:
        """A label and text beside it, wrapped; no blanks at the ends of lines."""
        from rich.text import Text

        indent = _LABEL_WIDTH + 1
        label_style = "bold" if label == "accepted" else "dim"
        lines = content.wrap(self._console, max(self._console.width - indent, 20))
        for number, line in enumerate(lines):
            head = (f"{label if number == 0 else '':<{indent}}", label_style)
            whole = Text.assemble(head, line)
            whole.rstrip()
            self._console.print(whole, soft_wrap=True)

    def _rule(self) -> None:
        self._console.print()

    def _status(self, text: str) -> None:
        if self._live is not None:
            self._live.update(self._panel(text), refresh=True)

    def _panel(self, status: str | None) -> RenderableType:
        """The answer so far, with what is going on below it."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.spinner import Spinner

        body = self._text((printable(self._answer).strip() or "…", ""))
        if status is not None:
            # What does not fit on the screen cannot be redrawn: the end is what grows.
            lines = body.wrap(self._console, max(self._console.width - 4, 10))
            body = self._text(("\n", "")).join(lines[-max(self._console.height - 6, 3):])
        title = "answer" if status is None else "answer so far"
        panel = Panel(body, title=title, title_align="left", border_style="green")
        if status is None:
            return panel
        return Group(panel, Spinner("dots", self._text((" " + status, "dim"))))


def _flat(text: str, *, strip: bool = True) -> str:
    """A sentence on one line."""
    flat = text.replace("\n", " ")
    return flat.strip() if strip else flat
