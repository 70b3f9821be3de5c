"""Operations: one at a time, cancellable, and without a trace when they fail (guarantee 5)."""

import time

import numpy as np
import pytest
from helpers import DECODE, TinyLlama, open_engine, random_ids, result_bits, state
from helpers_operations import Hold, paused

from flarecore.errors import (
    CancelledError,
    ConfigError,
    DeadlineExceeded,
    SequenceBusyError,
)

SPEC = TinyLlama(context_length=512)


def test_second_operation_is_refused(engine):
    sequence = engine.sequence(random_ids(30))
    with paused(engine):
        operation = sequence.decode_async(5, **DECODE)
        assert not operation.done()
        assert sequence.token_ids == random_ids(30), "changed before the operation has ended"
        for call in (
            lambda: sequence.extend([1]),
            lambda: sequence.decode(1),
            lambda: sequence.regenerate([1], max_tokens=1),
            lambda: sequence.score([1]),
            lambda: sequence.truncate(3),
            lambda: sequence.rollback(engine.sequence().checkpoint()),
        ):
            with pytest.raises(SequenceBusyError):
                call()
    assert len(operation.result().token_ids) == 5
    assert sequence.num_tokens == 35
    sequence.extend([1])


def test_cancel_before_it_began(engine):
    sequence = engine.sequence(random_ids(30))
    before = state(sequence)
    with paused(engine):
        operations = [sequence.decode_async(5, **DECODE)]
        operations[0].cancel()
    with pytest.raises(CancelledError):
        operations[0].result()
    assert operations[0].done()
    assert state(sequence) == before


@pytest.mark.parametrize("kind", ["extend", "decode", "proposal", "regenerate", "score"])
def test_cancel_in_the_middle(kind):
    """Cancelled after some forward passes, some of its tokens computed."""
    engine = open_engine(SPEC, max_batch_tokens=16)
    sequence = engine.sequence(random_ids(45))
    before = state(sequence)
    start = {
        "extend": lambda: sequence.extend_async(random_ids(400, seed=1)),
        "decode": lambda: sequence.decode_async(400, **DECODE),
        "proposal": lambda: sequence.decode_async(400, proposal=before[1][0], **DECODE),
        "regenerate": lambda: sequence.regenerate_async(
            random_ids(100, seed=1), max_tokens=300, **DECODE
        ),
        "score": lambda: sequence.score_async(random_ids(400, seed=1)),
    }[kind]
    mate_sequence = engine.sequence(random_ids(5))
    with paused(engine):
        operation = start()
        mate = mate_sequence.decode_async(6, **DECODE)
        rows_before = engine.stats().num_rows
        at_end_of_mate = Hold(mate)
    with at_end_of_mate:
        assert not operation.done()
        assert engine.stats().num_rows > rows_before + 6, "the operation had not begun"
        operation.cancel()
    with pytest.raises(CancelledError):
        operation.result()
    assert len(mate.result().token_ids) == 6, "a batch mate was harmed"
    engine.check_integrity()
    assert state(sequence) == before
    engine.close()


def test_a_prompt_leaves_room_for_others_to_decode():
    """Beside a decode a long prefill takes small steps, and both give what they give alone."""
    prompts = [random_ids(40), random_ids(1500, seed=1)]
    spec = TinyLlama(context_length=2048)
    with open_engine(spec) as engine:
        alone = engine.sequence(prompts[0]).decode(60, **DECODE)
        quick = engine.sequence().extend_async(prompts[1]).result()
        after = state(engine.sequence(prompts[1]))
    with open_engine(spec) as engine:
        decoding, reading = engine.sequence(prompts[0]), engine.sequence()
        with paused(engine):
            decode = decoding.decode_async(60, **DECODE)
            prefill = reading.extend_async(prompts[1])
        assert result_bits(decode.result()) == result_bits(alone)
        slow = prefill.result()
        assert state(reading) == after
    assert quick.num_steps == 6, "256 rows a step"
    assert slow.num_prefilled == quick.num_prefilled
    # One step of 256 before anybody has begun to decode, then 64 at a time.
    assert slow.num_steps >= 1 + (1500 - 256) // 64


def test_cancel_after_the_end_changes_nothing(engine):
    sequence = engine.sequence(random_ids(30))
    operation = sequence.decode_async(5, **DECODE)
    result = operation.result()
    operation.cancel()
    assert result_bits(operation.result()) == result_bits(result)
    assert sequence.num_tokens == 35


def test_deadline(engine):
    sequence = engine.sequence(random_ids(30))
    before = state(sequence)
    empty = engine.sequence()
    with paused(engine):
        operations = [
            sequence.decode_async(5, deadline_ms=1.0, **DECODE),
            empty.extend_async([1, 2], deadline_ms=1.0),
        ]
        time.sleep(0.01)
    for operation in operations:
        with pytest.raises(DeadlineExceeded):
            operation.result()
    assert state(sequence) == before and empty.token_ids == []
    assert len(sequence.decode(5, deadline_ms=60000.0, **DECODE).token_ids) == 5


def test_result_with_timeout(engine):
    sequence = engine.sequence(random_ids(30))
    with paused(engine):
        operation = sequence.decode_async(5, **DECODE)
        with pytest.raises(TimeoutError):
            operation.result(timeout=0.01)
        for nothing in (0, -1, -float("inf")):
            with pytest.raises(ConfigError if nothing < -1 else TimeoutError):
                operation.result(timeout=nothing)
        for wrong in (float("nan"), "1", 10**400):
            with pytest.raises(ConfigError, match="timeout must be a finite number"):
                operation.result(timeout=wrong)
        assert not operation.done(), "a timeout of the wait is not one of the operation"
    assert len(operation.result(timeout=float("inf")).token_ids) == 5


def test_theta_tells_whether_a_confidence_is_below(engine):
    sequence = engine.sequence(random_ids(20))
    lowest = sequence.fork().decode(8, **DECODE).min_prob
    assert sequence.fork().decode(8, **DECODE).triggered is None
    assert sequence.fork().decode(8, theta=lowest, **DECODE).triggered is False
    above = float(np.nextafter(np.float32(lowest), np.float32(1)))
    assert sequence.fork().decode(8, theta=above, **DECODE).triggered is True
