"""Attached passages of the GPU engine: the CPU engine's tokens, and the same bits in all ways."""

import gc

import numpy as np
import pytest
from helpers import PROB_TOLERANCE, open_engine, random_ids, result_bits
from helpers_cuda_module import emulate_module
from helpers_gemma import TinyGemma, tiny_gemma_path
from helpers_gpu import MARKS, SMALL, gpu_engine, gpu_model, record_graphs, runner_of
from helpers_passages import PASSAGES, RESERVED, open_with, shares_equal_prefixes
from test_gpu_operations import BLOCK_BYTES
from triton_env import DEVICE

from flarecore.errors import ConfigError
from flarecore.sampling import SamplingParams

pytestmark = MARKS
GREEDY = {"until": "eos", "ignore_eos": True}
DRAWN = {"sampling": SamplingParams(temperature=1.0, seed=5), **GREEDY}


@pytest.fixture(scope="module")
def model():
    return gpu_model()


@pytest.fixture
def engine(model):
    with gpu_engine(model) as opened:
        yield opened
        gc.collect()
        opened.check_integrity()


def prompt_of(num_head, num_question=20):
    return random_ids(num_head, seed=num_head), random_ids(num_question, seed=7)


def bits(sequence, num_tokens=2):
    with sequence.fork() as fork:
        return result_bits(fork.decode(num_tokens, **DRAWN))


# ---- the CPU engine's tokens ----

def assert_as_on_the_cpu(cpu, gpu, num_head, num_seeing, passages):
    head, question = prompt_of(num_head)
    results = []
    for engine in (cpu, gpu):
        with open_with(engine, head, question, passages, num_head + 20 - num_seeing) as sequence:
            out = sequence.decode(4, **DRAWN)
            results.append((out, sequence.score(random_ids(3, seed=9)).probs))
            engine.check_integrity()
    (expected, scored), (ours, own_scored) = results
    assert ours.token_ids == expected.token_ids
    np.testing.assert_allclose(ours.probs, expected.probs, atol=PROB_TOLERANCE, rtol=0)
    np.testing.assert_allclose(own_scored, scored, atol=PROB_TOLERANCE, rtol=0)
    return ours


@pytest.mark.skipif(DEVICE != "cpu", reason="exact in float32, in the interpreter")
@pytest.mark.parametrize(("num_head", "num_seeing"), [(0, 1), (10, 1), (32, 3), (45, 20)])
def test_decodes_what_the_cpu_decodes(engine, num_head, num_seeing):
    """Heads inside, at the end and behind a block; passages of one token up to all positions."""
    with open_engine(SMALL) as cpu:
        seeing = assert_as_on_the_cpu(cpu, engine, num_head, num_seeing, PASSAGES)
        blind = assert_as_on_the_cpu(cpu, engine, num_head, num_seeing, [])
    assert not np.allclose(seeing.probs, blind.probs, atol=1e-3), "passages must matter"


@pytest.mark.skipif(DEVICE != "cpu", reason="exact in float32, in the interpreter")
@pytest.mark.parametrize("window", [24, 90])
def test_windows_reach_into_passages_as_on_the_cpu(window):
    path = tiny_gemma_path(
        TinyGemma(num_layers=2, head_dim=16, hidden_size=32, ffn_size=48, window=window))
    with open_engine(path) as cpu, gpu_engine(path) as gpu:
        assert_as_on_the_cpu(cpu, gpu, 10, 3, PASSAGES)


@pytest.mark.skipif(DEVICE != "cpu", reason="exact in float32, in the interpreter")
def test_more_passages_than_one_group_of_splits_holds():
    """Sixteen of three blocks: the table takes its second width, the kernel joins two groups."""
    passages = [random_ids(66 + n % 9, seed=n) for n in range(16)]
    with open_engine(SMALL) as cpu, gpu_engine(SMALL) as gpu:
        assert_as_on_the_cpu(cpu, gpu, 33, 2, passages)
        assert any(128 in bucket.passages for bucket in runner_of(gpu)._buckets.values())


# ---- the same bits in all ways ----

def test_bits_do_not_depend_on_anything_else(model, engine):
    """Speculation, company, a fork, a rollback, the kind of step."""
    head, question = prompt_of(37)
    with open_with(engine, head, question, PASSAGES[:3], 45) as sequence:
        saved = sequence.checkpoint()
        first = sequence.decode(6, **DRAWN)
        sequence.rollback(saved)
        again = sequence.decode(
            6, **DRAWN, proposal=[*first.token_ids[:3], 3, *first.token_ids[4:]],
            lookup=PASSAGES[0])
        assert again.stats.num_accepted >= 3
        assert result_bits(again) == result_bits(first)
        sequence.rollback(saved)
        others = [sequence.fork(), engine.sequence(random_ids(50, seed=900))]
        operations = [one.decode_async(6, **DRAWN) for one in (sequence, *others)]
        together = [result_bits(operation.result()) for operation in operations]
        assert together[0] == together[1] == result_bits(first)
        with engine.sequence(random_ids(50, seed=900)) as alone:
            assert result_bits(alone.decode(6, **DRAWN)) == together[2]
        assert (sequence.num_head_tokens, sequence.num_reserved) == (37, RESERVED)
        for other in others:
            other.close()
        sequence.rollback(saved)
        del saved
    with gpu_engine(model, sampler="reference") as twin, \
            open_with(twin, head, question, PASSAGES[:3], 45) as sequence:
        assert sequence.decode(6, **DRAWN).token_ids == first.token_ids


def test_rows_that_see_no_passage_have_the_bits_of_a_plain_sequence(engine):
    """A gap of nothing and passages further on leave the tokens before them alone."""
    head, question = prompt_of(40)
    with open_with(engine, head, question) as sequence, sequence.fork() as fork:
        passages = [sequence.encode_passage(ids) for ids in PASSAGES]
        fork.attach(passages, from_token=63)
        ids = random_ids(3, seed=4)
        assert fork.score(ids).probs[0] == sequence.score(ids).probs[0]
        # Rows of one step, before and behind the first that sees them.
        fork.truncate(50)
        sequence.truncate(50)
        more = random_ids(16, seed=3)
        plain, seeing = sequence.score(more).probs, fork.score(more).probs
        np.testing.assert_array_equal(plain[:14], seeing[:14])
        assert (plain[14:] != seeing[14:]).all()


def test_deterministic_prefill(model):
    head, question = prompt_of(21)
    found = []
    for chunk in (64, 5):
        with gpu_engine(model, deterministic=True, max_batch_tokens=chunk) as engine, \
                open_with(engine, head, question, PASSAGES[:2], 30) as sequence:
            found += [bits(sequence), bits(sequence)]
    assert len(set(found)) == 1


@pytest.mark.skipif(DEVICE != "cpu", reason="a device has real graphs")
def test_graphs_replay_with_passages(model, monkeypatch):
    """Of plain rows and of rows with passages, one after the other and together."""
    def story(engine):
        head, question = prompt_of(10)
        with open_with(engine, head, question, PASSAGES[:2]) as sequence, \
                engine.sequence(random_ids(8)) as plain:
            found = [result_bits(one.decode(3, **DRAWN)) for one in (sequence, plain)]
            operations = [one.decode_async(4, **DRAWN) for one in (sequence, plain)]
            found += [result_bits(operation.result()) for operation in operations]
            sequence.detach()
            found.append(result_bits(sequence.decode(3, **DRAWN)))
        return found

    runs = {"steps_per_replay": 2}  # the interpreter runs every step of a replay
    with gpu_engine(model, gpu=runs) as engine:
        wanted = story(engine)
    with gpu_engine(model, gpu=runs) as engine:
        runner = runner_of(engine)
        record_graphs(engine, monkeypatch)
        assert story(engine) == wanted
        assert {variant.width for bucket in runner._buckets.values()
                for _, variant in bucket.graphs} == {0, 32}
        assert runner.num_replays > runner.num_captures


@pytest.mark.skipif(DEVICE != "cpu", reason="the emulation is of CPU tensors")
def test_passages_are_copied_by_the_module_where_it_is(model, monkeypatch):
    head, question = prompt_of(37)
    found = []
    module = emulate_module(monkeypatch)
    for ops in ("torch", "cuda"):
        module.calls.clear()
        with gpu_engine(model, sampler="triton", gpu={"device_ops": ops}) as engine, \
                open_with(engine, head, question, PASSAGES) as sequence:
            found.append(bits(sequence, 4))
        # One launch for each passage, and for the head's last block that it shares at first.
        assert (module.calls["copy_blocks"] >= 2 * len(PASSAGES)) == (ops == "cuda")
    assert found[0] == found[1]


# ---- what is shared, and what must not be ----

def test_attaching_copies_nothing_and_costs_one_row(engine):
    trunk = open_with(engine, *prompt_of(32, 31))
    passages = [trunk.encode_passage(ids) for ids in PASSAGES]
    assert [p.size_bytes for p in passages] == [BLOCK_BYTES * n for n in (2, 1, 3, 1)]
    stats = engine.stats()
    forks = [trunk.fork() for _ in range(3)]
    for fork in forks:
        fork.attach(passages)
    assert all(p.is_attached for p in passages)
    assert engine.stats().num_held_blocks == stats.num_held_blocks
    assert len({result_bits(fork.decode(1, **DRAWN)) for fork in forks}) == 1
    assert engine.stats().num_rows == stats.num_rows + len(forks)
    for fork in forks:
        fork.close()
    assert not any(p.is_attached for p in passages)
    trunk.close()
    engine.check_integrity()
    assert engine.stats().num_held_blocks == 7
    del passages
    gc.collect()
    engine.check_integrity()
    assert engine.stats().num_held_blocks == 0


def test_reattaching_the_same_keeps_what_was_computed(engine):
    with open_with(engine, *prompt_of(12), PASSAGES[:1]) as sequence:
        passages = [sequence.encode_passage(ids) for ids in PASSAGES[:2]]
        sequence.attach(passages, from_token=25)
        assert sequence.decode(2, **DRAWN).stats.num_prefilled == 6
        sequence.attach(passages, from_token=25)
        assert sequence.decode(2, **DRAWN).stats.num_prefilled == 0
        sequence.attach(passages[::-1], from_token=30)
        assert sequence.decode(2, **DRAWN).stats.num_reused == 25


def test_prefixes_are_shared_only_where_they_are_equal(engine):
    ids = [*random_ids(40, seed=40), *random_ids(40, seed=7)]

    shares_equal_prefixes(engine, ids, 64)
    # What saw passages is nobody else's.
    for _ in range(2):
        with open_with(engine, ids[:40], ids[40:], PASSAGES[:1], 40) as sequence:
            assert sequence.decode(1, **DRAWN).stats.num_reused == 40


def test_passages_outlive_their_sequence(engine, model):
    head, question = prompt_of(12)
    with open_with(engine, head, question) as sequence:
        passage = sequence.encode_passage(PASSAGES[0])
        sequence.attach([passage])
        expected = bits(sequence)
    assert (passage.num_tokens, passage.token_ids, passage.head_ids) == (40, PASSAGES[0], head)
    assert passage.data.size == passage.size_bytes == 2 * BLOCK_BYTES
    with pytest.raises(ValueError, match="read-only"):
        passage.data[0] = 1
    blocks = passage.data.view(np.float32 if DEVICE == "cpu" else np.uint16)
    blocks = blocks.reshape(2, SMALL.num_layers * 2 * SMALL.num_kv_heads, 32, SMALL.head_dim)
    assert blocks[0].any(axis=-1).all() and blocks[1, :, :8].any(axis=-1).all()
    assert not blocks[1, :, 8:].any(), "nothing foreign may stand behind the last token"
    with open_with(engine, head, question) as sequence:
        sequence.attach([passage])
        assert bits(sequence) == expected
    with gpu_engine(model) as other, open_with(other, head, question) as sequence, \
            pytest.raises(ConfigError, match="another engine"):
        sequence.attach([passage])
    with open_engine(SMALL) as cpu, open_with(cpu, head, question, PASSAGES[:1]) as sequence:
        foreign = sequence.encode_passage(PASSAGES[0])
        with open_with(engine, head, question) as own, \
                pytest.raises(ConfigError, match="another engine"):
            own.attach([foreign])
