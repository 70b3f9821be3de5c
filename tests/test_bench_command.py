"""``flarecore bench`` on a tiny model, the peers behind it, tables and the page of results."""

import dataclasses
import json
import sys

import numpy as np
import pytest
from helpers import TinyLlama, random_ids, tiny_llama_path

from flarecore.bench import aims, machine, session, tables
from flarecore.bench.harness import Quantiles
from flarecore.bench.machine import Machine
from flarecore.bench.peers import PEERS, make_format, open_peer, open_peers, parse_peers
from flarecore.bench.proofs import prove_close
from flarecore.bench.results_page import render_page
from flarecore.bench.rows import Report, Row
from flarecore.bench.runner import FlareRunner
from flarecore.bench.suite import BENCHMARKS
from flarecore.cli.main import main
from flarecore.errors import ConfigError, UnsupportedError
from flarecore.model import Model

TINY = TinyLlama(tensor_type="Q4_1", context_length=512)
SMALL = ["--contexts", "40", "--sequences", "1,2", "--rows", "1,3", "--tokens", "4",
         "--rounds", "2", "--threads", "1", "--peers", "none"]


@pytest.fixture(autouse=True)
def small_memory(monkeypatch):
    monkeypatch.setattr(machine, "_LARGE_BYTES", 1 << 20)


def bench(capsys, *arguments):
    """Exit code, rows and what was written to standard error."""
    code = main(["bench", arguments[0], "--model", str(tiny_llama_path(TINY)), "--json",
                 *arguments[1:]])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def check_row(row):
    assert row["machine"]["isa"] and row["machine"]["threads"] == 1 and row["machine"]["date"]
    assert row["machine"]["versions"]["flarecore"] and row["machine"]["commit"]
    assert row["model_format"] == "Q4_1" and row["rounds"] == 2
    seconds = row["seconds"]
    assert 0 < seconds["p20"] <= seconds["median"] <= seconds["p80"]


def test_decode_rows(capsys):
    code, rows, _ = bench(capsys, "decode", *SMALL)
    assert code == 0
    assert [(row["case"], row["params"]["rows"]) for row in rows] == [
        ("context 40, 1 sequence", 1), ("context 40, 1 row verified", 1),
        ("context 40, 3 rows verified", 3), ("context 40, 2 sequences", 2)]
    for row in rows:
        check_row(row)
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / row["seconds"]["median"])
        assert row["memory_share"] == pytest.approx(
            row["bytes_read"] / row["seconds"]["median"] / row["memory_bytes_per_s"])
    proofs = " ".join(rows[0]["proofs"])
    assert "8 greedy tokens equal" in proofs and "flarecore int8" in proofs
    assert rows[2]["values"]["cost_of_one_row"] > 0
    assert rows[3]["values"]["tokens_per_s_of_one"] > 0


def test_transformers_is_a_peer(capsys):
    code, rows, _ = bench(capsys, "decode", *SMALL[:-1], "transformers")
    assert code == 0
    own, peer = rows[:2]
    assert (own["engine"], peer["engine"]) == ("flarecore int8", "transformers float32")
    ratio = own["ratios"]["transformers float32"]
    assert ratio["median"] == pytest.approx(peer["values"]["flarecore_is_faster"])
    assert any("transformers float32: 63" in proof for proof in own["proofs"])


def test_busy_prefill_load_sampling_and_quality_rows(capsys, tmp_path):
    common = ["--rounds", "2", "--threads", "1", "--peers", "none"]
    (busy,) = bench(capsys, "decode", "--busy", *SMALL)[1]
    check_row(busy)
    assert busy["values"]["share_of_quiet_speed"] > 0
    (prefill,) = bench(capsys, "prefill", "--sizes", "70,600", *common)[1]
    check_row(prefill)
    assert prefill["tokens"] == 70 and "do not fit" in prefill["notes"][0]
    (load,) = bench(capsys, "load", *common)[1]
    check_row(load)
    values = load["values"]
    total = values["import_s"] + values["open_s"] + values["first_token_s"]
    assert total == pytest.approx(load["seconds"]["median"], rel=0.5)
    assert 1e6 < values["peak_rss_bytes"] < 1e9
    sampled = bench(capsys, "sampling", "--vocab-sizes", "1500", *common)[1]
    assert [row["params"]["vocab_size"] for row in sampled] == [271] * 3 + [1500] * 3
    assert "share_of_step" not in sampled[0]["values"]
    assert "share_of_step" in sampled[1]["values"]
    text = tmp_path / "text.jsonl"
    text.write_text('{"title": "One", "text": "A text of some words. "}\n' * 40)
    quality = bench(capsys, "quality", "--text", str(text), "--window", "64", "--max-tokens",
                    "640", "--prompts", "2", *common)[1]
    exact, fast = (row["values"] for row in quality)
    assert exact["loss"] == 0.0 and exact["equal_greedy_given"] == 1.0
    assert fast["perplexity"] == pytest.approx(exact["perplexity"] * (1 + fast["loss"]))
    assert quality[0]["params"] == {"windows": 19, "window": 64, "scored_tokens": 608}


def test_nothing_is_timed_when_the_engine_is_wrong(capsys, monkeypatch):
    class Shifted(FlareRunner):
        def score(self, token_ids, num_given):
            probs = super().score(token_ids, num_given)
            return np.roll(probs, 1) if self.compute == "int8" else probs

    monkeypatch.setattr(session, "FlareRunner", Shifted)
    code, rows, err = bench(capsys, "decode", *SMALL)
    assert code == 1 and rows == []
    assert "Nothing is timed" in err


def test_a_peer_that_is_another_model_is_left_out(capsys, monkeypatch):
    def open_wrong(names, path, threads):
        runner = FlareRunner(Model.load(str(tiny_llama_path(TinyLlama(
            tensor_type="Q4_1", seed=9))), threads=threads))
        runner.name = "impostor"
        return [runner], []

    monkeypatch.setattr(session, "open_peers", open_wrong)
    code, rows, _ = bench(capsys, "decode", *SMALL)
    assert code == 0
    assert {row["engine"] for row in rows} == {"flarecore int8"}
    assert any("impostor is left out" in note for note in rows[0]["notes"])


def test_a_missing_peer_is_said(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    code, rows, _ = bench(capsys, "prefill", "--sizes", "40", *SMALL[-6:-1], "llama")
    assert code == 0
    assert rows[0]["notes"] == [
        "not installed, so not shown: llama.cpp (pip install 'flarecore[bench]')"]


def test_what_is_missing_is_one_line_that_fits_the_benchmark(capsys, monkeypatch):
    for module in ("llama_cpp", "torch", "transformers", "gguf"):
        monkeypatch.setitem(sys.modules, module, None)
    common = [*SMALL[-6:-1], "all"]
    for what, names in (("load", "llama.cpp, transformers, float32 beside a reference"),
                        ("sampling", "float32 beside a reference")):
        code, rows, _ = bench(capsys, what, *common)
        assert code == 0
        (note,) = rows[0]["notes"]
        assert note.startswith(f"not installed, so not shown: {names} (pip install 'flarecore[")


def test_ours_is_shown_where_there_is_something_to_compare_with(capsys):
    with_peer = decode_rows(2, 0.9, 1.2)
    alone = dataclasses.replace(with_peer, rows=with_peer.rows[::2])
    for report, is_shown in ((with_peer, True), (alone, False)):
        page = tables.markdown(report)
        assert ("| ours |" in page) is is_shown and ("ours: times" in page) is is_shown
    assert "| of read |" in page


@pytest.mark.parametrize(("rounds", "words"), [
    ((3, 3), None), ((2, 2), "Hardly a median: 2 rounds."), ((1, 1), "Hardly a median: 1 round."),
    ((7, 1), "Hardly a median: llama.cpp Q4_1 (1 round).")])
def test_too_few_rounds_are_said(rounds, words):
    report = decode_rows(2, 0.9, 1.2)
    rows = [dataclasses.replace(row, rounds=count)
            for row, count in zip(report.rows, rounds, strict=False)]
    page = tables.markdown(dataclasses.replace(report, rows=rows))
    assert words in page if words else "Hardly" not in page


@pytest.mark.parametrize("arguments, message", [
    (["decode", "--peers", "vllm"], "unknown peer"), (["decode", "--rounds", "0"], "rounds"),
    (["decode", "--contexts", "1"], "contexts"), (["prefill", "--busy"], "--busy"),
    (["decode", "--write", "/nowhere/page.md"], "no directory"),
    (["quality", "--text", "/nowhere/text"], "--text /nowhere/text: No such file"),
    (["loop", "--data", "/nowhere"], "/nowhere: no such folder"),
    (["retrieval", "--data", "/"], "holds no queries.jsonl"),
])
def test_wrong_options(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(session, "Model", None)  # told before a model is opened
    assert main(["bench", *arguments, "--model", str(tiny_llama_path(TINY))]) == 2
    assert message in capsys.readouterr().err


# ---- peers ----


def test_names_of_peers():
    assert parse_peers("all") == PEERS
    assert parse_peers("none") == ()
    assert parse_peers("llama, transformers") == PEERS
    assert parse_peers("transformers,transformers,llama-f16") == ("transformers", "llama-f16")
    with pytest.raises(ConfigError, match="known: llama"):
        parse_peers("vllm")


def peer(name, spec=TINY):
    if name.startswith("llama"):
        pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: [bench]")
    return open_peer(name, tiny_llama_path(spec), 1)


@pytest.mark.parametrize("name", ["transformers", "llama"])
def test_peers_compute_what_their_interface_says(name):
    """A peer with an interface that does less or something else would be compared unfairly."""
    runner = peer(name)
    exact = FlareRunner(Model.load(str(tiny_llama_path(TINY)), threads=1), "float32")
    ids = random_ids(60)
    prove_close(runner, exact.score(ids, 1), ids, is_peer=True)
    assert runner.score(ids, 20) == pytest.approx(runner.score(ids, 1)[19:], rel=1e-3)
    contexts = [random_ids(30, seed=n) for n in range(3)]
    runner.set_contexts(contexts)
    runner.reset()
    together = runner.decode(8, 3)
    alone = []
    for context in contexts:
        runner.set_contexts([context])
        runner.reset()
        alone += runner.decode(8)
        runner.reset()
        assert runner.verify(alone[-1]) == alone[-1]
        runner.reset()
        assert runner.decode(8)[0] == alone[-1], "reset() does not take it back"
        assert runner.prefill(context) == alone[-1][0]
        assert runner.greedy_rows([*context, *alone[-1]], 30) == alone[-1]
    assert together == alone
    assert runner.weight_bytes > 0
    runner.close()


def test_formats_are_made_once(monkeypatch, tmp_path):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: [bench]")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tiny_llama_path(TINY)
    made = make_format(source, "F16", 1)
    assert made.is_relative_to(tmp_path) and made.stat().st_size > source.stat().st_size
    before = made.stat().st_mtime_ns
    assert make_format(source, "F16", 1) == made and made.stat().st_mtime_ns == before
    assert [p.name for p in made.parent.iterdir()] == [made.name]
    runners, notes = open_peers(["llama-f16"], source, 1)
    assert [r.name for r in runners] == ["llama.cpp F16"] and notes == []
    runners[0].close()


def test_a_format_that_cannot_be_made_leaves_nothing(monkeypatch, tmp_path):
    llama = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: [bench]")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(llama, "llama_model_quantize", lambda *_: 1)
    with pytest.raises(UnsupportedError, match="cannot make Q8_0"):
        make_format(tiny_llama_path(TINY), "Q8_0", 1)
    assert list(tmp_path.rglob("*.gguf")) == []


# ---- tables and pages ----

MACHINE = Machine("A processor with quite a long name @ 2.60GHz", "avx512", 2, 2, 480 << 20, 0.1,
                  25.3e9, {"flarecore": "0.1.0", "llama-cpp-python": "0.3.36"}, "abc1234+",
                  "2026-01-01T00:00:00+00:00")


def time(milliseconds):
    return Quantiles(*(value / 1e3 for value in milliseconds))


def decode_rows(speed, share, cost):
    """A decode of that many times llama.cpp's speed, and a verification of 4 rows."""
    ratio = {"llama.cpp Q4_1": Quantiles(speed, speed, speed)}
    step = time((4.025, 3.98, 4.21))
    own = Row("decode", "context 64, 1 sequence", "flarecore int8",
              {"context": 64, "sequences": 1, "rows": 1}, step, 7, 1,
              int(share * 25e9 * step.median), 25e9, ratio)
    llama = Row("decode", own.case, "llama.cpp Q4_1", own.params, time((10_940.1, 10_900, 11_205)),
                7, 1, 99_000_000, 25e9, values={"flarecore_is_faster": speed})
    rows = Row("decode", "context 64, 4 rows verified", "flarecore int8",
               {"context": 64, "sequences": 1, "rows": 4}, step, 7, 4, 99_000_000, 25e9,
               values={"cost_of_one_row": cost})
    return Report("decode", "smollm2-135m", "Q4_1", MACHINE, (own, llama, rows),
                  ("everything " * 12,), ("no transformers: not installed",))


def test_tables_fit_80_columns():
    import io

    from rich.console import Console

    for benchmark in BENCHMARKS:
        row = Row(benchmark, "some case", "transformers float32", {}, time((12345.6, 1e4, 2e4)), 7,
                  12, 10**9, 25e9, values={
                      "cost_of_one_row": 1.25, "flarecore_is_faster": 123.45,
                      "quiet_seconds": 12.3, "share_of_quiet_speed": 0.56,
                      "multiply_adds_per_s": 1.2e11, "import_s": 10.25, "open_s": 12.3,
                      "first_token_s": 10.1, "peak_rss_bytes": 2_044_000_000,
                      "anonymous_bytes": 1_044_000_000, "share_of_step": 0.0123,
                      "share_p80": 0.1, "perplexity": 12.345, "loss": 0.0123,
                      "loss_error": 0.001, "mean_probability_difference": 0.001,
                      "log_deviation": 0.0512,
                      "equal_greedy_given": 0.9, "equal_greedy_free": 0.5,
                      "seconds_per_token": 12.3456, "prefilled_per_token": 123.4,
                      "decoded_per_token": 11.02, "num_prefilled": 1837,
                      "answers_per_s": 0.123, "tokens_per_answer": 123.4,
                      "answers_per_s_of_in_turn": 1.234, "recall": 0.988})
        report = dataclasses.replace(decode_rows(2, 0.9, 1.2), benchmark=benchmark, rows=(row,))
        out = io.StringIO()
        tables.print_report(Console(file=out, width=80, color_system=None), report)
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= 80
        (shown,) = (line for line in lines if "transformers float32" in line)
        cells = [show(row) for _, show in tables.columns(benchmark, report.rows)]
        assert shown.split() == " ".join(filter(None, cells)).split(), "cut or wrapped"


def test_aims_are_met_and_missed():
    found = {aim.what: aim for aim in aims.aims([decode_rows(2.1, 0.79, 1.39)])}
    assert [aim.is_met for aim in found.values()] == [True, False, True]
    assert found["decode, context 64, of the memory bound"].got == "0.79"
    found = aims.aims([decode_rows(1.9, 0.81, 1.41)])
    assert [aim.is_met for aim in found] == [False, True, False]


def test_the_page_holds_rows_machine_date_and_notes():
    page = render_page([decode_rows(2.1, 0.79, 1.39)], "flarecore bench all")
    for text in ("2026-01-01", "abc1234+", "480 MB", "25.3 GB/s", "| context 64, 1 sequence | ",
                 "llama.cpp Q4_1 2.10× (2.10–2.10)", "not installed", "**missed**", "everything"):
        assert text in page, text
    widths = {line.count("|") for line in page.splitlines() if line.startswith("| context")}
    assert len(widths) == 1


def test_write_leaves_a_page(capsys, tmp_path):
    page = tmp_path / "RESULTS.md"
    bench(capsys, "decode", *SMALL, "--write", str(page))
    assert "flarecore int8" in page.read_text() and "`flarecore bench decode" in page.read_text()
