"""HNSW and exact retrieval: right results on every path, concurrency, the protocol's borders."""

import threading
import warnings

import numpy as np
import pytest
from helpers_retrieval import (
    TableEncoder,
    UncheckedPassage,
    WordEncoder,
    ids_of,
    random_table,
    table_passages,
    true_ids,
)

from flarecore.errors import ConfigError, RetrievalError
from flarecore.retrieval.exact import ExactRetriever
from flarecore.retrieval.graph import HnswGraph
from flarecore.retrieval.hnsw import HnswRetriever, SearchStats
from flarecore.retrieval.passage import Passage

NUM_ROWS, NUM_QUERIES, DIM = 1500, 40, 24
QUERIES = [f"v{i}" for i in range(NUM_ROWS, NUM_ROWS + NUM_QUERIES)]


def make(clusters=0, num_rows=NUM_ROWS, exact_below=0, seed=3, **options):
    table = random_table(NUM_ROWS + NUM_QUERIES, DIM, seed, clusters)
    encoder = TableEncoder(table)
    retriever = HnswRetriever.build(
        table_passages(0, num_rows), encoder, exact_below=exact_below, **options)
    return table, encoder, retriever


@pytest.fixture(scope="module", params=[0, 20], ids=["random", "clustered"])
def indexed(request):
    return make(request.param)


def test_recall_against_exact(indexed):
    table, _, retriever = indexed
    before = retriever.stats.num_graph
    found = ids_of(retriever.search(QUERIES, 10))
    assert retriever.stats.num_graph - before == NUM_QUERIES  # the graph answered, not the oracle
    rows = np.arange(NUM_ROWS)
    hits = sum(len(set(ids) & set(true_ids(table, table[NUM_ROWS + q], 10, rows)))
               for q, ids in enumerate(found))
    assert hits >= 0.95 * 10 * NUM_QUERIES


def test_exact_retriever_equals_numpy(indexed):
    table, encoder, _ = indexed
    exact = ExactRetriever(encoder, table_passages(0, NUM_ROWS))
    allowed = np.flatnonzero(np.arange(NUM_ROWS) % 7 == 2)
    for filter, rows in ((None, np.arange(NUM_ROWS)), ({"mod": 2}, allowed)):
        found = exact.search(QUERIES, 9, filter)
        assert ids_of(found) == [true_ids(table, table[NUM_ROWS + q], 9, rows)
                                 for q in range(NUM_QUERIES)]


def test_scores_do_not_depend_on_the_path(indexed):
    _, encoder, retriever = indexed
    exact = ExactRetriever(encoder, table_passages(0, NUM_ROWS))
    together, oracle = retriever.search(QUERIES, 5), exact.search(QUERIES, 5)
    for query, found, best in zip(QUERIES, together, oracle, strict=True):
        assert retriever.search([query], 5) == [found]
        score_of = {p.id: p.score for p in exact.search([query], NUM_ROWS)[0]}
        assert [p.score for p in found] == [score_of[p.id] for p in found]
        assert best[0].score >= found[0].score
        assert all(-1.000001 <= p.score <= 1.000001 for p in found)


@pytest.mark.parametrize("filter", [{"mod": 2}, {"mod": [0, 1, 2, 3, 4]}, {"n": {"lt": 40}},
                                    {"n": {"gte": 700}, "even": True}, {"n": 5}])
def test_filtered_search_never_loses_results(indexed, filter):
    _, encoder, retriever = indexed
    exact = ExactRetriever(encoder, table_passages(0, NUM_ROWS))
    found, oracle = retriever.search(QUERIES, 6, filter), exact.search(QUERIES, 6, filter)
    assert [len(p) for p in found] == [len(p) for p in oracle]
    same = sum(len(set(a) & set(b)) for a, b in zip(ids_of(found), ids_of(oracle), strict=True))
    assert same >= 0.95 * sum(len(p) for p in oracle)
    passing = {p.id for p in exact.search(["v0"], NUM_ROWS, filter)[0]}
    assert 0 < len(passing) < NUM_ROWS
    for passages in found:
        assert passing.issuperset(p.id for p in passages)
        assert [p.score for p in passages] == sorted((p.score for p in passages), reverse=True)


def test_filters_take_the_graph_or_the_exact_path():
    _, _, retriever = make()
    retriever.search(QUERIES, 3, {"mod": [0, 1, 2, 3, 4]})  # 71% of the rows
    assert retriever.stats == SearchStats(num_graph=NUM_QUERIES, num_exact=0)
    retriever.search(QUERIES, 3, {"n": {"lt": 120}})  # 8%
    assert retriever.stats == SearchStats(num_graph=NUM_QUERIES, num_exact=NUM_QUERIES)


def test_filter_against_the_query_is_still_answered_in_full():
    # All rows near the query fail the filter: what the graph finds first is of no use.
    table = np.zeros((1201, 8), dtype=np.float32)
    table[:, 1] = np.linspace(0.1, 1, 1201)
    table[:600, 0], table[600:, 0] = 5, -5
    table[1200] = (5, 0.3, 0, 0, 0, 0, 0, 0)
    retriever = HnswRetriever.build(table_passages(0, 1200), TableEncoder(table), exact_below=0)
    found = retriever.search(["v1200"], 4, {"n": {"gte": 600}})
    assert ids_of(found) == [true_ids(table, table[1200], 4, np.arange(600, 1200))]
    assert retriever.stats == SearchStats(num_graph=0, num_exact=1)


@pytest.mark.parametrize("num_rows", [0, 1, 3, 50])
def test_fewer_passages_than_k(num_rows):
    _, _, retriever = make(num_rows=num_rows)
    found = retriever.search(QUERIES[:3], 20)
    assert [len(p) for p in found] == [min(num_rows, 20)] * 3
    assert len(retriever) == num_rows
    assert retriever.search(QUERIES[:2], 5, {"n": -1}) == [[], []]
    assert retriever.search([], 5) == []


def test_k_beyond_what_the_graph_reaches():
    _, _, retriever = make(m=2, ef_construction=2, ef_search=1)
    assert [len(p) for p in retriever.search(QUERIES[:4], 340)] == [340] * 4
    for k in (NUM_ROWS + 1, 2**64, 10**400):
        assert [len(p) for p in retriever.search(QUERIES[:4], k)] == [NUM_ROWS] * 4
        assert [len(p) for p in retriever.search(QUERIES[:4], k, {"n": {"lt": 300}})] == [300] * 4


def test_graph_that_cannot_reach_enough_falls_back_to_exact(monkeypatch):
    _, encoder, retriever = make()
    monkeypatch.setattr(HnswGraph, "query", lambda self, queries, num: None)
    exact = ExactRetriever(encoder, table_passages(0, NUM_ROWS))
    assert retriever.search(QUERIES, 4) == exact.search(QUERIES, 4)


def test_equal_scores_keep_the_order_of_passages():
    table = np.repeat(random_table(30, 8, 5), 4, axis=0)
    encoder = TableEncoder(table)
    for retriever in (ExactRetriever(encoder, table_passages(0, 120)),
                      HnswRetriever.build(table_passages(0, 120), encoder, exact_below=0)):
        for row in (0, 40, 119):
            first = 4 * (row // 4)
            assert ids_of(retriever.search([f"v{row}"], 4)) == [
                [f"p{first + i}" for i in range(4)]]


def test_build_is_deterministic_and_independent_of_batches():
    _, _, one = make(clusters=20)
    _, _, two = make(clusters=20, batch_size=7)
    _, _, other = make(clusters=20, seed=4)
    first, second = (r._parts.graph.links() for r in (one, two))
    assert np.array_equal(first.base, second.base) and np.array_equal(first.upper, second.upper)
    assert first.levels.max() > 0  # there is more than a ground layer to compare
    assert one.search(QUERIES, 5) == two.search(QUERIES, 5)
    assert one.search(QUERIES, 5) != other.search(QUERIES, 5)


def test_add_then_search():
    _, _, retriever = make(num_rows=900)
    retriever.add(table_passages(900, NUM_ROWS))
    assert len(retriever) == NUM_ROWS
    _, _, whole = make()
    assert retriever.search(QUERIES, 5) == whole.search(QUERIES, 5)
    assert ids_of(retriever.search([f"v{i}" for i in range(0, NUM_ROWS, 50)], 1)) == [
        [f"p{i}"] for i in range(0, NUM_ROWS, 50)]


def test_graph_appears_once_the_index_is_large():
    _, _, retriever = make(num_rows=400, exact_below=500)
    assert retriever._parts.graph is None
    retriever.add(table_passages(400, 600))
    retriever.search(QUERIES, 3)
    assert retriever.stats == SearchStats(num_graph=NUM_QUERIES, num_exact=0)


def test_rows_that_the_graph_does_not_hold_are_found():
    class Cancelled(Exception):
        pass

    def progress(stage, done, total):
        if stage == "graph" and done > 1200:
            raise Cancelled

    _, encoder, retriever = make(num_rows=1000)
    with pytest.raises(Cancelled):
        retriever.add(table_passages(1000, NUM_ROWS), progress=progress)
    assert 1200 < retriever._parts.graph.num_rows < NUM_ROWS
    _, _, whole = make()
    assert ids_of(retriever.search(["v1499", "v0"], 1)) == [["p1499"], ["p0"]]
    found = retriever.search(QUERIES, 5, {"n": {"gte": 300}})
    oracle = ExactRetriever(encoder, table_passages(0, NUM_ROWS)).search(
        QUERIES, 5, {"n": {"gte": 300}})
    same = sum(len(set(a) & set(b)) for a, b in zip(ids_of(found), ids_of(oracle), strict=True))
    assert same >= 0.95 * 5 * NUM_QUERIES
    retriever.add([])  # lets the graph catch up
    assert retriever._parts.graph.num_rows == NUM_ROWS
    assert retriever.search(QUERIES, 5) == whole.search(QUERIES, 5)


def test_failed_insertion_leaves_a_right_index(monkeypatch):
    _, encoder, retriever = make(num_rows=1000)

    def out_of_memory(self, vectors):
        raise MemoryError("no room")

    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr(HnswGraph, "insert", out_of_memory)
        retriever.add(table_passages(1000, 1010))
    assert any("no room" in str(w.message) for w in caught)
    exact = ExactRetriever(encoder, table_passages(0, 1010))
    assert retriever.search(QUERIES, 5) == exact.search(QUERIES, 5)
    retriever.add([])
    retriever.search(QUERIES, 5)
    assert retriever.stats.num_graph == NUM_QUERIES


def nested(depth):
    return [nested(depth - 1)] if depth else []


def test_failed_add_changes_nothing():
    encoder = WordEncoder()
    retriever = HnswRetriever.build([Passage("a", "one two")], encoder)
    bad = [
        ([Passage("b", "x"), Passage("b", "y")], "'b' is taken"),
        ([Passage("a", "x")], "'a' is taken"),
        ([Passage("", "x")], "id must not be empty"),
        ([Passage("b", " ")], "text must not be empty"),
        ([UncheckedPassage("b", 3)], "text must be a string, got int"),
        ([Passage("b", "\ud800")], "UTF-8"),
        ([Passage("b", "x", metadata={"t": ["\udfff"]})], "UTF-8"),
        ([Passage("b", "x", metadata={"\udfff": 1})], "UTF-8"),
        ([Passage("b", "x", metadata={"t": 1 << 5000})], "4096 bits"),
        ([Passage("b", "x", metadata={"t": nested(17)})], "deeper than 16"),
        ([Passage("b", "x", metadata={"t": {1, 2}})], "holds a set"),
        ([Passage("b", "x", metadata={"t": float("inf")})], "inf"),
        ([Passage("b", "x", metadata={"t": {1: 2}})], "keys must be strings"),
        ([Passage("b", "x", metadata={"id": 2})], "own fields"),
        ([UncheckedPassage("b", "x", metadata=[1])], "mapping"),
        (["b"], "must be a Passage, got str"),
    ]
    for passages, message in bad:
        with pytest.raises(ConfigError, match=message):
            retriever.add([Passage("fine", "x"), *passages])
        assert len(retriever) == 1
    encoder.encode = lambda texts: np.full((len(texts), 32), np.nan)
    with pytest.raises(RetrievalError, match="not finite"):
        retriever.add([Passage("b", "x")])
    encoder.encode = lambda texts: np.zeros((len(texts), 31))
    with pytest.raises(RetrievalError, match=r"\(1, 32\).*\(1, 31\)"):
        retriever.search(["x"], 1)
    encoder.encode = lambda texts: 1 / 0
    with pytest.raises(RetrievalError, match="division by zero"):
        retriever.search(["x"], 1)
    assert len(retriever) == 1


@pytest.mark.parametrize(("arguments", "message"), [
    ((["x"], 0), "k must be"), ((["x"], True), "k must be"), ((["x"], 1.0), "k must be"),
    (("x", 1), "list of strings, got str"), (([b"x"], 1), "query 0"), ((None, 1), "NoneType"),
    ((["x"], 1, {"a": {"like": 2}}), "unknown operator"),
])
def test_bad_arguments(arguments, message):
    passages = [Passage("a", "one two")]
    for retriever in (HnswRetriever.build(passages, WordEncoder()),
                      ExactRetriever(WordEncoder(), passages)):
        with pytest.raises(ConfigError, match=message):
            retriever.search(*arguments)


@pytest.mark.parametrize("options", [
    {"m": 1}, {"m": 129}, {"ef_construction": 8}, {"ef_search": 0}, {"seed": -1}, {"seed": 1.5},
    {"batch_size": 0}, {"exact_below": -1}, {"title_in_text": 1}])
def test_bad_options(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        HnswRetriever.build([], WordEncoder(), **options)


def test_title_is_embedded_unless_switched_off():
    passages = [Passage("a", "works here", title="Ada Lovelace"),
                Passage("b", "works here too", title="Alan Turing")]
    with_title = HnswRetriever.build(passages, WordEncoder())
    assert with_title.search(["Lovelace"], 1)[0][0].id == "a"
    assert with_title.search(["Turing"], 1)[0][0].id == "b"
    without = HnswRetriever.build(passages, WordEncoder(), title_in_text=False)
    assert abs(without.search(["Turing"], 1)[0][0].score) < 0.5


def test_metadata_is_private_and_kept():
    metadata = {"tags": ["x", ("y", 1)], "nested": {"deep": None}}
    retriever = HnswRetriever.build([Passage("a", "t", metadata=metadata)], WordEncoder())
    metadata["tags"].append("z")
    kept = retriever.search(["t"], 1)[0][0].metadata
    assert kept == {"tags": ["x", ["y", 1]], "nested": {"deep": None}}


def test_searches_beside_adds():
    _, _, retriever = make(num_rows=300)
    errors, done = [], threading.Event()

    def search():
        try:
            while not done.is_set():
                before = len(retriever)
                found = retriever.search(["v0", f"v{before - 1}"], 3)
                assert ids_of(found)[0][0] == "p0" and ids_of(found)[1][0] == f"p{before - 1}"
                assert all(p.metadata["mod"] == 3
                           for p in retriever.search(["v5"], 3, {"mod": 3})[0])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for begin in range(300, 1200, 60):
        retriever.add(table_passages(begin, begin + 60))
    done.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(retriever) == 1200 and retriever._parts.graph.num_rows == 1200
