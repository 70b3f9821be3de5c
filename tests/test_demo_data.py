"""The demonstration's knowledge base and the cache of its index."""

import datetime
import json

import numpy as np
import pytest

from flarecore import demo_data
from flarecore.demo_data import DATA, QUESTIONS, cache_folder, load_index, own_question
from flarecore.retrieval.chunking import count_words
from flarecore.retrieval.corpus import read_passages
from flarecore.retrieval.filters import compile_filter

ROWS = [json.loads(line) for file in sorted(DATA.glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()]


class LetterEncoder:
    """A vector per text from its letters: enough to build an index without a model."""

    dim, name, fingerprint = 26, "letters", "letters-1"

    def encode(self, texts):
        counts = np.array([[text.lower().count(chr(97 + i)) + 0.01 for i in range(26)]
                           for text in texts], dtype=np.float32)
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_passages_are_complete_dated_and_of_one_size():
    assert 60 <= len(ROWS) <= 90
    assert len({row["id"] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert {"id", "title", "text", "lang", "date", "topic"} <= set(row)
        datetime.date.fromisoformat(row["date"])
        assert row["lang"] in ("en", "zh")
        assert 40 <= count_words(row["text"]) <= (90 if row["lang"] == "en" else 180), row["id"]
    assert {(row["lang"], row["topic"]) for row in ROWS} == {
        ("en", "biography"), ("zh", "biography"), ("en", "travel-policy"), ("zh", "travel-policy")}
    people = {row["id"].rsplit("-", 1)[0] for row in ROWS if row["topic"] == "biography"}
    assert len(people) >= 20


def test_policy_editions_say_until_when_they_were_valid():
    for row in ROWS:
        if row["topic"] == "travel-policy":
            year = row["id"].split("-")[1]
            assert row["date"] == f"{year}-01-01"
            assert year in row["title"]
            assert ("valid_until" in row) == (year == "2024")


def test_prepared_questions_have_passages_that_their_filters_let_through():
    passages = read_passages(DATA)
    for question in QUESTIONS:
        accepts = compile_filter(question.filter)
        kept = [p for p in passages if accepts is None or accepts.matches(p)]
        assert 0 < len(kept) < len(passages)
        assert all(p.metadata["date"] >= "2026" for p in kept if "2026" in question.text)


def test_a_question_is_asked_in_its_own_language():
    assert own_question("酒店每晚多少钱？", None).filter == {"lang": "zh"}
    assert own_question("How much is a hotel?", "2026").filter == {"lang": "en"}
    assert own_question("How much is a hotel?", "2026").scope == "2026"


class Progress:
    def __init__(self):
        self.calls = []

    def __call__(self, *call):
        self.calls.append(call)


def build(use_cache=True):
    progress = Progress()
    index, remark = load_index(LetterEncoder(), use_cache=use_cache, progress=progress)
    assert len(index) == len(ROWS)
    return bool(progress.calls), remark, index


def test_index_is_built_once_and_then_read():
    built, remark, first = build()
    assert built and "kept in" in remark
    built, remark, second = build()
    assert not built and "read from" in remark
    queries = ["Who was Ilse Marwede?"]
    assert first.search(queries, 3) == second.search(queries, 3)


def test_no_cache_neither_reads_nor_writes():
    built, _, _ = build(use_cache=False)
    assert built and not cache_folder().exists()
    build()
    built, _, _ = build(use_cache=False)
    assert built


def test_another_knowledge_base_is_another_index(tmp_path, monkeypatch):
    build()
    copy = tmp_path / "data"
    copy.mkdir()
    for file in DATA.glob("*.jsonl"):
        text = file.read_text(encoding="utf-8")
        (copy / file.name).write_text(text.replace("Husum", "Husby"), encoding="utf-8")
    monkeypatch.setattr(demo_data, "DATA", copy)
    built, _, index = build()
    assert built
    assert len(list(cache_folder().glob("demo-*.index"))) == 1  # the old one is dropped
    assert any("Husby" in p.text for p in index.search(["Husby"], 77)[0])


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:-10], lambda b: b[:200] + b"x" * 50])
def test_a_damaged_cache_is_built_again(damage):
    build()
    path = next(cache_folder().glob("demo-*.index"))
    good = path.read_bytes()
    path.write_bytes(damage(good))
    built, _, _ = build()
    assert built
    assert path.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_only_a_remark(tmp_path):
    cache_folder().parent.mkdir()
    cache_folder().write_text("a file in the way")
    built, remark, _ = build()
    assert built and "not kept" in remark


def test_relative_cache_paths_are_ignored(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/somewhere")
    assert str(cache_folder()) == "/somewhere/.cache/flarecore"
