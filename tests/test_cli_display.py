"""The view of an answer: widths, colours, marks, and what ends a running command."""

import dataclasses
import io
import os
import pty
import re
import signal
import subprocess
import sys

import pytest
from rich.cells import cell_len

from flarecore.cli.display import AnswerView, make_console, print_legend
from flarecore.cli.numbers import comparison, print_numbers, total
from flarecore.cli.progress import StageProgress
from flarecore.cli.reasons import source_note, why_looked_up
from flarecore.events import (
    DraftFinished,
    DraftStarted,
    Finished,
    RetrievalFinished,
    RetrievalStarted,
    SentenceAccepted,
)
from flarecore.trace import FlareStats, PassageTrace, RuleTrace

ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|9[0-7])(?:;[0-9;]*)?m")

ENGLISH = PassageTrace(
    "p1", "Ilse Marwede: career", "Ilse Marwede retired in 1993 and died in Husum on 21 November "
    "2008. " + "She is remembered for a green glass that stays clear. " * 5, 0.64, 60)
CHINESE = PassageTrace(
    "p2", "2026年差旅制度：中国境内酒店",
    "按照2026年差旅制度，中国境内酒店每晚不超过680元；北京、上海和深圳每晚不超过850元。" * 4,
    0.5, 90)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")


def draft(tokens, probs, index=0, triggered=True):
    return DraftFinished(index, "".join(tokens), tuple(range(len(tokens))), tuple(tokens),
                         tuple(probs), tuple(p < 0.6 for p in probs), triggered, None,
                         "sentence", 1.0)


def answer(passages=(ENGLISH,)):
    """Events with a corrected draft, a confident one and one for which nothing was found."""
    tokens = ("She", " died", " on", " 20", " January", " 2018", ".")
    probs = (0.45, 0.5, 0.3, 0.1, 0.3, 0.2, 0.9)
    kept = (True, True, False, False, False, False, True)
    ids = tuple(p.id for p in passages)
    stats = FlareStats(num_drafts=3, num_triggers=2, num_prefilled=100, num_reused=250)
    text = "She died on 21 November 2008. It is so. 每晚不超过850元。"
    return [
        RetrievalStarted(0, True, ("Who?",), "question", None, {"lang": "en"}, 2),
        RetrievalFinished(0, True, ("Who?",), passages, 1.0),
        DraftStarted(0, 0, ids),
        draft(tokens, probs),
        RetrievalStarted(0, False, ("She died .",), "mask", kept, None, 2),
        RetrievalFinished(0, False, ("She died .",), passages, 1.0),
        SentenceAccepted(0, "She died on 21 November 2008.", (1, 2), "regenerated", None, ids),
        DraftStarted(1, 7, ()),
        draft((" It", " is", " so", "."), (0.9, 0.95, 0.99, 0.9), 1, triggered=False),
        SentenceAccepted(1, " It is so.", (1, 2), "draft", None, ()),
        DraftStarted(2, 11, ()),
        draft((" 每晚", "不超过", "850", "元。"), (0.9, 0.9, 0.1, 0.9), 2),
        RetrievalStarted(2, False, ("每晚不超过元。",), "mask", (True, True, False, True), None, 2),
        RetrievalFinished(2, False, ("每晚不超过元。",), (), 1.0),
        SentenceAccepted(2, " 每晚不超过850元。", (3,), "draft", "no_evidence", ()),
        Finished(text, "max_sentences", stats),
    ]


def show(file, events=None, question="Who was Ilse Marwede, 是谁?"):
    console = make_console(file)
    print_legend(console, theta=0.6, beta=0.4, remark="a model, an index in /a/rather/long/path")
    with AnswerView(console, question, theta=0.6, beta=0.4) as view:
        for event in answer() if events is None else events:
            view.handle(event)
    print_numbers(console, FlareStats(num_prefilled=100, num_reused=250, num_drafts=3))
    return file.getvalue()


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_lines_fit_the_width(kind, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = ESCAPE.sub("", show(kind(), answer((ENGLISH, CHINESE)))).replace("\r", "\n")
    widths = [cell_len(line) for line in text.splitlines()]
    assert max(widths) <= columns
    assert max(widths) > columns // 2  # it uses the width it has


def test_a_pipe_gets_plain_text_with_marks():
    text = show(io.StringIO())
    assert "\x1b" not in text
    assert "She died [on 20 January 2018].  (lowest confidence 0.10 < 0.60)" in text
    assert "accepted She died on 21 November 2008." in text
    assert "accepted as drafted, lowest confidence 0.90" in text
    assert "accepted as drafted, unsupported: no evidence" in text
    assert "no usable passage" in text
    assert "where lang = en" in text
    rows = {line.split()[0] for line in text.splitlines() if re.match(r"[a-z]", line)}
    assert {"draft", "query", "found", "accepted", "answer"} <= rows
    flat = " ".join(text.split())
    assert "answer She died on 21 November 2008. It is so. 每晚不超过850元。" in flat
    assert all(line == line.rstrip() for line in text.split("drafts that were")[0].splitlines()[3:])


def test_a_search_that_changes_nothing_is_said():
    ids = (ENGLISH.id,)
    text = show(io.StringIO(), [
        DraftStarted(0, 0, ids), draft(("It", " is", "."), (0.9, 0.2, 0.9)),
        RetrievalStarted(0, False, ("It .",), "mask", (True, False, True), None, 2),
        RetrievalFinished(0, False, ("It .",), (ENGLISH,), 1.0),
        SentenceAccepted(0, "It is.", (1,), "draft", None, ids),
        DraftStarted(1, 3, ids), draft((" So",), (0.9,), 1, triggered=False),
        SentenceAccepted(1, " So", (1,), "draft", None, ids)])
    flat = " ".join(text.split())
    assert "lowest confidence 0.20, the search found the same passages as before" in flat
    assert flat.count("the same passages") == 1


def test_a_terminal_gets_colours_and_a_growing_answer():
    text = show(Terminal())
    assert COLOUR.search(text)
    assert "\x1b[9" in text or ";9" in text  # struck through
    frames = ESCAPE.sub("", text)
    assert "drafting sentence 2" in frames
    assert "answer so far" in frames and "answer ─" in frames
    assert "[on" not in frames


def test_confidence_decides_the_colour():
    shades = {}
    for prob in (0.05, 0.3, 0.5, 0.7, 0.95):
        file = Terminal()
        with AnswerView(make_console(file), "q", theta=0.6, beta=0.0) as view:
            view.handle(draft(("WORD",), (prob,), triggered=False))
            view.handle(SentenceAccepted(0, "WORD", (1,), "draft", None, ()))
        shades[prob] = re.search(r"((?:\x1b\[[0-9;]*m)+)WORD", file.getvalue())[1]
    assert len(set(shades.values())) == 5


def test_no_color_keeps_the_strokes(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = show(Terminal())
    assert not COLOUR.search(text)
    assert "\x1b[9m" in text


def test_a_dumb_terminal_is_a_pipe(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    text = show(Terminal())
    assert "\x1b" not in text and "[on 20 January 2018]" in text


def test_hostile_text_cannot_reach_the_terminal():
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m"
    passage = PassageTrace("p", evil + "title", evil + "21 November 2008 body", 0.5, 3)
    events = [
        RetrievalStarted(0, True, (evil + "query",), "question", None, {"k": evil}, 1),
        RetrievalFinished(0, True, ("q",), (passage,), 1.0),
        draft((evil + "draft",), (0.1,)),
        RetrievalStarted(0, False, (evil,), "mask", (False,), None, 1),
        RetrievalFinished(0, False, ("q",), (passage,), 1.0),
        SentenceAccepted(0, evil + "21 November 2008 accepted", (1,), "regenerated", None, ("p",)),
        Finished("", "eos", FlareStats()),
    ]
    for file in (io.StringIO(), Terminal()):
        text = show(file, events, question=evil + "?")
        for part in ("\x1b]", "\x1b[2J\x9b", "\x07", "\x9b"):
            assert part not in text


def test_long_answers_keep_their_end_on_the_screen(monkeypatch):
    monkeypatch.setenv("LINES", "10")
    events = [SentenceAccepted(i, f"Sentence number {i} of many. " * 4, (1,), "remainder", None, ())
              for i in range(12)] + [DraftStarted(12, 1, ())]
    file = Terminal()
    view = AnswerView(make_console(file), "q", theta=0.6, beta=0.4)
    with view:
        for event in events:
            view.handle(event)
        panel = view._console.render_lines(view._panel("drafting"), pad=False)
    assert len(panel) <= 10
    assert "number 11" in "".join(s.text for line in panel for s in line)


def test_numbers():
    stats = [FlareStats(num_prefilled=30, num_reused=70, draft_ms=1.5),
             FlareStats(num_prefilled=20, num_reused=80, draft_ms=2.0)]
    both = total(stats)
    assert (both.num_prefilled, both.num_reused, both.draft_ms) == (50, 150, 3.5)
    assert "200 tokens instead of 50: 4.0 times as many" in comparison(both)
    assert comparison(FlareStats()) == "Nothing was prefilled."
    assert "10 tokens instead of 0." in comparison(FlareStats(num_reused=10))


def test_progress_in_a_pipe_is_a_few_lines():
    file = io.StringIO()
    with StageProgress(make_console(file)) as progress:
        for done in range(1, 1001):
            progress("embed", done, 1000)
    lines = file.getvalue().splitlines()
    assert 2 <= len(lines) <= 11
    assert lines[-1] == "embedding passages: 1000 of 1000"


COMMAND = [sys.executable, "-m", "flarecore", "demo", "--json"]


@pytest.fixture
def quiet_environment(tmp_path_factory):
    return os.environ | {"XDG_CACHE_HOME": str(tmp_path_factory.getbasetemp() / "cache")}


@pytest.mark.models
def test_ctrl_c_stops_a_running_demo(quiet_environment):
    # A pipe that holds less than the demo writes: it cannot end before the signal comes.
    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=quiet_environment, pipesize=4096)
    assert process.stdout.readline().startswith("{")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err and err.endswith("flarecore: stopped\n")
    assert '"Finished"' not in out or out.count('"Finished"') < 3


@pytest.mark.models
def test_a_reader_that_goes_away_is_no_error(quiet_environment):
    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=quiet_environment)
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert "Traceback" not in err and "Broken" not in err and "Exception" not in err


@pytest.mark.models
def test_ctrl_c_in_a_real_terminal(quiet_environment):
    """A pseudo-terminal turns the byte of Ctrl-C into the signal, as a person's terminal does."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, [sys.executable, "-m", "flarecore", "demo"],
                  quiet_environment | {"TERM": "xterm-256color"})
    seen = b""
    while b"drafting sentence" not in seen:
        seen += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    try:
        while data := os.read(terminal, 4096):
            seen += data
    except OSError:  # how Linux says that the other end is closed
        pass
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert b"Traceback" not in seen and b"flarecore: stopped" in seen
    assert b"\x1b[?25h" in seen  # the cursor is shown again


def test_why_a_draft_is_looked_up():
    base = draft((" x",), (0.3,))
    for rule, words in (
            (None, "lowest confidence 0.30 < 0.60"),
            (RuleTrace("must_retrieve", "term", "AB", "\x1bab"), "must retrieve: "),
            (RuleTrace("never_retrieve", "callable", "is_greeting", ""),
             "never retrieve: is_greeting")):
        said = why_looked_up(dataclasses.replace(base, rule=rule), 0.6)
        assert said.startswith(words) and "\x1b" not in said
    assert why_looked_up(draft((" x",), (0.9,)), 0.6) == "asks for evidence"
    assert source_note("other") == "  (other)" and source_note("mask") == ""
