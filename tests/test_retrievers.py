"""What every retriever promises, over one set of passages: results, filters, files, threads."""

import threading

import numpy as np
import pytest
from helpers_retrieval import WordEncoder, forge, ids_of

import flarecore
from flarecore.errors import ConfigError, IndexFileError
from flarecore.retrieval import (
    BM25Retriever,
    ExactRetriever,
    HnswRetriever,
    HybridRetriever,
    Passage,
    Retriever,
    check_results,
    index_info,
    load_index,
)

WORDS = ["alpha", "beta", "gamma", "delta", "公司", "差旅", "X-200", "3.14"]
QUERIES = ["alpha 公司", "X-200 beta", "delta delta", "差旅", "3.14 gamma"]
FILTERS = [{"mod": 2}, {"mod": [0, 1, 3]}, {"n": {"lt": 9}}, {"n": {"gte": 30}, "even": True},
           {"id": "p5"}, {"title": "Even"}, {"mod": {"not_in": [1, 2]}}]


def passages(begin=0, end=60):
    rng = np.random.default_rng(4)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(1, 12))) for _ in range(end)]
    return [Passage(f"p{i}", texts[i], title="Even" if i % 2 == 0 else "",
                    metadata={"n": i, "mod": i % 5, "even": i % 2 == 0})
            for i in range(begin, end)]


KINDS = {
    "hnsw": lambda items: HnswRetriever.build(items, WordEncoder(), exact_below=0, m=8),
    "exact": lambda items: ExactRetriever.build(items, WordEncoder()),
    "bm25": BM25Retriever.build,
    "hybrid": lambda items: HybridRetriever.build(items, WordEncoder(), weights=[1, 0.5]),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def index(kind):
    return KINDS[kind](passages())


@pytest.fixture
def path(index, tmp_path):
    index.save(tmp_path / "kb.index")
    return tmp_path / "kb.index"


def test_protocol(index):
    assert isinstance(index, Retriever) and len(index) == 60
    for k in (1, 5, 1000):
        found = check_results(index.search(QUERIES, k), len(QUERIES), k)
        for ranking in found:
            assert ranking and len({p.id for p in ranking}) == len(ranking)
            assert [p.score for p in ranking] == sorted((p.score for p in ranking), reverse=True)
    assert index.search([], 3) == []
    assert index.search(QUERIES, 4) == [index.search([q], 4)[0] for q in QUERIES]


def test_a_smaller_k_is_the_beginning_of_a_larger(index):
    for query in QUERIES:
        everything = index.search([query], 60)[0]
        for k in (1, 3, 17):
            assert index.search([query], k) == [everything[:k]]


@pytest.mark.parametrize("filter", FILTERS)
def test_filtered_search_is_the_filtered_ranking(kind, index, filter):
    index.check_filter(filter)
    allowed = {p.id for p in ExactRetriever(WordEncoder(), passages()).search(
        ["x"], 60, filter)[0]}
    assert 0 < len(allowed) < 60
    for query in QUERIES:
        everything = index.search([query], 60)[0]
        found = index.search([query], 60, filter)[0]
        kept = [p for p in everything if p.id in allowed]
        if kind == "hybrid":  # ranks, and so scores, are among the passages that pass
            assert {p.id for p in found} == {p.id for p in kept}
        else:
            assert found == kept
        assert index.search([query], 2, filter)[0] == found[:2]


def test_filter_that_nothing_meets(index):
    assert index.search(QUERIES, 3, {"n": -1}) == [[]] * len(QUERIES)


@pytest.mark.parametrize(("arguments", "message"), [
    ((["x"], 0), "k must be"), ((["x"], True), "k must be"), ((["x"], 1.0), "k must be"),
    (("x", 1), "list of strings, got str"), (([b"x"], 1), "query 0"), ((None, 1), "NoneType"),
    ((["x"], 1, {"a": {"like": 2}}), "unknown operator"), ((["x"], 1, "lang"), "mapping"),
])
def test_bad_arguments(index, arguments, message):
    with pytest.raises(ConfigError, match=message):
        index.search(*arguments)
    if len(arguments) == 3:
        with pytest.raises(ConfigError, match=message):
            index.check_filter(arguments[2])


@pytest.mark.parametrize("bad", [
    Passage("p3", "taken"), Passage("", "x"), Passage("b", " "), Passage("b", "\ud800"), "b"])
def test_failed_add_changes_nothing(index, bad):
    before = index.search(QUERIES, 60)
    with pytest.raises(ConfigError):
        index.add([Passage("fine", "alpha"), bad])
    assert len(index) == 60 and index.search(QUERIES, 60) == before
    index.add([Passage("fine", "unheard")])
    assert index.search(["unheard"], 1)[0][0].id == "fine"


def test_added_equals_built(kind, index):
    grown = KINDS[kind](passages(0, 25))
    grown.add(passages(25, 60))
    assert grown.search(QUERIES, 60) == index.search(QUERIES, 60)


def test_empty_index(kind, tmp_path):
    empty = KINDS[kind]([])
    assert empty.search(QUERIES, 3) == [[]] * len(QUERIES) and len(empty) == 0
    empty.save(tmp_path / "i")
    loaded = load_index(tmp_path / "i", WordEncoder())
    loaded.add(passages())
    assert ids_of(loaded.search(["X-200"], 3)) == ids_of(KINDS[kind](passages()).search(
        ["X-200"], 3))


def test_load_index_opens_it(kind, index, path, tmp_path):
    assert index_info(path)["kind"] == kind and index_info(path)["count"] == 60
    loaded = flarecore.load_index(path, WordEncoder())
    assert type(loaded) is type(index)
    for filter in (None, *FILTERS):
        assert loaded.search(QUERIES, 7, filter) == index.search(QUERIES, 7, filter)
    own = type(index).load(path) if kind == "bm25" else type(index).load(path, WordEncoder())
    assert own.search(QUERIES, 7) == index.search(QUERIES, 7)
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    loaded.add([Passage("new", "unheard")])
    assert loaded.search(["unheard"], 1)[0][0].id == "new"
    loaded.save(path)
    assert len(load_index(path, WordEncoder())) == 61
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "kb.index"]


def test_another_kind_is_refused(kind, index, path):
    for other in {HnswRetriever, ExactRetriever, BM25Retriever, HybridRetriever} - {type(index)}:
        with pytest.raises(IndexFileError, match=rf"kind '{kind}'.*load_index opens every kind"):
            other.load(path)


@pytest.mark.parametrize("other", ["bm26", None, 3, ["bm25"]])
def test_unknown_kind(path, tmp_path, other):
    forged = forge(path, tmp_path / "forged", {"kind": other})
    with pytest.raises(IndexFileError, match="forged: holds an index of kind"):
        load_index(forged, WordEncoder())


def test_another_encoder_is_refused(kind, path):
    other = WordEncoder(name="others", fingerprint="others-1")
    if kind == "bm25":
        assert len(load_index(path, other)) == 60  # it needs none
    else:
        with pytest.raises(IndexFileError, match=r"'words'.*'others'"):
            load_index(path, other)
        with pytest.raises(IndexFileError, match="'words', which is no known model"):
            load_index(path)


def test_damage_at_any_byte_is_refused(path, tmp_path):
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    broken = tmp_path / "broken"
    for position in {*range(0, 60, 7), len(data) - 1, *rng.integers(len(data), size=60).tolist()}:
        damaged = bytearray(data)
        damaged[position] ^= 1 << int(rng.integers(8))
        broken.write_bytes(damaged)
        with pytest.raises(IndexFileError, match="broken"):
            load_index(broken, WordEncoder())


@pytest.mark.parametrize("size", [0, 7, 48, 400, -1, -64, "longer"])
def test_wrong_size_is_refused(size, path, tmp_path):
    data = path.read_bytes()
    broken = tmp_path / "broken"
    broken.write_bytes(data + b"\0" if size == "longer" else data[:size])
    with pytest.raises(IndexFileError, match="broken"):
        load_index(broken, WordEncoder())


def test_failed_save_leaves_the_old_index(kind, index, path, tmp_path, monkeypatch):
    old = path.read_bytes()
    index.add([Passage("new", "unheard")])

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(IndexFileError, match="No space left"):
            index.save(path)
    assert path.read_bytes() == old and [p.name for p in tmp_path.iterdir()] == ["kb.index"]
    with pytest.raises(IndexFileError, match="cannot be written"):
        index.save(tmp_path)


def test_searches_beside_adds_and_saves(kind, tmp_path):
    index = KINDS[kind]([Passage("first", "unique0 alpha", metadata={"n": 0})])
    errors, done = [], threading.Event()

    def search():
        try:
            while not done.is_set():
                count = len(index)
                found = index.search(["unique0", f"unique{count - 1}"], 2)
                assert found[0][0].id == "first"
                assert found[1][0].id in ("first", f"n{count - 1}")
                assert all(p.metadata["n"] < 9 for p in index.search(
                    ["alpha"], 5, {"n": {"lt": 9}})[0])
        except BaseException as error:
            errors.append(error)

    def save():
        try:
            while not done.is_set():
                index.save(tmp_path / "i")
                assert load_index(tmp_path / "i", WordEncoder()).search(
                    ["unique0"], 1)[0][0].id == "first"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=target) for target in (search, search, save)]
    for thread in threads:
        thread.start()
    for i in range(1, 60):
        index.add([Passage(f"n{i}", f"unique{i} alpha", metadata={"n": i})])
    done.set()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert len(index) == 60 and index.search(["unique59"], 1)[0][0].id == "n59"
