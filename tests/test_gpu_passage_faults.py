"""Attached passages of the GPU engine: refusals, failures and random walks leave no trace."""

import contextlib
import gc

import numpy as np
import pytest
from helpers import random_ids
from helpers_gpu import MARKS, SMALL, core_of, gpu_engine, gpu_model
from helpers_passages import PASSAGES, RESERVED, open_with, refuses_other_heads
from test_gpu_operations import BLOCK_BYTES, Gate
from test_gpu_passages import DRAWN, bits, prompt_of

from flarecore.errors import (
    CancelledError,
    ConfigError,
    ContextOverflowError,
    DeadlineExceeded,
    OutOfBlocksError,
    SequenceBusyError,
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def model():
    return gpu_model()


@pytest.fixture
def engine(model):
    with gpu_engine(model) as opened:
        yield opened
        gc.collect()
        opened.check_integrity()


# ---- refusals and failures change nothing ----

def test_wrong_calls_are_refused_and_change_nothing(engine):
    head, question = prompt_of(12)
    sequence = open_with(engine, head, question, PASSAGES[:1])
    passage = sequence.encode_passage(PASSAGES[0])
    expected, held = bits(sequence), engine.stats().num_held_blocks
    for ids, message in ((random_ids(RESERVED + 1), "reserves positions for 1 to 75"),
                         ([], "reserves positions"), ([SMALL.vocab_size], "vocabulary")):
        with pytest.raises(ConfigError, match=message):
            sequence.encode_passage(ids)
    with pytest.raises(ConfigError, match="from_token"):
        sequence.attach([passage], from_token=11)
    refuses_other_heads(engine, head, question, passage, sequence)
    with pytest.raises(ContextOverflowError, match="leave no room"):
        engine.sequence(num_head_tokens=200, num_reserved=56)
    with pytest.raises(ContextOverflowError, match="reserved positions left out"):
        sequence.extend(random_ids(150))
    assert bits(sequence) == expected
    assert engine.stats().num_held_blocks == held
    sequence.close()


def test_a_busy_sequence_and_cancelled_encoding(engine):
    head, question = prompt_of(12)
    sequence = open_with(engine, head, question, PASSAGES[:1])
    passage = sequence.encode_passage(PASSAGES[2])
    expected, held = bits(sequence), engine.stats().num_held_blocks
    with Gate(engine) as gate:
        operation = sequence.decode_async(30, **DRAWN)
        assert gate.reached.wait(60)
        for call in (lambda: sequence.attach([passage]), sequence.detach,
                     lambda: sequence.encode_passage(PASSAGES[1])):
            with pytest.raises(SequenceBusyError):
                call()
        operation.cancel()
        gate.opened.set()
        with pytest.raises(CancelledError):
            operation.result()
    with Gate(engine) as gate:
        encoding = [sequence.encode_passage_async(ids) for ids in PASSAGES]
        assert gate.reached.wait(60)
        for one in encoding:
            one.cancel()
        gate.opened.set()
        for one in encoding:
            with contextlib.suppress(CancelledError):
                one.result()
    with pytest.raises(DeadlineExceeded):
        sequence.encode_passage(PASSAGES[0], deadline_ms=0.0)
    del encoding, one
    gc.collect()
    engine.check_integrity()
    assert engine.stats().num_held_blocks == held
    assert bits(sequence) == expected
    sequence.close()


def test_encoding_without_room_leaves_everything_as_it_was(model):
    with gpu_engine(model, kv_cache_bytes=5 * BLOCK_BYTES, passage_cache_bytes=0) as engine:
        sequence = open_with(engine, *prompt_of(12))
        with pytest.raises(OutOfBlocksError):
            sequence.encode_passage(PASSAGES[2])
        engine.check_integrity()
        assert engine.stats().num_held_blocks == 1
        assert sequence.encode_passage(PASSAGES[1]).num_tokens == 1
    with gpu_engine(model, kv_cache_bytes=5 * BLOCK_BYTES,
                    passage_cache_bytes=3 * BLOCK_BYTES) as engine:
        assert engine.stats().num_blocks == 8
        assert open_with(engine, *prompt_of(12)).encode_passage(PASSAGES[2]).num_tokens == 75


def test_a_failing_copy_fails_the_operation_only(engine):
    """The worker goes on, whichever copy it was."""
    cache, head = core_of(engine)._cache, prompt_of(12)
    sequence = open_with(engine, *head, PASSAGES[:1])
    expected, held = bits(sequence), engine.stats().num_held_blocks
    copy = cache._copy_blocks

    def failing(copies):
        raise RuntimeError("no paper left")

    cache._copy_blocks = failing
    try:
        with sequence.fork() as fork:
            for call in (lambda: fork.decode(2, **DRAWN), lambda: fork.encode_passage([1, 2])):
                with pytest.raises(Exception, match="no paper left"):
                    call()
            engine.check_integrity()
    finally:
        cache._copy_blocks = copy
    assert engine.stats().num_held_blocks == held
    assert bits(sequence) == expected
    sequence.close()


# ---- random walks ----

@pytest.mark.parametrize("seed", [1])
def test_random_walk_against_descriptions(model, seed):
    """Attach, detach, fork, truncate, rollback, decode, close; then against a fresh sequence."""
    rng = np.random.default_rng(seed)
    with gpu_engine(model, deterministic=True) as engine:
        head = random_ids(37, seed=3)
        first = engine.sequence([*head, *random_ids(5)], num_head_tokens=37, num_reserved=RESERVED)
        pool = [first.encode_passage(ids) for ids in PASSAGES]
        lines = [[first, [*head, *random_ids(5)], (), 0]]
        saved, counts = [], {}
        for _ in range(50):
            line = lines[rng.integers(len(lines))]
            sequence, ids, _, _ = line
            step = rng.choice(["extend", "decode", "attach", "detach", "truncate", "fork", "save",
                               "rollback", "close", "encode"])
            counts[step] = counts.get(step, 0) + 1
            if step == "extend" and len(ids) < 90:
                more = random_ids(int(rng.integers(1, 9)), seed=int(rng.integers(3)))
                sequence.extend(more)
                ids += more
            elif step == "decode" and len(ids) < 90:
                ids += sequence.decode(int(rng.integers(1, 3)), **DRAWN).token_ids
            elif step == "attach" and len(ids) >= 37:
                chosen = rng.permutation(len(pool))[: rng.integers(1, 4)].tolist()
                line[2], line[3] = tuple(chosen), int(rng.integers(37, len(ids) + 3))
                sequence.attach([pool[i] for i in chosen], from_token=line[3])
            elif step == "detach":
                line[2], line[3] = (), 0
                sequence.detach()
            elif step == "truncate":
                del ids[int(rng.integers(37 if line[2] else 0, len(ids) + 1)) :]
                sequence.truncate(len(ids))
            elif step == "fork" and len(lines) < 5:
                lines.append([sequence.fork(), list(ids), *line[2:]])
            elif step == "save":
                saved.append((sequence.checkpoint(), list(ids), *line[2:]))
            elif step == "rollback" and saved:
                checkpoint, then, *seen = saved[rng.integers(len(saved))]
                sequence.rollback(checkpoint)
                line[1:] = [list(then), *seen]
            elif step == "close" and len(lines) > 1:
                sequence.close()
                lines = [other for other in lines if other is not line]
            elif step == "encode" and len(ids) >= 37:
                number = int(rng.integers(len(pool)))
                pool[number] = sequence.encode_passage(PASSAGES[number])
            engine.check_integrity()
            assert all(s.token_ids == known for s, known, *_ in lines)
        assert len(counts) == 10
        with gpu_engine(model, deterministic=True) as fresh:
            for sequence, ids, chosen, sees_from in lines:
                if len(ids) >= 37:
                    twin = open_with(fresh, ids[:37], ids[37:])
                    twin.attach([twin.encode_passage(PASSAGES[i]) for i in chosen],
                                from_token=max(sees_from, 37))
                    assert bits(sequence) == bits(twin)
                sequence.close()
        del pool, saved, checkpoint  # what the last rollback went to
        gc.collect()
        engine.check_integrity()
        assert engine.stats().num_held_blocks == 0
