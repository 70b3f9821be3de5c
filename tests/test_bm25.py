"""BM25: the formula, ties, filters, analysers, the index file."""

import math
import random

import numpy as np
import pytest
from helpers_retrieval import forge, ids_of, poke, replace_text

from flarecore.errors import ConfigError, IndexFileError, RetrievalError, UnsupportedError
from flarecore.reference.bm25 import bm25_scores
from flarecore.retrieval.analysis import FunctionAnalyser, TextAnalyser
from flarecore.retrieval.bm25 import BM25Retriever
from flarecore.retrieval.bm25_terms import top_rows
from flarecore.retrieval.index_io import index_info, read_index_file
from flarecore.retrieval.passage import Passage

WORDS = [*"abcdefghij", "公司", "差旅", "政策", "X-200", "3.14", "Ada's"]


def corpus(num_passages=80, seed=1):
    rng = random.Random(seed)
    return [Passage(f"p{i}", " ".join(rng.choices(WORDS, range(1, 17), k=rng.randint(1, 30))),
                    title=rng.choice(["", "Ada", "政策"]), metadata={"mod": i % 5})
            for i in range(num_passages)]


QUERIES = ["a b c", "差旅政策 X200", "3.14", "j j j a", "Ada", "the a", "旅"]


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (0, 0), (2, 1)])
@pytest.mark.parametrize("title", [True, False])
def test_scores_equal_the_formula(k1, b, title):
    passages, analyser = corpus(), TextAnalyser()
    index = BM25Retriever.build(passages, k1=k1, b=b, title_in_text=title)
    terms = [analyser.passage_terms(f"{p.title}\n{p.text}" if title and p.title else p.text)
             for p in passages]
    for query, found in zip(QUERIES, index.search(QUERIES, 1000), strict=True):
        scores = bm25_scores(terms, analyser.query_terms(query), k1, b)
        assert {p.id: p.score for p in found} == pytest.approx(
            {p.id: s for p, s in zip(passages, scores, strict=True) if s > 0}, rel=1e-12)
        assert found and [p.score for p in found] == sorted((p.score for p in found), reverse=True)


def test_the_library_computes_the_scores(monkeypatch):
    import bm25s

    calls = []
    original = bm25s.BM25.get_scores_from_ids
    monkeypatch.setattr(bm25s.BM25, "get_scores_from_ids", lambda self, ids: (
        calls.append(ids), original(self, ids))[1])
    index = BM25Retriever.build([Passage("a", "x y x"), Passage("b", "z")])
    index.search(["z x", "unknown"], 1)
    assert calls == [[0, 2]]


def test_the_formula_by_hand():
    # N = 2, the term in 1 of them, once, length 2, mean length 1.5
    weight = math.log(1 + 1.5 / 1.5)
    assert bm25_scores([["x", "y"], ["z"]], ["x"], 1.2, 0.75) == pytest.approx(
        [weight / (1 + 1.2 * (0.25 + 0.75 * 2 / 1.5)), 0.0])
    index = BM25Retriever.build([Passage("a", "x y"), Passage("b", "z")], k1=1.2, b=0.75)
    assert index.search(["x"], 5)[0][0].score == pytest.approx(
        weight / (1 + 1.2 * (0.25 + 0.75 * 2 / 1.5)))


def test_chinese_and_english_and_product_numbers():
    index = BM25Retriever.build([
        Passage("zh", "公司２０２６年的差旅政策：经济舱机票。"),
        Passage("en", "The travel policy of 2026 allows economy flights."),
        Passage("x", "The X-200 weighs 3.14 kg."), Passage("y", "The X-300 weighs 4.15 kg.")])
    assert ids_of(index.search(
        ["差旅政策是什么？", "经", "what about flights", "x200", "X 200", "3.14", "ＰＯＬＩＣＹ"],
        1)) == [["zh"], ["zh"], ["en"], ["x"], ["x"], ["x"], ["en"]]


@pytest.mark.parametrize("query", ["", "zebra", "？！", "🎉", "  ", "火"])
def test_a_query_without_a_known_word_finds_nothing(query):
    index = BM25Retriever.build([Passage("a", "one two"), Passage("b", "三四")])
    assert index.search([query, "two"], 3) == [[], [index.search(["two"], 1)[0][0]]]


def test_only_passages_with_a_word_come_back():
    index = BM25Retriever.build([Passage("a", "one"), Passage("b", "two"), Passage("c", "one two")])
    assert ids_of(index.search(["one"], 3)) == [["a", "c"]]


def test_passages_without_terms_are_kept_and_never_found(tmp_path):
    for passages in ([], [Passage("a", "!?"), Passage("b", "…")]):
        index = BM25Retriever.build(passages)
        assert len(index) == len(passages) and index.search(["x", "!?"], 3) == [[], []]
        index.save(tmp_path / "i")
        loaded = BM25Retriever.load(tmp_path / "i")
        loaded.add([Passage("c", "x")])
        assert ids_of(loaded.search(["x"], 3)) == [["c"]]


def test_ties_keep_the_order_of_passages():
    index = BM25Retriever.build([Passage(f"p{i}", ("b a", "a b")[i % 2]) for i in range(50)])
    for query in ("a b", "b a", "b"):
        for k in (1, 7, 50):
            assert ids_of(index.search([query], k)) == [[f"p{i}" for i in range(k)]]
    assert ids_of(index.search(["a"], 3, {"id": ["p9", "p4", "p30", "p8"]})) == [["p4", "p8", "p9"]]


def test_top_rows_against_sorting():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 6, size=200) / 4  # many equal, some 0
    for allowed in (None, np.flatnonzero(rng.random(200) < 0.3), np.zeros(0, dtype=np.int64)):
        rows = range(200) if allowed is None else allowed.tolist()
        expected = sorted((r for r in rows if scores[r] > 0), key=lambda r: (-scores[r], r))
        for k in (1, 3, 50, 500):
            found, values = top_rows(scores, k, allowed)
            assert found.tolist() == expected[:k] and values.tolist() == scores[found].tolist()


def test_filter_changes_no_score():
    index = BM25Retriever.build(corpus())
    for query in QUERIES:
        everything = index.search([query], 1000)[0]
        kept = [p for p in everything if p.metadata["mod"] in (1, 3)]
        assert 0 < len(kept) < len(everything)
        assert index.search([query], 1000, {"mod": [1, 3]}) == [kept]
        assert index.search([query], 2, {"mod": [1, 3]}) == [kept[:2]]


def test_adding_equals_building_at_once():
    passages = corpus()
    grown = BM25Retriever.build(passages[:30])
    grown.add(passages[30:31])
    grown.add([])
    grown.add(iter(passages[31:]))
    assert grown.search(QUERIES, 50) == BM25Retriever.build(passages).search(QUERIES, 50)


def test_progress_may_cancel():
    def progress(stage, done, total):
        calls.append((stage, done, total))
        if done > 300:
            raise KeyboardInterrupt

    calls = []
    index = BM25Retriever.build(corpus(300), progress=progress)
    assert calls == [("analyse", 256, 300), ("analyse", 300, 300)]
    with pytest.raises(KeyboardInterrupt):
        index.add([Passage(f"q{i}", "a") for i in range(301)], progress=progress)
    assert len(index) == 300
    index.add([Passage("q0", "fresh")])
    assert ids_of(index.search(["fresh"], 2)) == [["q0"]]


def words(text):
    return text.split()


def test_own_analyser(tmp_path):
    index = BM25Retriever.build([Passage("a", "X-200 x"), Passage("b", "x")], analyser=words)
    assert ids_of(index.search(["X-200", "x-200", "x"], 2)) == [["a"], [], ["b", "a"]]
    index.save(tmp_path / "i")
    with pytest.raises(IndexFileError, match=r"words'.*pass analyser="):
        BM25Retriever.load(tmp_path / "i")
    loaded = BM25Retriever.load(tmp_path / "i", words)
    assert loaded.search(["X-200"], 2) == index.search(["X-200"], 2)
    with pytest.raises(IndexFileError, match=r"words' .*opened with 'other'"):
        BM25Retriever.load(tmp_path / "i", FunctionAnalyser("other", words))
    same_name = FunctionAnalyser(index.analyser.name, lambda text: text.lower().split())
    with pytest.raises(IndexFileError, match="makes other terms of passage 'a'"):
        BM25Retriever.load(tmp_path / "i", same_name)


def test_options_of_the_analyser_are_kept(tmp_path):
    pytest.importorskip("Stemmer", reason="needs PyStemmer")
    analyser = TextAnalyser(stop_words=None, stemmer="english")
    index = BM25Retriever.build([Passage("a", "connected")], analyser=analyser, k1=2, b=0.25)
    index.save(tmp_path / "i")
    loaded = BM25Retriever.load(tmp_path / "i")
    assert loaded.analyser == analyser and ids_of(loaded.search(["connection"], 1)) == [["a"]]
    assert loaded.search(["connecting"], 1) == index.search(["connecting"], 1)
    with pytest.raises(IndexFileError, match=r"'stemmer': 'english'.*opened with.*None"):
        BM25Retriever.load(tmp_path / "i", TextAnalyser(stop_words=None))
    info = index_info(tmp_path / "i")
    assert info["kind"] == "bm25" and info["count"] == 1 and info["k1"] == 2


@pytest.mark.parametrize("result", [None, "text", [""], [1], {"a"}, ["ok", None]])
def test_analyser_that_breaks_the_protocol(result):
    analyser = FunctionAnalyser("bad", lambda text: result if "bad" in text else ["fine"])
    index = BM25Retriever.build([Passage("a", "x")], analyser=analyser)
    with pytest.raises(RetrievalError, match="'bad' must return a list of non-empty strings"):
        index.search(["bad"], 1)
    with pytest.raises(RetrievalError, match="'bad'"):
        index.add([Passage("b", "x"), Passage("c", "bad")])
    assert len(index) == 1 and ids_of(index.search(["x"], 3)) == [["a"]]


def test_analyser_that_raises():
    analyser = FunctionAnalyser("bad", lambda text: [str(1 / len(text.strip("!")))])
    with pytest.raises(RetrievalError, match="'bad' failed: division by zero"):
        BM25Retriever.build([Passage("a", "!!")], analyser=analyser)


@pytest.mark.parametrize("options", [
    {"k1": -0.1}, {"k1": float("nan")}, {"k1": "1"}, {"k1": True}, {"b": 1.01}, {"b": None},
    {"title_in_text": 1}, {"analyser": 3}])
def test_bad_options(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        BM25Retriever.build([], **options)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bm25s", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'flarecore\[bm25\]'"):
        BM25Retriever.build([])


FORGERIES = {
    "kind": ({"kind": "hnsw"}, {}),
    "count": ({"count": 81}, {}),
    "count text": ({"count": "80"}, {}),
    "no analyser": ({"analyser": None}, {}),
    "analyser unknown": ({"analyser": {"name": "flarecore-text-2", "options": {}}}, {}),
    "analyser as a list": ({"analyser": ["a", "b"]}, {}),
    "options unknown": ({"analyser": {"name": "flarecore-text-1", "options": {"x": 1}}}, {}),
    "options missing": ({"analyser": {"name": "flarecore-text-1", "options": {}}}, {}),
    "option a list": ({"analyser": {"name": "flarecore-text-1", "options": {
        "stop_words": ["english"], "stemmer": None}}}, {}),
    "stemmer a list": ({"analyser": {"name": "flarecore-text-1", "options": {
        "stop_words": None, "stemmer": ["english"]}}}, {}),
    "k1": ({"k1": -1}, {}),
    "k1 nan": ({"k1": float("nan")}, {}),
    "b": ({"b": "0.4"}, {}),
    "b true": ({"b": True}, {}),
    "title": ({"title_in_text": None}, {}),
    "terms fewer": ({"num_terms": 3}, {}),
    "terms huge": ({"num_terms": 1 << 40}, {}),
    "term cut": ({}, {"terms": lambda data: data[:-1]}),
    "term twice": ({}, {"terms": replace_text(b'"b"', b'"a"')}),
    "term empty": ({}, {"terms": replace_text(b'"b"', b'""')}),
    "term a number": ({}, {"terms": replace_text(b'"b"', b"12")}),
    "term no json": ({}, {"terms": replace_text(b'"b"', b'"b')}),
    "term deep": ({}, {"terms": replace_text(b'"b"', b"[" * 9999)}),
    "term not utf-8": ({}, {"terms": replace_text(b'"b"', b'"\xff"')}),
    "number beyond": ({}, {"numbers": poke(5, 0xFFFFFFFF)}),
    "numbers cut": ({}, {"numbers": lambda data: data[:-4]}),
    "number unused": ({}, {"numbers": lambda data: data * 0}),
    "length huge": ({}, {"lengths": poke(0, 0xFFFFFFFF)}),
    "lengths cut": ({}, {"lengths": lambda data: data[:-4]}),
    "lengths missing": ({}, {"lengths": lambda data: None}),
    "lengths shifted": ({}, {"lengths": lambda data: np.roll(data, 4)}),
    "passage lost": ({}, {"passages": lambda data: data[:-1]}),
    "passage id twice": ({}, {"passages": replace_text(b'"p1"', b'"p0"')}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "kb.index"
    BM25Retriever.build(corpus()).save(path)
    return path


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_contents_are_refused(name, saved, tmp_path):
    header, sections = FORGERIES[name]
    path = forge(saved, tmp_path / "forged", header, sections)
    assert path.read_bytes() != saved.read_bytes()
    with pytest.raises(IndexFileError, match="forged"):
        BM25Retriever.load(path)


def test_file_holds_no_scores(saved):
    # So that a file cannot say other scores than its terms give.
    assert sorted(read_index_file(saved).sections) == ["lengths", "numbers", "passages", "terms"]
