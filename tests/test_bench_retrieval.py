"""``flarecore bench retrieval``: what is proven of the indexes, and what the rows say."""

import json

import pytest
from helpers import TinyLlama, tiny_llama_path
from helpers_retrieval import WordEncoder

from flarecore.bench import retrieval
from flarecore.bench.aims import aims
from flarecore.bench.harness import Quantiles, run_rounds
from flarecore.bench.machine import describe_machine
from flarecore.bench.proofs import ProofError
from flarecore.bench.retrieval import RetrievalOptions, asks_before, own_asks, question_case
from flarecore.bench.retrieval_indexes import Indexes, lowest_cosine, prove, shared
from flarecore.bench.rows import Report, Row
from flarecore.cli.main import main
from flarecore.errors import ConfigError
from flarecore.retrieval import ExactRetriever, HnswRetriever, Passage

STATES = ["one question after the other", "right after decoding"]
QUESTIONS = [f"word{n} word{n + 1} word{3 * n}" for n in range(20)]


def passages(count, offset=0):
    return [Passage(str(n), f"word{n % 50 + offset} word{n % 7} text{n}") for n in range(count)]


@pytest.fixture(scope="module")
def indexes():
    return Indexes.build(passages(2100), WordEncoder())


def test_passages_are_embedded_once_and_known_questions_too():
    encoder = WordEncoder()
    built = Indexes.build(passages(40), encoder)
    assert encoder.num_texts == 40
    for count in (1, 2):
        prove(built, QUESTIONS, 3)
        # The index that embeds does so each time, the others together once.
        assert encoder.num_texts == 40 + len(QUESTIONS) * (1 + count)
    assert not built.uses_graph, "so few passages need no graph"


def test_the_graph_is_held_against_exact_search(indexes):
    recall, proof = prove(indexes, QUESTIONS, 5)
    assert indexes.uses_graph and recall >= 0.95
    assert f"{round(recall * 100)} of the 100 passages" in proof
    assert list(own_asks(indexes, 5)) == [
        "flarecore embedding + HNSW", "flarecore embedding", "flarecore exact search",
        "flarecore HNSW"]


def test_a_graph_that_finds_too_little_is_refused(indexes):
    encoder = WordEncoder()
    # The oracle knows half as much again: what the graph does not hold counts as not found.
    exact = ExactRetriever.build(passages(2100) + [
        Passage(f"new {p.id}", p.text) for p in passages(1000)], encoder)
    with pytest.raises(ProofError, match="of the 5 best passages"):
        prove(Indexes(encoder, indexes.whole, indexes.hnsw, exact), QUESTIONS, 5)


def test_other_passages_with_a_known_vector_are_refused(indexes):
    encoder = WordEncoder()
    other = HnswRetriever.build(passages(300, offset=1), encoder)
    with pytest.raises(ProofError, match="its vector known"):
        prove(Indexes(encoder, other, indexes.hnsw, indexes.exact), QUESTIONS, 5)


def test_what_another_index_shares_with_the_exact_one(indexes):
    assert shared(indexes.hnsw, indexes.exact, QUESTIONS, 5) >= 0.95
    half = ExactRetriever.build(passages(2100)[::2], WordEncoder())
    assert 0.2 < shared(half, indexes.exact, QUESTIONS, 5) < 0.8
    assert lowest_cosine(WordEncoder(), WordEncoder(), QUESTIONS) == pytest.approx(1.0)


def test_vectors_of_8_bits_that_are_too_far_away_are_refused(capsys, monkeypatch):
    monkeypatch.setattr(retrieval, "lowest_cosine", lambda *_: 0.99)
    code, rows, err = bench(capsys, monkeypatch, "--peers", "none")
    assert code == 1 and rows == [] and "by 8-bit and by float32 weights is 0.990000" in err


def test_every_run_asks_the_next_question_behind_others():
    asked, told = [], []
    before = asks_before(QUESTIONS[:4], told.append)
    run_rounds([question_case("q", QUESTIONS[:3], asked.append, before)], 4, warmup=1, settle_s=0)
    assert asked == [QUESTIONS[n] for n in (0, 1, 2, 0, 1)]
    assert told[:3] == [QUESTIONS[n] for n in (3, 2, 1)] and len(told) == 15


def bench(capsys, monkeypatch, *arguments):
    monkeypatch.setattr("flarecore.bench.machine._LARGE_BYTES", 1 << 20)
    model = tiny_llama_path(TinyLlama(tensor_type="Q4_1", context_length=512))
    code = main(["bench", "retrieval", "--model", str(model), "--threads", "1", "--rounds", "2",
                 "--questions", "2", "--k", "3", "--json", *arguments])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def test_rows(capsys, monkeypatch):
    pytest.importorskip("transformers", reason="the peer")
    code, rows, err = bench(capsys, monkeypatch, "--peers", "transformers")
    assert code == 0
    assert "embedding passages: " in err, "nothing showed that the index was being built"
    # Named after what was run: so few passages have no graph.
    engines = ["flarecore embedding + exact search", "flarecore embedding",
               "flarecore q8 embedding + exact search", "flarecore q8 embedding",
               "transformers float32 embedding", "flarecore exact search"]
    num_passages = rows[0]["params"]["passages"]
    assert [(row["case"], row["engine"]) for row in rows] == [
        (f"{state}, {num_passages} passages", engine) for state in STATES for engine in engines]
    for row in rows:
        # As many samples as rounds times questions, whose quantiles they are.
        assert row["rounds"] == 4 and row["params"]["k"] == 3
        assert row["params"]["encoder"] == "minilm-l6-v2"
        assert 0 < row["seconds"]["p20"] <= row["seconds"]["median"] <= row["seconds"]["p80"]
    recalls = [row["values"].get("recall") for row in rows[:6]]
    assert recalls[2] is not None and 0.6 <= recalls.pop(2) <= 1.0
    assert recalls == [1.0, None, None, None, 1.0]
    own, peer = rows[1], rows[4]
    assert own["ratios"][peer["engine"]]["median"] == peer["values"]["flarecore_is_faster"]
    assert "cosine" in own["proofs"][-1] and "8-bit weights: cosine" in own["proofs"][-2]
    assert "with the same scores" in own["proofs"][-3]
    assert "too few for a graph" in own["notes"][-1] and own["params"]["graph"] == 0


def test_nothing_is_timed_when_the_graph_is_wrong(capsys, monkeypatch):
    def wrong(*_):
        raise ProofError("nothing is timed until this is repaired")

    monkeypatch.setattr(retrieval, "prove", wrong)
    code, rows, err = bench(capsys, monkeypatch, "--peers", "none")
    assert code == 1 and rows == [] and "nothing is timed" in err


@pytest.mark.parametrize("options", [{"num_questions": 0}, {"k": 0}])
def test_sizes_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match="must be >= 1"):
        RetrievalOptions(**options)


@pytest.mark.parametrize(("num_passages", "graph", "milliseconds", "met"), [
    (6119, 1, 3.0, [True]), (6119, 1, 3.1, [False]), (6118, 1, 2.0, []), (7000, 0, 2.0, [])])
def test_the_aim_is_for_a_whole_corpus(num_passages, graph, milliseconds, met):
    rows = [Row("retrieval", STATES[0], engine, {"passages": num_passages, "graph": graph},
                Quantiles(*[milliseconds / 1e3] * 3), 7)
            for engine in ("flarecore embedding + HNSW", "flarecore exact search")]
    report = Report("retrieval", "m", "Q4_1", describe_machine(1), rows, (), ())
    assert [aim.is_met for aim in aims([report])] == met


def test_the_aims_tell_the_encoders_apart():
    rows = [Row("retrieval", STATES[0], engine, {"passages": 6119, "graph": 1},
                Quantiles(0.002, 0.002, 0.002), 7)
            for engine in ("flarecore embedding + HNSW", "flarecore q8 embedding + HNSW")]
    found = aims([Report("retrieval", "m", "Q4_1", describe_machine(1), rows, (), ())])
    assert [("float32" in aim.what, "8-bit weights" in aim.what) for aim in found] == [
        (True, False), (False, True)]
