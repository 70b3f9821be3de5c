"""``flarecore bench loop`` and ``growth``: the peers run the same loop, and what is counted."""

import json

import numpy as np
import pytest
from helpers import TinyLlama, smollm2_engine, smollm2_path, tiny_llama_path

from flarecore.bench.growth import GrowthOptions
from flarecore.bench.loop import LoopOptions
from flarecore.bench.loop_engines import PeerEngine
from flarecore.bench.questions import LoopQuestions, QuestionSource
from flarecore.bench.runner import FlareRunner
from flarecore.bench.transformers_runner import TransformersRunner
from flarecore.cli.main import main
from flarecore.config import FlareConfig
from flarecore.errors import ConfigError, UnsupportedError
from flarecore.flare import Flare
from flarecore.model import Model
from flarecore.retrieval.passage import Passage
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate

FACTS = (
    "The lighthouse of Marrow Point was built by the mason Ellen Varga in 1871.",
    "In 1924 the oil lamp of the lighthouse was replaced by an electric lamp.")
TEMPLATE = PromptTemplate.base(
    head="Answer in full sentences.\n\nQuestion: Where was Ida Holm born?\nAnswer: Ida Holm was a "
    "painter. She was born in Bergen in 1861.\n\n")
QUESTION = "When did the lighthouse of Marrow Point get an electric lamp?"


class Facts:
    def search(self, queries, k, filter=None):
        return [[Passage(str(n), text) for n, text in enumerate(FACTS)][:k] for _ in queries]


class Scripted:
    """A runner that says a text, whatever it is asked; the probability of each token is 1/2."""

    name = "scripted"

    def __init__(self, tokenizer, text):
        self.size = tokenizer.vocab_size
        self.script = [*tokenizer.encode(text), min(tokenizer.eos_token_ids)]

    def follow(self, token_ids):
        self.at = 0
        return len(token_ids), self.logits()

    def append(self, token_id):
        assert token_id == self.script[self.at]
        self.at += 1
        return self.logits()

    def logits(self):
        row = np.zeros(self.size, dtype=np.float32)
        row[self.script[self.at]] = np.log(self.size - 1)
        return row


@pytest.fixture(scope="module")
def engine():
    return smollm2_engine("float32")


@pytest.mark.parametrize("whole", [False, True])
def test_the_loop_around_a_peer_gives_the_tokens_of_ours(engine, whole):
    config = FlareConfig(theta=0.6, beta=0.4, k=2, max_new_tokens=24, max_draft_tokens=24,
                         template=TEMPLATE, speculative=False)
    runner = TransformersRunner(smollm2_path(), 2)
    peer = PeerEngine(runner, engine.model, whole_drafts=whole)
    ours = Flare(engine, Facts(), config).generate(QUESTION)
    theirs = Flare(peer, Facts(), config).generate(QUESTION)
    assert theirs.token_ids == ours.token_ids and theirs.text == ours.text
    assert [s.text for s in theirs.sentences] == [s.text for s in ours.sentences]
    assert ours.stats.num_retrievals > 0
    assert theirs.stats.num_retrievals == ours.stats.num_retrievals
    # A cache-free peer computes every context anew.
    assert theirs.stats.num_prefilled > ours.stats.num_prefilled
    assert theirs.stats.num_reused == 0


@pytest.mark.parametrize("text, stop, whole, expected, reason, decoded", [
    ("One is here. Two is there. Three", (), False, "One is here.", "sentence", None),
    ("One is here. Two is there. Three", (), True, "One is here.", "sentence", 9),
    ("One is here", (), False, "One is here", "eos", None),
    ("One is here\nQ: no", ("\nQ:",), False, "One is here", "stop_string", None),
    ("One is here and goes on and on and on and on and on and on", (), False, None, "max_tokens",
     12),
])
def test_a_request_ends_where_a_sentence_of_ours_does(
    engine, text, stop, whole, expected, reason, decoded
):
    runner = Scripted(engine.tokenizer, text)
    sequence = PeerEngine(runner, engine.model, whole_drafts=whole).sequence()
    result = sequence.regenerate_async(
        engine.tokenizer.encode("So:"), max_tokens=12, stop=stop).result()
    if expected is not None:
        assert result.text.strip() == expected.strip()
    assert result.stop_reason == reason
    assert np.allclose(result.probs, 0.5, atol=1e-4)
    assert len(result.probs) == len(result.token_ids)
    if decoded is not None:
        assert result.stats.num_decoded == decoded
    assert sequence.token_ids[-len(result.token_ids):] == list(result.token_ids)


def test_a_peer_refuses_what_it_cannot_do_and_stays_as_it_was(engine):
    sequence = PeerEngine(Scripted(engine.tokenizer, "No."), engine.model,
                          whole_drafts=False).sequence()
    with pytest.raises(UnsupportedError):
        sequence.regenerate_async([5], max_tokens=3, sampling=SamplingParams(temperature=1.0))
    with pytest.raises(UnsupportedError):
        sequence.regenerate_async([5], max_tokens=3, stop_below=0.5)
    assert sequence.num_tokens == 0
    with pytest.raises(ConfigError):
        sequence.decode_async(3)
    with pytest.raises(UnsupportedError, match="does not follow texts"):
        FlareRunner(engine.model, "float32").follow([1])


def test_questions_of_a_folder(tmp_path):
    (tmp_path / "corpus.jsonl").write_text(
        "\n".join(json.dumps({"id": str(n), "title": "t", "text": text})
                  for n, text in enumerate(FACTS)), encoding="utf-8")
    queries = tmp_path / "queries.jsonl"
    queries.write_text(json.dumps({"id": "1", "question": QUESTION, "answers": ["1924"]}) + "\n",
                       encoding="utf-8")
    questions = LoopQuestions.open(QuestionSource(tmp_path))
    assert list(questions.questions) == [QUESTION]
    assert questions.retriever.search(["electric lamp"], 1)[0][0].text == FACTS[1]
    assert questions.template.head
    queries.write_text("{}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1"):
        LoopQuestions.open(QuestionSource(tmp_path))


@pytest.mark.parametrize("make", [
    lambda: LoopOptions(num_questions=0), lambda: LoopOptions(num_slow_questions=0),
    lambda: GrowthOptions(answer_tokens=()), lambda: GrowthOptions(answer_tokens=(-1,)),
    lambda: GrowthOptions(evidence_tokens=0)])
def test_sizes_out_of_range_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def rows_of(capsys, *arguments):
    assert main(["bench", *arguments, "--peers", "none", "--rounds", "1", "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_loop_rows(capsys, monkeypatch):
    monkeypatch.setattr("flarecore.bench.machine._LARGE_BYTES", 1 << 20)
    rows = rows_of(capsys, "loop", "--questions", "1", "--tokens", "4")
    names = [row["engine"] for row in rows]
    assert names == ["flarecore prefix", "flarecore prefix, no proposals", "flarecore boundary",
                     "flarecore parallel", "flarecore parallel, kept passages"]
    for row in rows:
        values = row["values"]
        assert values["num_sentences"] > 0 and row["seconds"]["median"] > 0
        assert values["seconds_per_token"] * values["tokens_per_sentence"] == pytest.approx(
            row["seconds"]["median"])
    with_proposals, without = rows[0]["values"], rows[1]["values"]
    assert without["accepted_per_token"] == 0
    assert with_proposals["decoded_per_token"] <= without["decoded_per_token"]
    # What was kept is not encoded again.
    assert rows[4]["values"]["prefilled_per_token"] < rows[3]["values"]["prefilled_per_token"]


def test_a_retrieval_at_the_boundary_costs_the_same_however_long_the_answer(capsys, monkeypatch):
    monkeypatch.setattr("flarecore.bench.machine._LARGE_BYTES", 1 << 20)
    model = str(tiny_llama_path(TinyLlama(tensor_type="Q4_1", context_length=4096)))
    rows = rows_of(capsys, "growth", "--model", model, "--answers", "0,64,256")
    prefilled = {(row["engine"], row["params"]["answer_tokens"]): row["values"]["num_prefilled"]
                 for row in rows}
    for placement in ("boundary", "parallel"):
        at = [prefilled[f"flarecore {placement}", n] for n in (64, 256)]
        assert at[0] == at[1]
    assert prefilled["flarecore prefix", 256] == prefilled["flarecore prefix", 64] + 192


def test_follow_keeps_the_common_prefix():
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: [bench]")
    from flarecore.bench.peers import open_peer

    path = tiny_llama_path(TinyLlama(tensor_type="Q4_1", context_length=512))
    model = Model.load(str(path), threads=1)
    runner = open_peer("llama", model.path, 1)
    try:
        runner.open_text(256)
        first = runner.follow([1, 5, 6, 7])
        again = runner.follow([1, 5, 6, 8, 9])
        assert (first[0], again[0]) == (4, 2)
        appended = runner.append(10).copy()
        assert runner.follow([1, 5, 6, 8, 9, 10])[0] == 1
        fresh = runner.follow([2, 5, 6, 8, 9, 10])
        assert fresh[0] == 6
        assert np.allclose(runner.follow([1, 5, 6, 8, 9, 10])[1], appended, atol=1e-3)
    finally:
        runner.close()
