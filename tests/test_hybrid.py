"""Fusion of rankings by hand, retrievers of any kind together, adding to all or none."""

import asyncio
import threading

import pytest
from helpers_retrieval import HYBRID_PASSAGES, WordEncoder, build_hybrid, ids_of
from scripted_model import FakeClock, Lists, Say, ScriptedEngine
from test_controller import PAPER

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError, RetrievalError, UnsupportedError
from flarecore.flare import Flare
from flarecore.retrieval.bm25 import BM25Retriever
from flarecore.retrieval.exact import ExactRetriever
from flarecore.retrieval.fusion import fuse
from flarecore.retrieval.hnsw import HnswRetriever
from flarecore.retrieval.hybrid import HybridRetriever
from flarecore.retrieval.passage import Passage, Retriever


class Fixed:
    """Returns given passages, and remembers what it was asked."""

    def __init__(self, *ids, **changes):
        self.passages = [Passage(i, f"text {i}", score=9.0, **changes) for i in ids]
        self.calls = []

    def search(self, queries, k, filter=None):
        self.calls.append((list(queries), k, filter))
        return [self.passages[:k] for _ in queries]


def test_fusion_by_hand():
    hybrid = HybridRetriever([Fixed("a", "b", "c"), Fixed("c", "d", "a")])
    found = hybrid.search(["q"], 10)[0]
    # a: ranks 1 and 3, c: 3 and 1, b: 2, d: 2. Equal scores: a is in the first ranking.
    assert [(p.id, p.score) for p in found] == [
        ("a", 1 / 61 + 1 / 63), ("c", 1 / 63 + 1 / 61), ("b", 1 / 62), ("d", 1 / 62)]
    assert ids_of(hybrid.search(["q", "r"], 2)) == [["a", "c"]] * 2


def test_weights_and_rank_constant():
    hybrid = HybridRetriever(
        [Fixed("a", "b"), Fixed("b", "c")], weights=[1, 3.5], rank_constant=1)
    assert [(p.id, p.score) for p in hybrid.search(["q"], 3)[0]] == [
        ("b", 1 / 3 + 3.5 / 2), ("c", 3.5 / 3), ("a", 1 / 2)]


def test_ties_go_by_best_rank_then_by_retriever():
    # x: 1/(2+1) + 1/(2+10) = 5/12; y: 1/(2+2) + 1/(2+4) = 5/12
    first = [Passage(i, "t") for i in ("x", "y")]
    second = [Passage(i, "t") for i in ("1", "2", "3", "y", "5", "6", "7", "8", "9", "x")]
    assert [p.id for p in fuse([first, second], [1, 1], 2, 2)] == ["x", "y"]
    assert [p.id for p in fuse([first[1:], [Passage("z", "t")]], [1, 1], 60, 5)] == ["y", "z"]
    assert fuse([[], []], [1, 1], 60, 5) == []


def test_a_repeat_counts_where_it_stands_first():
    twice = Fixed("a", "b", "a", "c")
    found = HybridRetriever([twice]).search(["q"], 4)[0]
    assert [(p.id, p.score) for p in found] == [("a", 1 / 61), ("b", 1 / 62), ("c", 1 / 64)]


def test_depth_and_filter_reach_every_retriever():
    parts = [Fixed("a"), Fixed("b")]
    hybrid = HybridRetriever(parts, depth=7)
    hybrid.search(["q"], 3, {"lang": "en"})
    hybrid.search(["q"], 9)
    for part in parts:
        assert part.calls == [(["q"], 7, {"lang": "en"}), (["q"], 9, None)]


@pytest.mark.parametrize("changes", [{"title": "other"}, {"metadata": {"a": 1}}])
def test_different_passages_under_one_id_are_an_error(changes):
    hybrid = HybridRetriever([Fixed("a"), Fixed("b"), Fixed("a", **changes)])
    with pytest.raises(RetrievalError, match=r"retrievers 0 and 2 .* id 'a'; build both"):
        hybrid.search(["q"], 3)


def test_a_retriever_that_fails_is_named():
    class Broken(Fixed):
        def search(self, queries, k, filter=None):
            return [[None]]

    class Raising(Fixed):
        def search(self, queries, k, filter=None):
            raise OSError("no route")

    for part, message in ((Broken(), "retriever 1: .*must be a Passage"),
                          (Raising(), "retriever 1 failed: no route")):
        hybrid = HybridRetriever([Fixed("a"), part])
        with pytest.raises(RetrievalError, match=message):
            hybrid.search(["q"], 3)
        with pytest.raises(RetrievalError, match=message):
            asyncio.run(hybrid.asearch(["q"], 3))


def test_asearch_runs_all_at_once_and_equals_search():
    barrier = threading.Barrier(2, timeout=30)

    class Waiting(Fixed):
        def search(self, queries, k, filter=None):
            if threading.current_thread() is not threading.main_thread():
                barrier.wait()  # passes only when both are searched at the same time
            return super().search(queries, k, filter)

    class Async(Fixed):
        async def asearch(self, queries, k, filter=None):
            await asyncio.sleep(0)
            self.calls.append("asearch")
            return Fixed.search(self, queries, k, filter)

    parts = [Waiting("a", "b"), Waiting("b", "c"), Async("c")]
    hybrid = HybridRetriever(parts)
    assert asyncio.run(hybrid.asearch(["q"], 3, {"x": 1})) == hybrid.search(["q"], 3, {"x": 1})
    assert parts[2].calls[0] == "asearch"
    with pytest.raises(ConfigError, match="k must be"):
        asyncio.run(hybrid.asearch(["q"], 0))


def test_answers_use_asearch():
    async def asearch(queries, k, filter=None):
        asked.append(queries)
        return await HybridRetriever.asearch(hybrid, queries, k, filter)

    asked = []
    hybrid = HybridRetriever([Fixed("a"), Fixed("b")])
    hybrid.asearch = asearch
    engine = ScriptedEngine(Lists([Say(" One."), Say(stop="eos")]))
    flare = Flare(engine, hybrid, FlareConfig(template=PAPER), clock=FakeClock())
    result = asyncio.run(flare.agenerate("Who?"))
    assert asked == [["Who?"]]
    assert [p.id for p in result.trace.initial_retrieval.passages] == ["a", "b"]


def test_cancelled_asearch_cancels_its_retrievers():
    class Hanging(Fixed):
        cancelled = False

        async def asearch(self, queries, k, filter=None):
            try:
                await asyncio.sleep(3600)
            finally:
                self.cancelled = True

    class Failing(Fixed):
        async def asearch(self, queries, k, filter=None):
            raise OSError("down")

    hanging = Hanging()

    async def search():
        with pytest.raises(RetrievalError, match="retriever 1 failed: down"):
            await HybridRetriever([hanging, Failing()]).asearch(["q"], 1)
        await asyncio.sleep(0)

    asyncio.run(search())
    assert hanging.cancelled


@pytest.mark.parametrize(("arguments", "options", "message"), [
    ([], {}, "at least one"), (3, {}, "must be a list"), (Fixed(), {}, "must be a list"),
    ([Fixed(), "x"], {}, "retriever 1 must have search"), ([Fixed], {}, "retriever 0"),
    ([Fixed()], {"weights": [1, 2]}, "weights must be 1 numbers"),
    ([Fixed()], {"weights": [0]}, "above 0"), ([Fixed()], {"weights": [True]}, "above 0"),
    ([Fixed()], {"weights": [float("nan")]}, "above 0"), ([Fixed()], {"weights": "1"}, "weights"),
    ([Fixed()], {"rank_constant": -60}, "rank_constant"), ([Fixed()], {"depth": 0}, "depth"),
])
def test_bad_arguments(arguments, options, message):
    with pytest.raises(ConfigError, match=message):
        HybridRetriever(arguments, **options)


def test_a_retriever_twice():
    part = Fixed()
    with pytest.raises(ConfigError, match="twice"):
        HybridRetriever([part, part])
    assert isinstance(HybridRetriever([part]), Retriever)


def test_build_is_bm25_and_hnsw():
    hybrid = build_hybrid()
    bm25, hnsw = hybrid.retrievers
    assert isinstance(bm25, BM25Retriever) and isinstance(hnsw, HnswRetriever)
    assert len(hybrid) == len(bm25) == len(hnsw) == 40
    for filter in (None, {"mod": 3}):
        rankings = [r.search(["X-7 shared"], 100, filter)[0] for r in hybrid.retrievers]
        assert hybrid.search(["X-7 shared"], 5, filter) == [fuse(rankings, [1, 1], 60, 5)]
    assert hybrid.search(["X-7"], 1)[0][0].id == "p7"


def test_add_is_for_all_or_none():
    class Failing(WordEncoder):
        fail = False

        def encode(self, texts):
            if self.fail:
                raise OSError("no encoder")
            return super().encode(texts)

    encoder = Failing()
    for order in (1, -1):
        parts = [BM25Retriever.build(HYBRID_PASSAGES),
                 HnswRetriever.build(HYBRID_PASSAGES, encoder), ExactRetriever(encoder)][::order]
        hybrid = HybridRetriever(parts)
        encoder.fail = True
        with pytest.raises(RetrievalError, match="no encoder"):
            hybrid.add([Passage("new", "text")])
        encoder.fail = False
        with pytest.raises(ConfigError, match="'p3' is taken"):
            hybrid.add([Passage("new", "text"), Passage("p3", "text")])
        assert [len(part) for part in parts] == [40, 40, 0][::order]
        hybrid.add(iter([Passage("new", "brandnew")]))
        assert [len(part) for part in parts] == [41, 41, 1][::order]
        assert ids_of(hybrid.search(["brandnew"], 1)) == [["new"]]


def test_progress_that_raises_after_the_passages_are_in():
    def progress(stage, done, total):
        if stage == "graph":
            raise KeyboardInterrupt

    hnsw = HnswRetriever.build([], WordEncoder(), exact_below=0)
    bm25 = BM25Retriever.build([])
    hybrid = HybridRetriever([hnsw, bm25])
    with pytest.raises(KeyboardInterrupt):
        hybrid.add(HYBRID_PASSAGES, progress=progress)
    assert len(hnsw) == len(bm25) == 40
    hybrid.add([])
    assert hybrid.search(["X-7"], 1)[0][0].id == "p7"


def test_foreign_retrievers_can_be_searched_only(tmp_path):
    hybrid = HybridRetriever([BM25Retriever.build(HYBRID_PASSAGES), Fixed("other")])
    assert {"p7", "other"} <= set(ids_of(hybrid.search(["X-7"], 5))[0])
    for use in (lambda: hybrid.add([]), lambda: hybrid.save(tmp_path / "i"), lambda: len(hybrid)):
        with pytest.raises(UnsupportedError, match="retriever 1 is a Fixed"):
            use()
    with pytest.raises(UnsupportedError, match="retriever 0 is a HybridRetriever"):
        HybridRetriever([hybrid]).save(tmp_path / "i")
    assert not list(tmp_path.iterdir())


def test_hybrids_that_share_retrievers_do_not_wait_for_each_other(tmp_path):
    parts = [BM25Retriever.build([]), ExactRetriever(WordEncoder())]
    one, other = HybridRetriever(parts), HybridRetriever(parts[::-1])

    def work(hybrid, name):
        for i in range(30):
            hybrid.add([Passage(f"{name}{i}", f"text {i}")])
            hybrid.save(tmp_path / name)

    threads = [threading.Thread(target=work, args=pair, daemon=True)
               for pair in ((one, "a"), (other, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert [len(part) for part in parts] == [60, 60]
    assert ids_of([parts[0].passages]) == ids_of([parts[1].passages])
