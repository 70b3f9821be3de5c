"""Placement ``parallel`` on the GPU engine: the loop, the cache of passages, its files."""

import gc
import threading

import numpy as np
import pytest
from helpers import TinyLlama, open_engine, random_ids, result_bits, tiny_llama_path
from helpers_gpu import GPU_DEVICE, MARKS, SMALL, gpu_engine, gpu_model
from test_gpu_operations import BLOCK_BYTES, Gate
from triton_env import DEVICE

from flarecore.config import FlareConfig
from flarecore.errors import FlarecoreError, OutOfBlocksError, PassageFileError
from flarecore.flare import Flare
from flarecore.passage_file import PassageKvFile
from flarecore.retrieval.passage import Passage
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate

pytestmark = MARKS
HEAD = random_ids(21, seed=1)
QUESTION = random_ids(9, seed=2)
PASSAGES = [random_ids(40, seed=10 + n) for n in range(5)]
DECODE = {"sampling": SamplingParams(temperature=1.0, seed=1), "until": "eos",
          "ignore_eos": True}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return gpu_model()


def open_cached(model, **options):
    engine = gpu_engine(model, **options)
    return engine, engine.sequence([*HEAD, *QUESTION], num_head_tokens=21, num_reserved=64)


# ---- the loop ----

class Fixed:
    """Two of three passages for every query, others for every other one."""

    def __init__(self):
        self.num_asked = 0

    def search(self, queries, k, filter=None):
        texts = [Passage("a", "A valley."), Passage("b", "It rains."), Passage("c", "Snow.")]
        self.num_asked += 1
        first = self.num_asked % 2
        return [texts[first : first + 2][:k] for _ in queries]


def answer(engine, **options):
    """Two sentences, each of them written again."""
    config = FlareConfig(**{
        "theta": 1.0, "beta": 0.02, "k": 2, "placement": "parallel", "recompute_tokens": 5,
        "max_draft_tokens": 5, "max_new_tokens": 10, "max_passage_tokens": 8,
        "max_evidence_tokens": 16, "template": PromptTemplate.base(head="Go: ", stop=()),
        "sampling": SamplingParams(
            temperature=1.0, seed=3, logit_bias={SMALL.vocab_size - 1: -50.0}), **options})
    return Flare(engine, Fixed(), config).generate("Why?")


def words_of(result):
    """Ids, confidences and passages of every draft and regeneration."""
    passes = [p for s in result.trace.sentences for p in (s.draft, *s.regenerations)]
    return [(p.token_ids, p.passage_ids) for p in passes], [p.probs for p in passes]


@pytest.mark.skipif(DEVICE != "cpu", reason="exact in float32, in the interpreter")
@pytest.mark.parametrize("options", [
    {}, {"recompute_tokens": None, "speculative": False}, {"recompute_tokens": 1, "theta": 0.05},
    {"evidence_policy": "keep_first", "draft_context": "last_evidence"},
    {"query": "question", "beta": 0.5, "max_new_tokens": 5, "max_query_tokens": 8}], ids=str)
def test_the_loop_gives_the_cpu_answer(model, options):
    with open_engine(SMALL) as cpu, gpu_engine(model) as gpu:
        expected, ours = answer(cpu, **options), answer(gpu, **options)
        gpu.check_integrity()
        assert gpu.stats().num_sequences == 0
    assert ours.text == expected.text and ours.token_ids == expected.token_ids
    assert ours.stop_reason == expected.stop_reason
    (ids, probs), (wanted_ids, wanted_probs) = words_of(ours), words_of(expected)
    assert ids == wanted_ids
    for mine, theirs in zip(probs, wanted_probs, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4, rtol=0)
    assert ours.trace.is_approximate and ours.trace.placement == "parallel"
    assert [[r.query for r in s.retrievals] for s in ours.trace.sentences] == [
        [r.query for r in s.retrievals] for s in expected.trace.sentences]
    assert any(s.regenerations for s in ours.trace.sentences)
    assert ours.stats.num_encoded == expected.stats.num_encoded > 0


def test_known_passages_cost_no_prefill(model):
    """Every passage is encoded once; a regeneration prefills what is recomputed only."""
    with gpu_engine(model) as engine:
        first, again = (answer(engine, recompute_tokens=1) for _ in range(2))
        assert words_of(first)[0] == words_of(again)[0]
        assert first.stats.num_encoded == engine.passages.stats().num_passages > 0
        assert again.stats.num_encoded == 0
        regenerations = [p for s in again.trace.sentences for p in s.regenerations]
        assert regenerations and not any(p.num_prefilled for p in regenerations)


def test_answers_at_once_encode_a_passage_once(model):
    with gpu_engine(model, deterministic=True) as engine:
        expected = words_of(answer(engine, max_new_tokens=5))[0]
        num_encoded = engine.passages.stats().num_encoded
        engine.passages.clear()
        results = []
        threads = [threading.Thread(target=lambda: results.append(
            words_of(answer(engine, max_new_tokens=5))[0])) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [expected] * 2
        assert engine.passages.stats().num_encoded == 2 * num_encoded
        engine.check_integrity()


# ---- the cache ----

def test_the_answer_does_not_depend_on_the_budget(model):
    found = []
    for budget, num_answers in ((0, 1), (None, 2)):
        with gpu_engine(model, deterministic=True, passage_cache_bytes=budget) as engine:
            found += [words_of(answer(engine))[0] for _ in range(num_answers)]
            gc.collect()
            kept = engine.passages.stats()
            assert kept.size_bytes <= kept.budget_bytes
            engine.check_integrity()
            assert engine.stats().num_held_blocks == kept.size_bytes // BLOCK_BYTES
    assert all(one == found[0] for one in found)


def test_a_quarter_of_the_cache_is_set_aside(model):
    with gpu_engine(model, kv_cache_bytes=8 * BLOCK_BYTES) as engine:
        assert engine.passages.stats().budget_bytes == 2 * BLOCK_BYTES
        assert engine.stats().num_blocks == 10


def test_what_is_over_the_budget_goes_before_room_is_needed(model):
    """Eight blocks: the sequence and the computation of a passage need five beside it."""
    engine, sequence = open_cached(model, kv_cache_bytes=6 * BLOCK_BYTES,
                                   passage_cache_bytes=2 * BLOCK_BYTES)
    with engine:
        cache = engine.passages
        for ids in PASSAGES:
            cache.fetch_async(sequence, ids).result()
            engine.check_integrity()
        stats = cache.stats()
        assert (stats.num_passages, stats.num_evicted) == (1, 4)
        passage = cache.get(HEAD, PASSAGES[4])
        sequence.attach([passage])
        expected = result_bits(sequence.decode(3, **DECODE))
        sequence.truncate(30)
        cache.fetch_async(sequence, PASSAGES[0]).result()
        assert cache.get(HEAD, PASSAGES[4]) is passage, "attached passages stay"
        assert result_bits(sequence.decode(3, **DECODE)) == expected
        with pytest.raises(OutOfBlocksError):
            engine.sequence(random_ids(200))
        engine.check_integrity()


# ---- files ----

def written(path, model, **options):
    """A file with two passages, and what a sequence says with them attached."""
    engine, sequence = open_cached(model, **options)
    with engine:
        passages = [engine.passages.fetch_async(sequence, ids).result().passage
                    for ids in PASSAGES[:2]]
        PassageKvFile.write(path, engine, engine.passages.passages())
        sequence.attach(passages)
        return result_bits(sequence.decode(3, **DECODE))


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_a_file_gives_the_same_bits_and_computes_nothing(model, tmp_path, compute):
    path = tmp_path / "passages.kv"
    expected = written(path, model, compute=compute)
    engine, sequence = open_cached(model, compute=compute)
    with engine:
        file = PassageKvFile.open(path, engine)
        engine.passages.attach_file(file)
        rows = engine.stats().num_rows
        found = [engine.passages.get(HEAD, ids) for ids in PASSAGES[:2]]
        assert engine.passages.get(HEAD, PASSAGES[2]) is None
        assert engine.stats().num_rows == rows and file.num_loaded == 2
        assert engine.passages.get(HEAD, PASSAGES[0]) is found[0]
        assert engine.passages.stats().num_loaded == engine.passages.stats().num_passages == 2
        sequence.attach(found)
        assert result_bits(sequence.decode(3, **DECODE)) == expected
        PassageKvFile.write(tmp_path / "again", engine, file.passages())
        assert (tmp_path / "again").read_bytes() == path.read_bytes()
        del found
        engine.passages.clear()
        sequence.close()
        gc.collect()
        engine.check_integrity()
        assert engine.stats().num_held_blocks == 0, "a file holds no blocks of the device"


def test_a_file_larger_than_the_budget_is_read_piece_by_piece(model, tmp_path):
    path = tmp_path / "passages.kv"
    engine, sequence = open_cached(model)
    with engine:
        PassageKvFile.write(path, engine, [sequence.encode_passage(ids) for ids in PASSAGES])
    engine, sequence = open_cached(model, kv_cache_bytes=2 * BLOCK_BYTES,
                                   passage_cache_bytes=4 * BLOCK_BYTES)
    with engine:
        engine.passages.attach_file(PassageKvFile.open(path, engine))
        for ids in (*PASSAGES, *PASSAGES):
            assert engine.passages.get(HEAD, ids).token_ids == ids
            engine.check_integrity()
        stats = engine.passages.stats()
        assert stats.num_loaded == 10 and stats.size_bytes <= stats.budget_bytes
        file = PassageKvFile.open(path, engine)
        PassageKvFile.write(tmp_path / "more", engine, engine.passages.passages(), extends=file)
        assert PassageKvFile.open(tmp_path / "more", engine).num_passages == 5
        with pytest.raises(OutOfBlocksError):
            file.passages()


def test_files_of_other_engines_are_refused(model, tmp_path):
    path = tmp_path / "passages.kv"
    written(path, model)
    with open_engine(SMALL) as cpu, pytest.raises(PassageFileError, match="belongs to isa"):
        PassageKvFile.open(path, cpu)
    with gpu_engine(model, compute="float16") as other, \
            pytest.raises(PassageFileError, match="belongs to compute"):
        PassageKvFile.open(path, other)
    with gpu_engine(TinyLlama(**{**vars(SMALL), "seed": 2})) as other, \
            pytest.raises(PassageFileError, match="belongs to model"):
        PassageKvFile.open(path, other)
    assert GPU_DEVICE != "cpu" and tiny_llama_path(SMALL).exists()


def test_damaged_blocks_and_wrong_sizes_leave_nothing_behind(model, tmp_path):
    path = tmp_path / "passages.kv"
    written(path, model)
    whole = bytearray(path.read_bytes())
    whole[4096 + 100] ^= 0x41
    path.write_bytes(whole)
    engine, sequence = open_cached(model)
    with engine:
        engine.passages.attach_file(PassageKvFile.open(path, engine))
        held = engine.stats().num_held_blocks
        with pytest.raises(PassageFileError, match="damaged"):
            engine.passages.get(HEAD, PASSAGES[0])
        native, mapped = engine._native, PassageKvFile.open(path, engine)._mapped
        for offset, size, head, tokens, message in (
            (0, BLOCK_BYTES - 1, HEAD, [1, 2], "takes"), (0, BLOCK_BYTES, HEAD, [], "takes"),
            (0, BLOCK_BYTES, HEAD, [10**6], "vocabulary"), (0, BLOCK_BYTES, [-1], [1], "vocab"),
            (len(whole), BLOCK_BYTES, HEAD, [1], "outside the file"),
            (-1, BLOCK_BYTES, HEAD, [1], "outside the file"),
        ):
            with pytest.raises(FlarecoreError, match=message):
                native.load_passage(mapped, offset, size, head, tokens)
        engine.check_integrity()
        assert engine.stats().num_held_blocks == held
        sequence.close()


def test_reading_a_passage_from_a_callback_of_the_worker(model):
    """It does not wait for itself."""
    engine, sequence = open_cached(model)
    with engine:
        passage = sequence.encode_passage(PASSAGES[0])
        seen = []
        has_read = threading.Event()

        def read():
            seen.append((threading.current_thread().name, passage.data.tobytes()))
            has_read.set()

        with Gate(engine):  # it cannot have ended before
            operation = sequence.decode_async(9, **DECODE)
            operation._native.on_done(read)
        operation.result()
        assert has_read.wait(60)
        assert seen == [("flarecore-gpu", passage.data.tobytes())]
