"""Records from traces, classes of failures, summaries and what reports show."""

import dataclasses
import re

import pytest
from helpers_eval import question, record

from flarecore.errors import ConfigError, RetrievalError
from flarecore.eval.answer_log import AnswerLog
from flarecore.eval.failures import CLASSES, classify, count_failures, examples, needless
from flarecore.eval.record import failed_record
from flarecore.eval.report import load_report, write_report
from flarecore.eval.settings import parse_methods
from flarecore.eval.summary import common_records, differences, summarise
from flarecore.eval.sweep import Grid

SETTINGS = {"data": {"name": "own"}, "model": {"name": "m<1>", "compute": "int8"},
            "retriever": "bm25",
            "prompt": {"style": "text", "num_exemplars": 8, "exemplars": "two-hop-en",
                       "exemplar_passages": True}}
RIGHT = "It was built by Tobias Renfell in 1871. So the answer is Tobias Renfell."
LOW = {" 1871": 0.1}


def summary(*records, label="flare"):
    return summarise(label, SETTINGS, records)


def test_a_record_scores_answer_and_trace():
    got = record("q1", RIGHT, found=("p1", "p3"))
    assert (got.em, got.f1, got.contained, got.has_pattern) == (1, 1, 1, True)
    assert got.gold_recall == 1 and got.evidence_has_answer is True
    # "it was built", "was built by", "built by tobias", "by tobias renfell", "tobias renfell in",
    # "renfell in 1871": all but the first stand in p1.
    assert got.evidence_use == pytest.approx(5 / 6)
    half = record("q2", "So the answer is Rome.", found=("p1",))
    assert half.gold_recall == 0.5 and half.evidence_has_answer is False and half.em == 0
    alone = record("q3", "In Husum.")
    assert alone.gold_recall is alone.evidence_use is alone.evidence_has_answer is None
    assert record("q3", "x", found=("p1",)).gold_recall == 0
    assert record("q3", "So the answer is in 1931.", found=("p3",)).gold_recall == 1


def test_every_class_of_failure():
    wrong = "So the answer is Rome in 1871."
    cases = {
        None: record("q1", RIGHT, found=("p1",)),
        "format": record("q1", "Rome.", found=("p1",)),
        "ignored": record("q1", wrong, found=("p1",)),
        "silent": record("q2", wrong, found=("p1",)),
        "missed": record("q2", wrong, found=("p1",), low=LOW),
        "error": failed_record(
            question("q1"), RetrievalError("gone"), language="en", settings_hash="h",
            wall_ms=1.0, num_parallel=1),
    }
    method = summary(*cases.values())
    assert {name: classify(r, method) for name, r in cases.items()} == {n: n for n in cases}
    assert count_failures(method) == {name: int(name in cases) for name in CLASSES}
    assert [name for name, _ in examples(method)] == [n for n in CLASSES if n in cases]
    # Without a trigger, silence is not its fault; without a search, nothing could be missed.
    single = summary(cases["silent"])
    assert classify(cases["silent"], single) == "missed"
    memory = record("q2", wrong)
    assert classify(memory, summary(memory)) == "memory"


def test_needless_searches():
    same = record("q1", RIGHT, found=("p1",), low=LOW)
    changed = record("q1", RIGHT, found=("p1",), low=LOW, rewritten="So the answer is Rome.",
                     initial_retrieval=False)
    assert needless(summary(same, changed, record("q1", RIGHT))) == (1, 2)


def test_summary_and_paired_differences():
    right, wrong = record("q1", RIGHT, found=("p1",)), record("q2", "So the answer is Rome.")
    one = summary(right, wrong)
    assert one.quality["em"].mean == 0.5 and one.costs["retrievals"] == 0.5
    assert one.costs["gold_recall"] == 1.0  # of the answers that searched
    other = summary(dataclasses.replace(right, em=0.0), wrong, label="other")
    assert differences(other, one)["em"].mean == -0.5
    with pytest.raises(ConfigError, match="other questions"):
        differences(summary(wrong, right), one)
    shared = common_records({"a": [right, wrong], "b": [wrong]})
    assert [r.id for r in shared["a"]] == ["q2"] == [r.id for r in shared["b"]]
    with pytest.raises(ConfigError, match="no answer"):
        summary()


def write(folder, label, records):
    (request,) = parse_methods([label])
    settings = SETTINGS | {"label": label}
    with AnswerLog(folder / "answers" / f"{request.file_name}.jsonl", settings) as log:
        for item in records:
            log.append(dataclasses.replace(item, settings_hash=log.hash))


HOSTILE = "<script>alert(1)</script> | *x* [y](z)"


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, "no-retrieval", [record("q1", "So the answer is Rome."), record("q2", "Rome.")])
    write(tmp_path, "flare", [
        record("q1", RIGHT, found=("p1",), low=LOW),
        record("q2", f"{HOSTILE} In 1871. So the answer is Rome.", found=("p1",), low=LOW),
        record("q3", "So the answer is 1931.", found=("p3",))])
    return tmp_path


def test_the_report_shows_what_was_measured(folder):
    text, files = write_report(folder, baseline="no-retrieval", labels=["no-retrieval", "flare"])
    assert [f.name for f in files] == ["report.md", "report.html"]
    assert re.search(r"flare +50\.0 \[0\.0, 100\.0\]", text)
    markdown = files[0].read_text()
    page = files[1].read_text()
    for shown in (markdown, page):
        assert "2 questions" in shown and "1 answer is left out" in shown
        assert CLASSES["missed"] in shown and CLASSES["format"] in shown
        assert "report-traces/flare.html#a1" in shown and "+50.0" in shown
    assert "| flare | 50.0 [0.0, 100.0] |" in markdown
    # Text of models and data cannot break out of its place.
    assert "<script" not in markdown.replace("\\<script", "")
    assert "alert(1)" in page and "<script" not in page
    assert "m\\<1\\>" in markdown and "m&lt;1&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") \
        and "https://" not in page
    assert page.count("<svg") == 3 and page.count("<figure") == 3
    svg = (folder / "report-quality.svg").read_text()
    assert svg.startswith("<?xml") and "flare: EM 50.0% [0.0, 100.0]" in svg
    traces = (folder / "report-traces" / "flare.html").read_text()
    assert "Where was the builder" in traces


def test_report_of_a_folder_and_its_refusals(folder, tmp_path):
    report = load_report(folder)
    assert [m.label for m in report.methods] == ["no-retrieval", "flare"]
    assert report.baseline == "no-retrieval"
    with pytest.raises(ConfigError, match="'x' is none of"):
        load_report(folder, baseline="x")
    with pytest.raises(ConfigError, match="holds no answers"):
        load_report(tmp_path / "empty")
    with pytest.raises(ConfigError, match="no question that every method"):
        load_report(folder, ids=["q9"])


def test_a_sweep_has_a_grid_and_stays_apart(folder):
    grid = Grid.make(parse_methods(["flare"])[0], [0.0, 0.8], [0.2, 0.4])
    for number, request in enumerate(grid.requests):
        right = record("q1", RIGHT, found=("p1",), low=LOW if number else None)
        write(folder, request.label, [dataclasses.replace(right, em=float(number > 1))])
    labels = [r.label for r in grid.requests]
    _, files = write_report(folder, labels=labels, grid=grid)
    assert [f.name for f in files] == ["sweep.md", "sweep.html"]
    assert "| 0.8 | 0.0 / 100.0 / 100% | 100.0 / 100.0 / 100% |" in files[0].read_text()
    assert "| 0 | 0.0 / 100.0 / 0% | 0.0 / 100.0 / 0% |" in files[0].read_text()
    plot = (folder / "sweep-grid.svg").read_text()
    assert plot.count('class="cell"') == 8 and "θ = 0.8" in plot
    assert 'class="series f1"' in (folder / "sweep-trigger.svg").read_text()
    _, files = write_report(folder)
    assert [f.name for f in files] == ["report.md", "report.html", "sweep.md", "sweep.html"]
    assert "theta=0.8" not in files[0].read_text()
