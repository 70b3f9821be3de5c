"""``flarecore bench answers``: whole answers at once are those written in turn, token by token."""

import dataclasses
import json

import pytest
from helpers import TinyLlama, tiny_llama_path

from flarecore.bench.aims import aims
from flarecore.bench.answers import AnswersOptions, AtOnce
from flarecore.bench.harness import Quantiles
from flarecore.bench.machine import describe_machine
from flarecore.bench.rows import Report, Row
from flarecore.cli.main import main
from flarecore.errors import ConfigError
from flarecore.flare import Flare


@pytest.fixture(autouse=True)
def small_memory(monkeypatch):
    monkeypatch.setattr("flarecore.bench.machine._LARGE_BYTES", 1 << 20)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three questions, for a model that knows no chat."""
    folder = tmp_path_factory.mktemp("lighthouses")
    names = ("Marrow Point", "Gull Rock", "Cape Anders")
    folder.joinpath("corpus.jsonl").write_text("".join(
        json.dumps({"id": name, "text": f"{name} got an electric lamp in 192{n}."}) + "\n"
        for n, name in enumerate(names)), encoding="utf-8")
    folder.joinpath("queries.jsonl").write_text("".join(
        json.dumps({"id": name, "question": f"When did {name} get a lamp?",
                    "answers": [f"192{n}"]}) + "\n"
        for n, name in enumerate(names)), encoding="utf-8")
    return folder


@pytest.fixture
def bench(capsys, data):
    """Runs it: exit code, rows, and what was written to standard error."""
    model = tiny_llama_path(TinyLlama(tensor_type="Q4_1", context_length=16384))

    def run(*arguments):
        code = main(["bench", "answers", "--model", str(model), "--threads", "1", "--data",
                     str(data), "--json", *arguments])
        out, err = capsys.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], err

    return run


def test_answers_at_once_and_in_turn(bench, monkeypatch):
    open_now, most = 0, []
    agenerate = Flare.agenerate

    async def counting(self, *arguments, **options):
        nonlocal open_now
        open_now += 1
        most.append(open_now)
        try:
            return await agenerate(self, *arguments, **options)
        finally:
            open_now -= 1

    monkeypatch.setattr(Flare, "agenerate", counting)
    code, (in_turn, at_once), _ = bench("--at-once", "2", "--rounds", "2")
    assert code == 0
    assert max(most) == 2, "one waited for the other"
    assert (in_turn["engine"], at_once["engine"]) == ("flarecore in turn", "flarecore 2 at once")
    assert (in_turn["params"]["at_once"], at_once["params"]["at_once"]) == (1, 2)
    assert in_turn["case"] == at_once["case"]
    for row in (in_turn, at_once):
        values = row["values"]
        assert row["rounds"] == 2 and row["params"]["answers"] == 2
        assert values["answers_per_s"] == pytest.approx(1 / row["seconds"]["median"])
        assert values["tokens_per_answer"] > 1 and values["num_retrievals"] > 0
        assert row["notes"] == []
    for same in ("tokens_per_answer", "num_retrievals"):
        assert in_turn["values"][same] == at_once["values"][same]
    ratio = at_once["ratios"]["flarecore in turn"]["median"]
    assert at_once["values"]["answers_per_s_of_in_turn"] == ratio
    assert "triggers at once and in turn" in in_turn["proofs"][-1]


def test_too_few_questions_are_said(bench):
    code, (_, at_once), _ = bench("--rounds", "1")
    assert code == 0 and at_once["params"]["at_once"] == 3
    assert "only 3 questions, 8 answers" in at_once["notes"][-1]


def test_nothing_is_timed_when_an_answer_changes_among_others(bench, monkeypatch):
    write = AtOnce.write

    def wrong(self, flare, questions):
        answers = write(self, flare, questions)
        ids = answers[-1].token_ids
        answers[-1] = dataclasses.replace(answers[-1], token_ids=(*ids[:-1], ids[-1] + 1))
        return answers

    monkeypatch.setattr(AtOnce, "write", wrong)
    code, rows, err = bench("--at-once", "2")
    assert code == 1 and rows == []
    assert "an answer among others" in err and "nothing is timed" in err


def test_one_answer_is_not_at_once():
    with pytest.raises(ConfigError, match=">= 2, got 1"):
        AnswersOptions(num_answers=1)


@pytest.mark.parametrize(("at_once", "ratio", "met"), [
    (8, 1.8, [True]), (8, 1.79, [False]), (3, 1.9, [])])
def test_the_aim_is_for_eight(at_once, ratio, met):
    rows = [Row("answers", "a case", f"flarecore {count} at once", {"at_once": count},
                Quantiles(1, 1, 1), 7, values={"answers_per_s_of_in_turn": ratio})
            for count in (1, at_once)]
    report = Report("answers", "m", "Q4_1", describe_machine(1), rows, (), ())
    assert [aim.is_met for aim in aims([report])] == met
