"""``flarecore eval`` from end to end on a tiny random model and three questions of our own."""

import json
from pathlib import Path

import pytest
from helpers import TinyLlama, tiny_llama_path
from helpers_eval import write_data

import flarecore.eval.answering as answering
from flarecore.cli.main import main
from flarecore.eval.answer_log import read_records
from flarecore.methods import METHODS

pytest.importorskip("bm25s")
TINY = TinyLlama(context_length=2048)


@pytest.fixture
def argv(tmp_path):
    data = write_data(tmp_path / "data")
    return ["eval", "--data", str(data), "--model", str(tiny_llama_path(TINY)),
            "-o", str(tmp_path / "out"), "--num-exemplars", "1", "--set", "max_new_tokens=12",
            "--set", "max_draft_tokens=6", "--set", "temperature=1", "--set", "seed=3"]


def answers(folder: Path, name: str):
    return {r.id: r for r in read_records(folder / "answers" / f"{name}.jsonl")[1]}


def untimed(record):
    """What must not depend on when and beside what an answer was written."""
    sentences = [(s["draft"]["token_ids"], s["draft"]["probs"], s["text"], s["outcome"],
                  [[p["id"] for p in r["passages"]] for r in s["retrievals"]])
                 for s in record.trace["sentences"]]
    return record.text, record.answer, record.f1, record.gold_recall, sentences


def test_three_methods_and_a_report(argv, tmp_path, capsys):
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("no-retrieval", "single-retrieval", "flare", "EM"))
    flare, alone = answers(tmp_path / "out", "flare"), answers(tmp_path / "out", "no-retrieval")
    assert list(flare) == ["q1", "q2", "q3"] == list(alone)
    # The retriever was used, and its index kept; the model alone used none.
    assert all(r.gold_recall is not None and r.trace["stats"]["num_retrievals"] > 1
               for r in flare.values())
    assert all(r.gold_recall is None for r in alone.values())
    assert len(list((tmp_path / "out" / "index").iterdir())) == 1
    # The exemplars are the head of every prompt, and evidence comes after them.
    settings, _ = read_records(tmp_path / "out" / "answers" / "flare.jsonl")
    assert "Seven Samurai" in settings["config"]["template"]["head"]
    reused = [r.trace["sentences"][0]["draft"]["num_reused"] for r in flare.values()]
    assert all(r.wall_ms > 0 and r.num_parallel == 1 for r in flare.values())
    assert min(reused[1:]) > 100  # of the head, from the question before
    assert (tmp_path / "out" / "report.html").exists()
    assert main(["eval", "report", "-o", str(tmp_path / "out"), "--baseline", "flare"]) == 0


def test_every_method_answers(argv, tmp_path, capsys):
    # Methods that fix options of their own are made twice: to be checked, and on their engine.
    assert main([*argv, "--limit", "1", "--method", ",".join(METHODS)]) == 0
    for name in METHODS:
        (record,) = answers(tmp_path / "out", name).values()
        assert record.error is None and record.trace["method"] == name


def test_a_method_finds_nothing_of_another_in_the_cache(argv, tmp_path, capsys):
    alone, after = [*argv, "-o", str(tmp_path / "alone")], [*argv, "-o", str(tmp_path / "after")]
    assert main([*alone, "--method", "flare"]) == 0
    assert main([*after, "--method", "single-retrieval,flare"]) == 0
    counts = [[r.trace["stats"]["num_prefilled"] for r in answers(tmp_path / f, "flare").values()]
              for f in ("alone", "after")]
    assert counts[0] == counts[1]


def test_a_stopped_run_goes_on_and_ends_the_same(argv, tmp_path, capsys, monkeypatch):
    argv += ["--method", "flare"]
    whole = [*argv, "-o", str(tmp_path / "whole")]
    assert main(whole) == 0
    made, count = answering.make_record, []

    def stop_after_one(*args, **options):
        if count:
            raise KeyboardInterrupt
        count.append(1)
        return made(*args, **options)

    monkeypatch.setattr(answering, "make_record", stop_after_one)
    assert main(argv) == 130
    assert "goes on with the next question" in capsys.readouterr().err
    monkeypatch.undo()
    log = tmp_path / "out" / "answers" / "flare.jsonl"
    (first,) = answers(tmp_path / "out", "flare").values()
    log.write_bytes(log.read_bytes() + b'{"event": "answer", "id": "q2", "te')  # and a kill
    assert main(argv) == 0
    resumed, complete = (answers(tmp_path / name, "flare") for name in ("out", "whole"))
    assert resumed["q1"] == first
    assert {k: untimed(r) for k, r in resumed.items()} == \
        {k: untimed(r) for k, r in complete.items()}
    monkeypatch.setattr(answering, "make_record", None)  # nothing is left to answer
    assert main(argv) == 0


def test_answers_together_are_the_same_and_labelled(argv, tmp_path, capsys):
    assert main([*argv, "--method", "flare"]) == 0
    together = [*argv, "--method", "flare", "-o", str(tmp_path / "three"), "--parallel", "3"]
    assert main(together) == 0
    assert "s*" in capsys.readouterr().out
    one, three = (answers(tmp_path / name, "flare") for name in ("out", "three"))
    assert {k: untimed(r) for k, r in one.items()} == {k: untimed(r) for k, r in three.items()}
    assert {r.num_parallel for r in three.values()} == {3}


def test_other_settings_are_refused(argv, tmp_path, capsys):
    assert main([*argv, "--method", "flare", "--limit", "1"]) == 0
    before = (tmp_path / "out" / "answers" / "flare.jsonl").read_bytes()
    assert main([*argv, "--method", "flare", "--set", "theta=0.3"]) == 2
    assert "config.theta: was 0.8, is 0.3" in capsys.readouterr().err
    assert (tmp_path / "out" / "answers" / "flare.jsonl").read_bytes() == before
    # More questions are no other settings.
    assert main([*argv, "--method", "flare"]) == 0
    assert len(answers(tmp_path / "out", "flare")) == 3


def test_weights_quantised_otherwise_are_other_settings(argv, tmp_path, capsys):
    assert main([*argv, "--method", "no-retrieval", "--quantize", "q8"]) == 0
    for other in ([], ["--quantize", "q4"]):
        assert main([*argv, "--method", "no-retrieval", *other]) == 2
        assert 'model.quantize: was "q8"' in capsys.readouterr().err


def test_the_model_alone_needs_no_retriever(argv, tmp_path, capsys):
    alone = [*argv, "--method", "no-retrieval"]
    assert main(alone) == 0 and not (tmp_path / "out" / "index").exists()
    assert "Retriever: none." in (tmp_path / "out" / "report.md").read_text()
    # So another retriever is no other setting for it.
    assert main([*alone, "--retriever", "exact"]) == 0


def test_a_sweep(argv, tmp_path, capsys):
    assert main([*argv[:1], "sweep", *argv[1:], "--limit", "2", "--theta", "0,1",
                 "--beta", "0,0.4"]) == 0
    names = sorted(f.stem for f in (tmp_path / "out" / "answers").glob("*.jsonl"))
    assert names == ["flare_theta=0", "flare_theta=1_beta=0", "flare_theta=1_beta=0.4"]
    never, always = (answers(tmp_path / "out", name) for name in names[:2])
    assert all(r.trace["stats"]["num_triggers"] == 0 for r in never.values())
    assert all(r.trace["stats"]["num_triggers"] > 0 for r in always.values())
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["thetas"] == [0, 1]
    assert "| 1 |" in (tmp_path / "out" / "sweep.md").read_text()


@pytest.mark.parametrize(("more", "message"), [
    (["--method", "flair"], "did you mean 'flare'"),
    (["--set", "tehta=1"], "--set: unknown option 'tehta'; did you mean 'theta'"),
    (["--set", "theta=high"], "--set: theta: invalid float value: 'high'"),
    (["--set", "speculative=perhaps"], "--set: speculative must be true or false"),
    (["--method", "flare:tehta=1"], "--method flare:tehta=1: unknown option 'tehta'; did you mean"),
    (["--method", "flare:theta=high"], "--method flare:theta=high: theta: invalid float"),
    (["--method", "no-retrieval:theta=0.5"], "theta=0.5: theta does not apply"),
    (["--method", "previous-window:window_tokens=0"], "window_tokens must be"),
    (["--index", "i", "--retriever", "bm25"], "--index and --retriever exclude each other"),
    (["--threads", "0"], "--threads"),
    (["--kv-cache-mb", "0"], "--kv-cache-mb"),
    (["--method", "flare", "--baseline", "x"], "--baseline"),
    (["--theta", "0.5"], "eval sweep"),
    (["--parallel", "0"], "--parallel"),
    (["--limit", "0"], "--limit must be"),
    (["--exemplars", "nowhere.json"], "exemplars nowhere.json"),
])
def test_wrong_options_end_before_anything_is_read(
        argv, tmp_path, capsys, monkeypatch, more, message):
    for name in ("dataset.load_data", "retrievers.open_retriever"):
        monkeypatch.setattr(f"flarecore.eval.{name}", None)
    assert main([*argv, *more]) == 2
    err = capsys.readouterr().err
    assert message in err and "reading" not in err and "loading" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("more", "code", "message"), [
    (["--model", "nowhere.gguf"], 1, "nowhere.gguf"),
    (["--index", "nowhere.index"], 1, "nowhere.index: the index cannot be read"),
    (["--retriever", "exact", "--encoder", "nowhere/folder"], 1, "nowhere/folder"),
])
def test_missing_files_end_before_anything_is_read(
        argv, tmp_path, capsys, monkeypatch, more, code, message):
    monkeypatch.setattr("flarecore.eval.dataset.load_data", None)
    assert main([*argv, *more]) == code
    assert message in capsys.readouterr().err


def test_what_the_model_or_the_folder_refuses_ends_before_an_index_is_built(
        argv, tmp_path, capsys, monkeypatch):
    assert main([*argv, "--method", "flare"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("flarecore.eval.retrievers.open_retriever", None)
    assert main([*argv, "--prompt-style", "turns"]) == 2
    assert "chat template" in capsys.readouterr().err
    # The second method's answers were begun otherwise: the first is not begun.
    assert main([*argv, "--method", "single-retrieval,flare", "--retriever", "exact"]) == 2
    assert 'retriever: was "bm25", is "exact' in capsys.readouterr().err
    assert not (tmp_path / "out" / "answers" / "single-retrieval.jsonl").exists()


@pytest.mark.parametrize("kind", ["bm25", "hybrid"])
def test_an_index_that_was_made_before(argv, tmp_path, capsys, monkeypatch, kind):
    corpus, index = tmp_path / "data" / "corpus.jsonl", tmp_path / "kb.index"
    assert main(["index", str(corpus), "-o", str(index), "--retriever", kind]) == 0
    monkeypatch.setattr("flarecore.eval.retrievers.open_retriever", None)
    given = [*argv, "--method", "flare", "--index", str(index)]
    assert main(given) == 0
    assert all(r.gold_recall is not None for r in answers(tmp_path / "out", "flare").values())
    settings, _ = read_records(tmp_path / "out" / "answers" / "flare.jsonl")
    assert settings["retriever"].startswith(f"{kind}, index ")
    capsys.readouterr()
    corpus.write_text(corpus.read_text().replace("1871", "1872"))
    assert main([*given, "-o", str(tmp_path / "other")]) == 2
    assert "is no index of this corpus: it has 3 passages, the corpus 3, and passage 'p1'" in \
        capsys.readouterr().err


def test_a_failed_question_counts_as_wrong(argv, tmp_path, capsys):
    queries = tmp_path / "data" / "queries.jsonl"
    rows = [json.loads(line) for line in queries.read_text().splitlines()]
    rows[1]["question"] = "x! " * 1500
    queries.write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert main([*argv, "--method", "no-retrieval"]) == 0
    got = answers(tmp_path / "out", "no-retrieval")
    assert got["q2"].error.startswith("ContextOverflowError") and got["q2"].em == 0
    assert got["q1"].error is None and got["q3"].error is None
    assert "ended by an error" in (tmp_path / "out" / "report.md").read_text()
