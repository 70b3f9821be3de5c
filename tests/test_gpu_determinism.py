"""Bits of the GPU engine: alone and in a batch, with and without speculation, runs and chunks."""

import numpy as np
import pytest
from helpers import random_ids, result_bits
from helpers_gpu import MARKS, SAMPLED, gpu_engine, gpu_model, record_graphs, runner_of
from triton_env import DEVICE

from flarecore.sampling import SamplingParams

pytestmark = MARKS
IDS = random_ids(9)


@pytest.fixture(scope="module")
def model():
    return gpu_model()


def decode(engine, ids=IDS, num_tokens=10, **options):
    with engine.sequence(ids) as sequence:
        return sequence.decode(num_tokens, **{**SAMPLED, **options})


@pytest.fixture(scope="module")
def plain(model):
    with gpu_engine(model) as engine:
        yield decode(engine)


def test_speculation_changes_nothing(model, plain):
    """A right, a wrong and a half right proposal, and text to look things up in."""
    right = list(plain.token_ids)
    half = [*right[:4], (right[4] + 1) % 200, *right[5:]]
    with gpu_engine(model) as engine:
        for proposal, least in ((right, 9), (half, 4), ([1] * 8, 0)):
            out = decode(engine, proposal=proposal, lookup=right)
            assert result_bits(out) == result_bits(plain)
            assert out.stats.num_accepted >= least
        engine.check_integrity()


def test_speculation_leaves_the_same_state(model):
    """What comes after a sentence depends on the keys and values that it left."""
    options = {"until": "sentence", "sampling": SamplingParams(temperature=1.5, seed=5)}
    found = []
    with gpu_engine(model) as engine:
        for speculate in (False, True):
            with engine.sequence(IDS) as sequence:
                out = sequence.decode(12, **options)
                if speculate:
                    sequence.truncate(len(IDS))
                    guess = [*out.token_ids, 3, 4]
                    assert result_bits(sequence.decode(12, proposal=guess, **options)) == (
                        result_bits(out))
                sequence.extend(random_ids(3, seed=9))
                found.append((out.token_ids, result_bits(sequence.decode(4, **SAMPLED))))
    assert found[0] == found[1]


@pytest.mark.parametrize("steps", [2, 16])
def test_length_of_runs_changes_nothing(model, plain, steps):
    with gpu_engine(model, gpu={"steps_per_replay": steps}) as engine:
        assert result_bits(decode(engine)) == result_bits(plain)


@pytest.mark.skipif(DEVICE != "cpu", reason="a device has real graphs")
def test_graphs_replay_what_was_captured(model, plain, monkeypatch):
    """Whole replays: rows that are to do less halt, and a capture over padding leaves no trace."""
    with gpu_engine(model) as engine:
        runner = runner_of(engine)
        record_graphs(engine, monkeypatch)
        with engine.sequence(IDS) as first, engine.sequence(IDS) as second:
            operations = [first.decode_async(10, **SAMPLED), second.decode_async(3, **SAMPLED)]
            long, short = (operation.result() for operation in operations)
        assert result_bits(long) == result_bits(plain)
        assert short.token_ids == plain.token_ids[:3]
        before = runner.num_captures, runner.num_replays
        assert result_bits(decode(engine)) == result_bits(plain)
        assert before[0] == runner.num_captures >= 3 and runner.num_replays > before[1]
        engine.check_integrity()


@pytest.mark.parametrize("flags", [0, 31 - 1])
def test_the_table_of_flags_changes_nothing(model, flags):
    """Nothing halts the device: what it samples beyond begins the next decode. All does: likewise.
    """
    options = {"sampling": SamplingParams(temperature=1.5, seed=5)}
    answers, steps = [], []
    for gpu in ({"steps_per_run": 1}, {"steps_per_replay": 6, "steps_per_run": 12}):
        with gpu_engine(model, gpu=gpu) as engine, engine.sequence(IDS) as sequence:
            runner_of(engine)._token_flags.device.fill_(flags)
            answers.append([
                result_bits(sequence.decode(6, stop=["a", "e", "i"], **options)) for _ in range(2)])
            sequence.truncate(len(IDS))
            answers[-1] += [result_bits(sequence.decode(7, **options)) for _ in range(2)]
            steps.append(engine.stats().num_steps)
    assert answers[0] == answers[1]
    assert steps[1] < steps[0] or flags


def test_company_changes_nothing(model, plain):
    """Five at once, of other lengths and samplings, one speculating, give what each gives alone."""
    rng = np.random.default_rng(3)
    # Shorter than a block: a second prefill finds nothing in the cache and is cut like the first.
    jobs = [(IDS, {}), (random_ids(5, seed=1), {"sampling": SamplingParams()}),
            (random_ids(14, seed=2), {"sampling": SamplingParams(temperature=1.0, top_k=9)}),
            (random_ids(12, seed=3), {"proposal": rng.integers(0, 200, 9).tolist()}),
            (IDS[:7], {"sampling": SamplingParams(repetition_penalty=1.3)})]  # fmt: skip
    with gpu_engine(model, kv_cache_bytes=1 << 22) as engine:
        alone = [result_bits(decode(engine, ids, 5, **options)) for ids, options in jobs]
        before = engine.stats().num_steps
        sequences = [engine.sequence(ids) for ids, _ in jobs]
        operations = [sequence.decode_async(5, **{**SAMPLED, **options})
                      for sequence, (_, options) in zip(sequences, jobs, strict=True)]
        together = [result_bits(operation.result()) for operation in operations]
        assert together == alone
        assert engine.stats().num_steps - before < 5 * len(jobs), "nothing was merged"
        assert any(rows > 1 for rows in runner_of(engine)._buckets), "no run had two rows"
        for sequence in sequences:
            sequence.close()
        engine.check_integrity()


def test_a_halted_row_touches_nobody(model):
    """Its last token would need a block that it does not have, while the other row goes on."""
    with gpu_engine(model) as engine:
        jobs = [(random_ids(31, seed=6), 2), (random_ids(4, seed=7), 8)]
        alone = [result_bits(decode(engine, ids, n)) for ids, n in jobs]
        with engine.sequence(random_ids(40, seed=8)) as bystander:
            kept = bystander.score([1, 2]).probs.tobytes()
            sequences = [engine.sequence(ids) for ids, _ in jobs]
            operations = [s.decode_async(n, **SAMPLED)
                          for s, (_, n) in zip(sequences, jobs, strict=True)]
            assert [result_bits(o.result()) for o in operations] == alone
            assert bystander.score([1, 2]).probs.tobytes() == kept
            assert max(runner_of(engine)._buckets) == 2
            for sequence in sequences:
                sequence.close()


def test_deterministic_prefill(model):
    """Chunks, a warm cache and decoded instead of given tokens: the same bits with the option."""
    ids = random_ids(36, seed=4)
    found = []
    for chunk in (64, 5):
        with gpu_engine(model, deterministic=True, max_batch_tokens=chunk) as engine:
            found += [result_bits(decode(engine, ids, 2)), result_bits(decode(engine, ids, 2))]
            with engine.sequence(ids[:33]) as sequence:
                for token in ids[33:]:
                    sequence.extend([token])
                found.append(result_bits(sequence.decode(2, **SAMPLED)))
    assert len(set(found)) == 1


def test_default_prefill_is_within_the_tolerance(model):
    """Other chunks may change last bits: stated as 1e-5 of a confidence for float32."""
    ids = random_ids(40, seed=4)
    probs = []
    for options in ({"max_batch_tokens": 1024}, {"max_batch_tokens": 16}, {"deterministic": True}):
        with gpu_engine(model, **options) as engine, engine.sequence(ids) as sequence:
            probs.append(sequence.score(random_ids(4, seed=8)).probs)
    np.testing.assert_allclose(probs[1], probs[0], atol=1e-5, rtol=0)
    np.testing.assert_allclose(probs[2], probs[0], atol=1e-5, rtol=0)
