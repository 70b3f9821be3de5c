"""Sequences of the GPU engine: the KV operations, and failures that leave nothing behind."""

import asyncio
import gc
import threading
import time

import numpy as np
import pytest
from helpers import random_ids, result_bits
from helpers_gpu import KV_VALUE_BYTES, MARKS, SMALL, core_of, gpu_engine, gpu_model

from flarecore.errors import (
    CancelledError,
    ClosedError,
    ConfigError,
    ContextOverflowError,
    DeadlineExceeded,
    FlarecoreError,
    OutOfBlocksError,
    SequenceBusyError,
)
from flarecore.sampling import SamplingParams

pytestmark = MARKS
DECODE = {"sampling": SamplingParams(temperature=1.0, seed=1), "until": "eos",
          "ignore_eos": True}  # fmt: skip
BLOCK_BYTES = 2 * SMALL.num_layers * SMALL.num_kv_heads * SMALL.head_dim * 32 * KV_VALUE_BYTES


@pytest.fixture(scope="module")
def model():
    return gpu_model()


@pytest.fixture(scope="module")
def engine(model):
    with gpu_engine(model, deterministic=True) as opened:
        yield opened
        gc.collect()
        opened.check_integrity()


def bits(sequence, num_tokens=2):
    with sequence.fork() as fork:
        return result_bits(fork.decode(num_tokens, **DECODE))


class Gate:
    """Keeps the worker in front of its next step until it is opened."""

    def __init__(self, engine):
        self.stepper = core_of(engine)._setup.stepper
        self.reached, self.opened = threading.Event(), threading.Event()

    def __enter__(self):
        step = type(self.stepper).step

        def waiting_step(parts, is_wanted):
            self.reached.set()
            assert self.opened.wait(60)
            return step(self.stepper, parts, is_wanted)

        self.stepper.step = waiting_step
        return self

    def __exit__(self, *exc):
        self.opened.set()
        del self.stepper.step


def test_random_walk_against_lists(engine):
    """Forks, rollbacks, truncations and decodes; now and then against a fresh sequence."""
    rng = np.random.default_rng(5)
    pairs = [(engine.sequence(), [])]
    saved, counts = [], {}
    for _ in range(50):
        sequence, ids = pairs[rng.integers(len(pairs))]
        step = rng.choice(["extend", "decode", "truncate", "fork", "save", "rollback", "close"],
                          p=[0.3, 0.16, 0.14, 0.12, 0.12, 0.12, 0.04])  # fmt: skip
        counts[step] = counts.get(step, 0) + 1
        if step == "extend" and len(ids) < 100:
            more = random_ids(int(rng.integers(1, 9)), seed=int(rng.integers(3)))
            sequence.extend(more)
            ids += more
        elif step == "decode" and ids:
            ids += sequence.decode(int(rng.integers(1, 5)), **DECODE).token_ids
        elif step == "truncate":
            del ids[int(rng.integers(len(ids) + 1)) :]
            sequence.truncate(len(ids))
        elif step == "fork" and len(pairs) < 5:
            pairs.append((sequence.fork(), list(ids)))
        elif step == "save":
            saved.append((sequence, sequence.checkpoint(), list(ids)))
        elif step == "rollback" and saved:
            owner, checkpoint, then = saved[rng.integers(len(saved))]
            for other, others in pairs:
                if other is owner:
                    owner.rollback(checkpoint)
                    others[:] = then
        elif step == "close" and len(pairs) > 1:
            sequence.close()
            pairs = [pair for pair in pairs if pair[0] is not sequence]
        engine.check_integrity()
        assert all(s.token_ids == i for s, i in pairs)
    assert len(counts) == 7
    sequence, ids = max(pairs, key=lambda pair: len(pair[1]))
    with gpu_engine(engine.model, deterministic=True) as fresh:
        assert bits(sequence) == bits(fresh.sequence(ids))
    for sequence, _ in pairs:
        sequence.close()
    saved.clear()
    gc.collect()
    assert engine.stats().num_held_blocks == 0


def test_prefix_of_another_sequence_is_reused(engine):
    ids = random_ids(38, seed=12)
    with engine.sequence(ids) as first:
        cold = bits(first)
        with engine.sequence() as second:
            stats = second.extend(ids)
            assert stats.num_reused == 32 and stats.num_prefilled == 5
            assert bits(second) == cold


def test_cancel_leaves_the_sequence_as_it_was(engine):
    with engine.sequence(random_ids(6)) as sequence:
        ids, before = sequence.token_ids, bits(sequence)
        with Gate(engine) as gate:
            operation = sequence.regenerate_async(random_ids(4), max_tokens=30, **DECODE)
            assert gate.reached.wait(60)
            with pytest.raises(SequenceBusyError):
                sequence.truncate(1)
            with pytest.raises(TimeoutError):
                operation.result(timeout=0.01)
            operation.cancel()
            gate.opened.set()
            with pytest.raises(CancelledError):
                operation.result()
        assert sequence.token_ids == ids and bits(sequence) == before
        engine.check_integrity()


def test_deadline(engine):
    with engine.sequence(random_ids(5)) as sequence:
        with pytest.raises(DeadlineExceeded):
            sequence.decode(9, deadline_ms=0.0, **DECODE)
        assert sequence.num_tokens == 5


def test_await_and_closing_while_it_runs(engine):
    async def ask(sequence):
        return await sequence.decode_async(2, **DECODE)

    with engine.sequence(random_ids(9)) as sequence:
        wanted = bits(sequence)
        assert result_bits(asyncio.run(ask(sequence))) == wanted
        operation = sequence.decode_async(100, **DECODE)
        sequence.close()
        with pytest.raises(CancelledError):
            operation.result()
        with pytest.raises(ClosedError, match="the sequence is closed"):
            sequence.extend([1])


def test_full_cache(model):
    """Three blocks: refused without a trace; runs shrink to what still fits."""
    with gpu_engine(model, kv_cache_bytes=3 * BLOCK_BYTES) as engine:
        with pytest.raises(OutOfBlocksError, match="3 are free"):
            engine.sequence(random_ids(120))
        sequence = engine.sequence(random_ids(90))
        before = sequence.token_ids
        with pytest.raises(OutOfBlocksError):
            sequence.decode(9, **DECODE)
        assert sequence.token_ids == before
        out = sequence.decode(7, **DECODE)
        assert len(out.token_ids) == 7 and sequence.num_tokens == 97
        sequence.close()
        engine.check_integrity()


def test_refused_requests(engine):
    with engine.sequence() as sequence:
        for call, error in (
            (lambda: sequence.decode(3), ConfigError),
            (lambda: sequence.score([1]), ConfigError),
            (lambda: sequence.extend([SMALL.vocab_size]), ConfigError),
            (lambda: sequence.extend([1] * 257), ContextOverflowError),
            (lambda: sequence.truncate(1), ConfigError),
            (lambda: sequence.regenerate([1], max_tokens=1, stop=[""]), ConfigError),
            (lambda: sequence.regenerate([1], max_tokens=1, sampling=SamplingParams(
                logit_bias={999: 1.0})), ConfigError),
            (lambda: sequence.regenerate([1], max_tokens=1, sampling=SamplingParams(
                temperature=1e39)), ConfigError),
        ):  # fmt: skip
            with pytest.raises(error):
                call()
        assert sequence.num_tokens == 0


def test_checkpoint_of_another_engine(engine, model):
    with gpu_engine(model) as other, pytest.raises(ConfigError, match="another engine"):
        engine.sequence().rollback(other.sequence([1]).checkpoint())


def test_broken_logits_fail_the_operation_only(model):
    with gpu_engine(model) as engine:
        sequence = engine.sequence(random_ids(6))
        head = core_of(engine)._setup.stepper.forward.weights.head
        kept = head.clone()
        for num_good in (0, 1):  # in the first, verified row, and within a run
            stepper = core_of(engine)._setup.stepper
            launch = stepper.runner.launch

            def breaking(requests, launch=launch, head=head):
                head.fill_(float("nan"))
                return launch(requests)

            if num_good:
                stepper.runner.launch = breaking
            else:
                head.fill_(float("nan"))
            with pytest.raises(FlarecoreError, match="NaN logits"):
                sequence.decode(6, **DECODE)
            head.copy_(kept)
            if num_good:
                del stepper.runner.launch
            assert sequence.num_tokens == 6
        assert len(sequence.decode(3, **DECODE).token_ids) == 3


def test_failing_device_is_an_error_of_the_operation(engine):
    stepper = core_of(engine)._setup.stepper

    def failing(parts, is_wanted):
        raise RuntimeError("out of paper")

    with engine.sequence(random_ids(6)) as sequence:
        stepper.step = failing
        try:
            with pytest.raises(FlarecoreError, match="the forward pass failed: out of paper"):
                sequence.decode(6, **DECODE)
        finally:
            del stepper.step
        assert len(sequence.decode(1, **DECODE).token_ids) == 1


def test_closed_engine(model):
    engine = gpu_engine(model)
    sequence = engine.sequence(random_ids(4))
    with Gate(engine) as gate:
        operation = sequence.decode_async(50, **DECODE)
        assert gate.reached.wait(60)
        closer = threading.Thread(target=engine.close)
        closer.start()
        gate.opened.set()
        with pytest.raises(ClosedError, match="the engine was closed"):
            operation.result()
        closer.join()
    with pytest.raises(ClosedError, match="the engine is closed"):
        sequence.extend([1])
    sequence.close()


def test_a_job_of_an_engine_that_closes_is_done(model):
    """It came while the last step ran: who waits for it would wait for ever."""
    engine = gpu_engine(model)
    core, found, threads = core_of(engine), [], []
    sequence = engine.sequence(random_ids(4))
    with Gate(engine) as gate:
        operation = sequence.decode_async(1, **DECODE)
        assert gate.reached.wait(60)
        for call, has_come in ((lambda: found.append(core._call(lambda: 7)), lambda: core._jobs),
                               (engine.close, lambda: core._is_stopping)):
            threads.append(threading.Thread(target=call, daemon=True))
            threads[-1].start()
            while not has_come():
                time.sleep(0.001)
    operation.result()
    for thread in threads:
        thread.join(60)
    assert found == [7]


def test_dropped_sequences_give_their_blocks_back(engine):
    gc.collect()
    engine.check_integrity()
    before = engine.stats().num_sequences
    sequence = engine.sequence(random_ids(5))
    operation = sequence.decode_async(1, **DECODE)
    del sequence
    assert len(operation.result().token_ids) == 1
    del operation
    gc.collect()
    engine.check_integrity()
    assert engine.stats().num_sequences == before
    assert engine.stats().num_held_blocks == 0
