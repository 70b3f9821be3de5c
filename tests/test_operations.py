"""Operations: one at a time, cancellable, and without a trace when they fail (guarantee 5)."""

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import DECODE, TinyLlama, open_engine, random_ids, result_bits, state

from flarecore.errors import (
    CancelledError,
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    FlarecoreError,
    SequenceBusyError,
)

SPEC = TinyLlama(context_length=512)


@pytest.fixture
def engine():
    with open_engine(SPEC) as opened:
        yield opened
        opened.check_integrity()


class Hold:
    """Holds an engine's worker still, right after an operation has ended, while entered.

    Completion callbacks run on the worker, so one that waits stops everything behind it.
    """

    def __init__(self, operation):
        self.held, self.release = threading.Event(), threading.Event()
        self.came_late = False  # the operation was done before the callback was in place
        self.caller = threading.get_ident()
        operation._native.on_done(self.stop)

    def stop(self):
        if threading.get_ident() == self.caller:
            self.came_late = True
            return
        self.held.set()
        self.release.wait(10)

    def __enter__(self):
        assert self.held.wait(60), "the worker never came by"
        return self

    def __exit__(self, *exc):
        self.release.set()


def paused(engine):
    """A hold of the worker while nothing else runs."""
    while True:
        hold = Hold(engine.sequence([1, 2, 3]).decode_async(300, **DECODE))
        if not hold.came_late:
            return hold


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


def close_while_running(engine, closable, sequence):
    """Close from another thread while an operation runs; gives the operation."""
    about_to_close = threading.Event()

    def close():
        about_to_close.set()
        closable.close()

    closer = threading.Thread(target=close)
    with paused(engine):
        operation = sequence.decode_async(400, **DECODE)
        closer.start()
        assert about_to_close.wait(60)
        # Closing waits for the worker, which is held: nothing to wait for but a moment.
        time.sleep(0.1)
    closer.join(60)
    assert not closer.is_alive()
    return operation


def test_closing_a_busy_sequence_cancels(engine):
    sequence = engine.sequence(random_ids(30))
    operation = close_while_running(engine, sequence, sequence)
    with pytest.raises(CancelledError):
        operation.result()
    assert engine.stats().num_held_blocks == 0


def test_closing_the_engine_ends_what_runs():
    engine = open_engine(SPEC)
    sequence = engine.sequence(random_ids(30))
    assert not engine.is_closed
    operation = close_while_running(engine, engine, sequence)
    with pytest.raises(ClosedError, match="the engine was closed"):
        operation.result()
    assert engine.is_closed
    for call in (engine.sequence, engine.stats, engine.check_integrity, engine.__enter__,
                 sequence.checkpoint, sequence.fork, lambda: sequence.extend([1]),
                 lambda: sequence.decode(1), lambda: sequence.truncate(0)):
        with pytest.raises(ClosedError, match="the engine is closed"):
            call()
    assert not issubclass(ClosedError, (ValueError, CancelledError))
    sequence.close()
    engine.close()


def test_an_operation_keeps_its_sequence(engine):
    """Nobody else holds the sequence: the operation runs to its end all the same."""
    expected = result_bits(engine.sequence(random_ids(30)).decode(50, **DECODE))
    sequence = engine.sequence(random_ids(30))
    with paused(engine):
        operation = sequence.decode_async(50, **DECODE)
        del sequence
        gc.collect()
    assert result_bits(operation.result()) == expected
    del operation
    assert engine.stats().num_held_blocks == 0, "and it lets go of it"


# ---- asyncio ----


def test_await_on_several_loops(engine):
    async def run():
        sequences = [engine.sequence(random_ids(20, seed=i)) for i in range(4)]
        operations = [sequence.decode_async(7, **DECODE) for sequence in sequences]
        return [result_bits(result) for result in await asyncio.gather(*operations)]

    expected = [
        result_bits(engine.sequence(random_ids(20, seed=i)).decode(7, **DECODE)) for i in range(4)
    ]
    assert asyncio.run(run()) == expected
    assert asyncio.run(run()) == expected


def test_await_of_a_finished_operation_and_twice(engine):
    async def run():
        sequence = engine.sequence(random_ids(20))
        operation = sequence.decode_async(3, **DECODE)
        operation.result()
        return result_bits(await operation), result_bits(await operation)

    first, second = asyncio.run(run())
    assert first == second


def test_cancelling_the_task_cancels_the_operation(engine):
    sequence = engine.sequence(random_ids(30))
    before = state(sequence)

    async def run(operation):
        async def wait():
            return await operation

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with paused(engine):
        operation = sequence.decode_async(100, **DECODE)
        asyncio.run(run(operation))
    with pytest.raises(CancelledError):
        operation.result()
    assert state(sequence) == before


def test_await_raises_the_error_of_the_operation(engine):
    sequence = engine.sequence(random_ids(30))

    async def run(operation):
        return await operation

    with paused(engine):
        operation = sequence.decode_async(5, deadline_ms=1.0, **DECODE)
        time.sleep(0.01)
    with pytest.raises(DeadlineExceeded):
        asyncio.run(run(operation))


# ---- fork of the process ----


async def _awaited(operation):
    return await operation


def _use_in_child(engine, running, done, queue):
    uses = (lambda: engine.sequence([1, 2, 3]), lambda: running.result(),
            lambda: running.result(timeout=60), lambda: asyncio.run(_awaited(running)))
    for use in uses:
        try:
            use()
            queue.put("no error")
        except FlarecoreError as error:
            queue.put(type(error).__name__)
    running.cancel()
    read, awaited = done.result(), asyncio.run(_awaited(done))
    queue.put((running.done(), len(read.token_ids), len(awaited.token_ids)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_fork_the_child_gets_an_error(engine):
    """The worker lives in the parent only: an error, no hang. What is done can be read."""
    done = engine.sequence([1, 2, 3]).decode_async(4, **DECODE)
    done.result()
    sequence = engine.sequence([1, 2])
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with paused(engine):
        running = sequence.decode_async(5, **DECODE)
        child = context.Process(
            target=_use_in_child, args=(engine, running, done, queue), daemon=True)
        child.start()
        child.join(60)
    assert child.exitcode == 0
    assert [queue.get() for _ in range(4)] == ["UnsupportedError"] * 4
    assert queue.get() == (False, 4, 4)
    assert len(running.result().token_ids) == 5
    assert engine.sequence([1, 2, 3]).num_tokens == 3


def test_theta_tells_whether_a_confidence_is_below(engine):
    sequence = engine.sequence(random_ids(20))
    lowest = sequence.fork().decode(8, **DECODE).min_prob
    assert sequence.fork().decode(8, **DECODE).triggered is None
    assert sequence.fork().decode(8, theta=lowest, **DECODE).triggered is False
    above = float(np.nextafter(np.float32(lowest), np.float32(1)))
    assert sequence.fork().decode(8, theta=above, **DECODE).triggered is True


LAST_REFERENCE = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
from helpers import DECODE, TinyLlama, open_engine
for _ in range(5):
    ended = threading.Event()
    engine = open_engine(TinyLlama())
    operation = engine.sequence([1, 2, 3]).decode_async(40, **DECODE)
    kept = [engine, operation]
    operation._native.on_done(lambda kept=kept, ended=ended: (
        kept.clear(), ended.set(), time.sleep(float(sys.argv[2]))))
    del engine, operation, kept
    assert ended.wait(60)
print("all ended")
"""


@pytest.mark.parametrize("pause", ["0", "0.005", "0.01", "0.02"])
def test_the_last_reference_to_an_engine_may_go_on_its_own_thread(pause):
    """The worker cannot wait for itself; that once ended the process, at once or at its exit.

    With a pause it may still be in its callback when Python is torn down: most runs end there if
    nobody waits for it.
    """
    done = subprocess.run(
        [sys.executable, "-c", LAST_REFERENCE, str(Path(__file__).parent), pause],
        capture_output=True, text=True, env=os.environ | {
            "PYTHONPATH": str(Path(__file__).parent.parent)})
    assert done.returncode == 0 and "all ended" in done.stdout, done.stderr


@pytest.mark.parametrize("ending", ["close", "drop", "close the engine first"])
def test_a_busy_sequence_may_end_on_the_worker(ending):
    """A callback may end a sequence, and so may Python's collector wherever it happens to run."""
    engine = open_engine(SPEC)
    busy, other = [engine.sequence([1, 2])], engine.sequence()
    with paused(engine):
        first = other.extend_async([3, 4])
        operation = busy[0].decode_async(400, **DECODE)._native
        ended = threading.Event()

        def end():
            if ending == "close the engine first":
                engine.close()
            if ending == "drop":
                busy.clear()
            else:
                busy[0].close()
            ended.set()

        first._native.on_done(end)
    assert ended.wait(60), "the worker waits for itself"
    assert operation.wait(60000.0), "and nobody is told of the end of the operation"
    with pytest.raises(CancelledError):
        operation.result()
    if ending != "close the engine first":
        assert len(engine.sequence([1, 2]).decode(4, **DECODE).token_ids) == 4
        engine.check_integrity()
    engine.close()
