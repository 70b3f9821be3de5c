"""``flarecore trace``: what it reads, what it writes, and what it says when it cannot."""

from __future__ import annotations

import io
import json
import os
import re
import sys

import pytest
from helpers_trace import example_trace, parse

from flarecore.cli import main as cli
from flarecore.cli.trace_output import save_traces
from flarecore.errors import ConfigError
from flarecore.events import DraftStarted
from flarecore.trace_file import read_traces

EVENT = DraftStarted(0, 0, ()).to_json()


@pytest.fixture(scope="module")
def trace():
    return example_trace()


@pytest.fixture(autouse=True)
def no_debug(monkeypatch):
    monkeypatch.delenv("FLARECORE_DEBUG", raising=False)


def test_one_trace_several_and_those_among_other_output_are_read(trace):
    line, indented = trace.to_json(), trace.to_json(indent=2)
    wrapped = json.dumps({"question": "q", "f1": 0.5, "trace": trace.to_dict()})
    for text, number in ((line, 1), (indented, 1), (f"\ufeff{line}\r\n\r\n{line}\n", 2),
                         (f"{indented}\n{indented}", 2), (f"{EVENT}\n{EVENT}\n{line}\n", 1),
                         (f"{wrapped}\n{line}", 2)):
        assert read_traces(text.encode(), "x.json") == [trace] * number


@pytest.mark.parametrize(("change", "message"), [
    (lambda line: "", "x: is empty"),
    (lambda line: f"{EVENT}\n{EVENT}", "x: holds 2 events, but no trace; .*--trace FILE"),
    (lambda line: f"{line}\n\n{line[:-9]}", r"x, line 3, column \d+: not valid JSON: .*cut off"),
    (lambda line: f"{line}\n[1]", "x, line 2: neither a trace nor an event, got a JSON list"),
    (lambda line: '{"a": 1, "b": 2}', "line 1: .* an object with the fields 'a', 'b'"),
    (lambda line: "{}", "got an empty object"),
    (lambda line: line.replace('"flarecore_trace": 1', '"flarecore_trace": 9'), "must be 1, got 9"),
    (lambda line: f"{line}\n" + line.replace('"index": 0', '"index": "0"'),
     r"x, line 2: trace.sentences\[0\].index must be of type int"),
    (lambda line: line.replace('"draft_ms": 4500.0', f'"draft_ms": {10**400}'), "finite number"),
    (lambda line: "[" * 100_000, "x, line 1: nested too deeply|not valid JSON"),
    (lambda line: "1" * 9999, "x, line 1: "),
])
def test_what_is_no_trace_is_refused_with_its_place(trace, change, message):
    with pytest.raises(ConfigError, match=message):
        read_traces(change(trace.to_json()).encode(), "x")


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(ConfigError, match="x: not UTF-8 at byte 2"):
        read_traces(b"{}\xff", "x")


def test_the_command_writes_the_page(trace, tmp_path, capsys):
    source, page = tmp_path / "answer.json", tmp_path / "page.html"
    source.write_text(trace.to_json(), encoding="utf-8")
    assert cli.main(["trace", str(source), "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}: 1 answer, 4 sentences\n"
    assert page.read_text(encoding="utf-8") == trace.to_html()
    assert parse(trace.to_html()).one("h1").text == trace.question
    assert cli.main(["trace", str(source)]) == 0
    assert (tmp_path / "answer.html").read_bytes() == page.read_bytes()


def test_it_reads_and_writes_standard_streams(trace, monkeypatch, capsysbinary):
    text = f"{EVENT}\n{trace.to_json()}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert cli.main(["trace", "-", "-o", "-"]) == 0
    assert capsysbinary.readouterr().out.decode() == trace.to_html()


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["none.json", "-o", "page.html"], 1, "No such file"),
    (["cut.json", "-o", "page.html"], 2, "cut.json, line 1, column "),
    (["good.json", "-o", "good.json"], 2, "would replace the trace good.json"),
    (["good.json", "-o", "link.json"], 2, "would replace the trace"),
    (["good.html"], 2, "would replace the trace good.html"),
    (["good.json", "-o", "none/page.html"], 1, "No such file.*none/page.html"),
    (["good.json", "-o", "folder"], 1, "[Dd]irectory"),
    (["-"], 2, "-o PAGE is needed"),
])
def test_a_failure_says_why_and_writes_nothing(
        trace, tmp_path, monkeypatch, capsys, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    for name in ("good.json", "good.html"):
        (tmp_path / name).write_text(trace.to_json(), encoding="utf-8")
    (tmp_path / "cut.json").write_text(trace.to_json()[:200], encoding="utf-8")
    (tmp_path / "folder").mkdir()
    os.symlink("good.json", tmp_path / "link.json")
    before = {p.name: p.is_file() and p.read_bytes() for p in tmp_path.iterdir()}
    assert cli.main(["trace", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("flarecore: error: ") and "Traceback" not in err
    assert re.search(message, err), err
    assert {p.name: p.is_file() and p.read_bytes() for p in tmp_path.iterdir()} == before


def test_traces_are_saved_in_the_form_of_the_file_name(trace, tmp_path, capsys):
    for name, traces in (("one.json", [trace]), ("many.jsonl", [trace, trace])):
        save_traces(str(tmp_path / name), traces)
        assert read_traces((tmp_path / name).read_bytes(), name) == traces
    assert (tmp_path / "many.jsonl").read_text(encoding="utf-8").count("\n") == 2
    save_traces(str(tmp_path / "page.HTML"), [trace])
    assert (tmp_path / "page.HTML").read_text(encoding="utf-8") == trace.to_html()
    save_traces("-", [trace])
    assert read_traces(capsys.readouterr().out.encode(), "-") == [trace]


@pytest.mark.parametrize(("arguments", "message"), [
    (["--trace", "-"], "needs --json"), (["--trace", "none/x.json"], "does not exist"),
    (["--trace", "."], "is a folder")])
def test_a_bad_place_for_the_trace_is_refused_before_any_work(
        tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["generate", "Why?", "--model", "none", "--no-retrieval", *arguments]) == 2
    assert message in capsys.readouterr().err
