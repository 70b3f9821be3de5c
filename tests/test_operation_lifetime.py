"""How operations end with what they belong to: sequence, engine, asyncio task, process."""

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers import DECODE, TinyLlama, open_engine, random_ids, result_bits, state
from helpers_operations import paused

from flarecore.errors import CancelledError, ClosedError, DeadlineExceeded, FlarecoreError

SPEC = TinyLlama(context_length=512)


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
