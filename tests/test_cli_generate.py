"""``flarecore generate`` and ``demo`` in process, on real input."""

import dataclasses
import io
import json

import pytest
from helpers_cli import FAST, events_of, failure, index_biographies, run, use_private_cache

from flarecore.config import FlareConfig
from flarecore.events import Finished, RetrievalStarted, SentenceAccepted
from flarecore.trace import Trace

QUESTION = "Who was Cormac Tullagher?"


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    use_private_cache(tmp_path_factory, monkeypatch)


@pytest.fixture(scope="module")
def index_file(tmp_path_factory):
    return index_biographies(tmp_path_factory)


@pytest.mark.models
def test_generate_events_text_and_trace_agree(capsys, tmp_path, index_file):
    base = ["generate", "--model", "smollm2-135m", "--index", str(index_file), *FAST,
            "--scope", "Cormac Tullagher", "--filter", '{"lang": "en"}']
    trace_file = tmp_path / "trace.json"
    assert run([*base, "--json", "--trace", str(trace_file), QUESTION]) == 0
    events = events_of(capsys.readouterr().out)
    assert isinstance(events[-1], Finished)
    text = "".join(e.text for e in events if isinstance(e, SentenceAccepted))
    assert text == events[-1].text != ""
    first = next(e for e in events if isinstance(e, RetrievalStarted))
    assert first.is_initial and first.query.startswith("Cormac Tullagher ")
    assert first.filter == {"lang": "en"}
    trace = Trace.from_json(trace_file.read_text())
    assert trace.text == text and trace.question == QUESTION

    assert run([*base, QUESTION]) == 0
    assert capsys.readouterr().out == text + "\n"


@pytest.mark.models
def test_generate_tells_why_nothing_will_be_found(capsys, index_file):
    assert run(["generate", "--model", "smollm2-135m", "--index", str(index_file), *FAST,
                "--filter", '{"langauge": "en"}', "公司差旅政策：超过三千元须经理批准？"]) == 0
    err = capsys.readouterr().err
    assert "minilm-l6-v2' of the index does not know" in err
    assert err.count("no passage has a value in the field 'langauge'") == 1
    assert "the fields are id, title, " in err and "lang" in err


@pytest.mark.models
def test_generate_without_retrieval_from_standard_input(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("What is water?\n"))
    assert run(["generate", "--model", "smollm2-135m", "--no-retrieval", "--json", *FAST, "-"]) == 0
    events = events_of(capsys.readouterr().out)
    assert events[-1].stats.num_retrievals == 0
    assert not any(isinstance(e, RetrievalStarted) for e in events)


@pytest.mark.parametrize(("words", "options", "remedy"), [
    (9000, [], "shorten the prompt"),
    (9000, ["--overflow", "drop_oldest"], "shorten the prompt"),
    (10, ["--max-new-tokens", "9000"],
     "shorten the prompt or lower --max-new-tokens, or use --overflow drop_oldest")])
def test_a_prompt_that_is_too_long_names_what_can_help(words, options, remedy, capsys):
    code, err = failure(["generate", "--model", "smollm2-135m", "--no-retrieval", *options,
                         "word " * words], capsys)
    assert code == 1 and "hint:" not in err and err.endswith(f"; {remedy}\n")


@pytest.mark.models
@pytest.mark.parametrize(("options", "stop_reason", "message"), [
    (["--deadline-ms", "0.001"], "deadline", "--deadline-ms 0.001 ended the answer after 0 sent"),
    (["--max-new-tokens", "5"], "max_new_tokens", "--max-new-tokens 5 ended the answer after 1 s"),
    (["--max-sentences", "1", "--max-retrievals", "1", "--theta", "1", "--max-new-tokens", "99"],
     "max_sentences", "1 of 1 sentences asked for a search that --max-retrievals 1 forbade"),
])
def test_what_cut_an_answer_is_said(options, stop_reason, message, capsys, index_file):
    argv = ["generate", "--model", "smollm2-135m", "--index", str(index_file), *options, QUESTION]
    assert run([*argv, "--json"]) == 0
    assert events_of(capsys.readouterr().out)[-1].stop_reason == stop_reason
    assert run(argv) == 0
    assert message in " ".join(capsys.readouterr().err.split())


def test_reasons_that_end_an_answer_are_known():
    from flarecore.cli.generate import _cut_by

    config = FlareConfig(max_sentences=3)
    cut = {"max_sentences", "max_new_tokens", "context_length", "deadline", "no_evidence",
           "no_progress"}
    told = {reason for reason in (*cut, "eos", "stop_string", "final_answer")
            if _cut_by(reason, dataclasses.replace(config, deadline_ms=50)) is not None}
    assert told == cut


@pytest.mark.models
def test_generate_watch(capsys, index_file):
    assert run(["generate", "--model", "smollm2-135m", "--index", str(index_file), *FAST,
                "--watch", QUESTION]) == 0
    out = capsys.readouterr().out
    assert f"? {QUESTION}" in out
    assert "tokens reused" in out and "A loop that prefills its whole prompt" in out


@pytest.mark.models
def test_demo_events_are_those_of_the_view(capsys):
    base = ["demo", "--question", QUESTION, "--scope", "Cormac Tullagher", "--max-sentences", "2"]
    assert run([*base, "--json"]) == 0
    events = events_of(capsys.readouterr().out)
    assert run(base) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert " ".join(events[-1].text.split()) in shown
    assert any(e.stats.num_triggers for e in events if isinstance(e, Finished))


@pytest.mark.models
def test_demo_asks_all_questions_and_placement_is_passed_on(capsys):
    assert run(["demo", "--json", "--max-sentences", "1", "--placement", "boundary"]) == 0
    events = events_of(capsys.readouterr().out)
    assert sum(isinstance(e, Finished) for e in events) == 3


@pytest.mark.models
def test_generate_keeps_passages_in_a_file(capsys, index_file, tmp_path):
    file, trace = tmp_path / "bios.passages", tmp_path / "trace.json"
    base = ["generate", "--model", "smollm2-135m", "--index", str(index_file), *FAST,
            "--placement", "parallel", "--passages", str(file), "--trace", str(trace), QUESTION]
    answers, encoded = [], []
    for _ in range(2):
        assert run(base) == 0
        out, err = capsys.readouterr()
        assert "parallel is an approximation" in err
        answers.append(out)
        found = Trace.from_json(trace.read_text(encoding="utf-8"))
        assert found.is_approximate
        encoded.append(found.stats.num_encoded)
    assert answers[0] == answers[1]
    assert encoded[0] > 0 == encoded[1]
    file.write_bytes(b"no passages")
    assert run(base) == 1
    err = capsys.readouterr().err
    assert "passage file" in err and "delete the file of passages" in err
    assert run(["generate", "--model", "m", "--no-retrieval", "--passages", "f", "q"]) == 2
    assert "--placement parallel" in capsys.readouterr().err


@pytest.mark.models
def test_json_lines_are_one_object_each(capsys, index_file):
    assert run(["generate", "--model", "smollm2-135m", "--index", str(index_file), "--json",
                *FAST, "--theta", "0", QUESTION]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    kinds = [json.loads(line)["event"] for line in lines]
    assert kinds[0] == "RetrievalStarted" and kinds[-1] == "Finished"


def test_methods_on_the_command_line(index_file, capsys):
    from flarecore.cli.generate import METHOD_NAMES
    from flarecore.methods import METHODS

    assert set(METHOD_NAMES) == set(METHODS)
    base = ["generate", "--model", "smollm2-135m", *FAST, QUESTION, "--json"]
    with_index = [*base, "--index", str(index_file)]
    assert run([*with_index, "--method", "previous-window", "--max-new-tokens", "12",
                "--method-option", "window_tokens=4"]) == 2  # max_sentences does not apply
    assert "--max-sentences does not apply" in capsys.readouterr().err
    assert run([*with_index, "--method", "previous-sentence", "--max-sentences", "2"]) == 0
    events = events_of(capsys.readouterr().out)
    started = [e for e in events if isinstance(e, RetrievalStarted)]
    assert started[0].query_source == "question"
    assert {e.query_source for e in started[1:]} <= {"previous_sentence"}
    assert run([*base, "--method", "no-retrieval", "--preset", "paper"]) == 0
    assert not [e for e in events_of(capsys.readouterr().out) if isinstance(e, RetrievalStarted)]
    assert run([*base, "--method", "no-retrieval", "--preset", "paper", "--theta", "0.5"]) == 2
    assert "--theta does not apply" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "message"), [
    (["--method", "fly", "--no-retrieval"], "invalid choice: 'fly'"),
    (["--method", "no-retrieval", "--index", "x"], "--index and --method no-retrieval exclude"),
    (["--method-option", "window_tokens", "--no-retrieval"], "must be NAME=VALUE"),
    (["--method-option", "clock=1", "--no-retrieval"], "must be NAME=VALUE"),
    (["--method-option", "engine=1", "--no-retrieval"], "unknown option 'engine'"),
])
def test_wrong_method_arguments(argv, message, capsys):
    code, err = failure(["generate", "--model", "smollm2-135m", "q", *argv], capsys)
    assert code == 2 and message in err
