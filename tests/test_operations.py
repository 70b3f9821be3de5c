"""Operations: one at a time, cancellable, and without a trace when they fail (guarantee 5)."""

import asyncio
import contextlib
import gc
import multiprocessing
import threading
import time

import pytest
from helpers import TinyLlama, open_engine, random_ids, smollm2_engine

from flarecore.errors import (
    CancelledError,
    ConfigError,
    ContextOverflowError,
    DeadlineExceeded,
    FlarecoreError,
    SequenceBusyError,
)
from flarecore.sampling import SamplingParams

SPEC = TinyLlama(context_length=512)
DECODE = {
    "sampling": SamplingParams(temperature=1.0, seed=1),
    "until": "eos",
    "ignore_eos": True,
}


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


def bits(decoded):
    return decoded.token_ids, decoded.probs.tobytes()


def state(sequence):
    """Everything a later operation can see of a sequence."""
    with contextlib.closing(sequence.fork()) as fork:
        return sequence.token_ids, bits(fork.decode(6, **DECODE))


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


def test_cancel_after_the_end_changes_nothing(engine):
    sequence = engine.sequence(random_ids(30))
    operation = sequence.decode_async(5, **DECODE)
    result = operation.result()
    operation.cancel()
    assert bits(operation.result()) == bits(result)
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
        assert not operation.done(), "a timeout of the wait is not one of the operation"
    assert len(operation.result(timeout=60).token_ids) == 5


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


def test_closing_the_engine_cancels():
    engine = open_engine(SPEC)
    sequence = engine.sequence(random_ids(30))
    operation = close_while_running(engine, engine, sequence)
    with pytest.raises(CancelledError):
        operation.result()
    for call in (engine.sequence, lambda: sequence.extend([1]), lambda: sequence.decode(1)):
        with pytest.raises(ConfigError):
            call()
    engine.close()


def test_an_operation_keeps_its_sequence(engine):
    """Nobody else holds the sequence: the operation runs to its end all the same."""
    expected = bits(engine.sequence(random_ids(30)).decode(50, **DECODE))
    sequence = engine.sequence(random_ids(30))
    with paused(engine):
        operation = sequence.decode_async(50, **DECODE)
        del sequence
        gc.collect()
    assert bits(operation.result()) == expected
    del operation
    assert engine.stats().num_held_blocks == 0, "and it lets go of it"


# ---- asyncio ----


def test_await_on_several_loops(engine):
    async def run():
        sequences = [engine.sequence(random_ids(20, seed=i)) for i in range(4)]
        operations = [sequence.decode_async(7, **DECODE) for sequence in sequences]
        return [bits(result) for result in await asyncio.gather(*operations)]

    expected = [bits(engine.sequence(random_ids(20, seed=i)).decode(7, **DECODE)) for i in range(4)]
    assert asyncio.run(run()) == expected
    assert asyncio.run(run()) == expected


def test_await_of_a_finished_operation_and_twice(engine):
    async def run():
        operation = engine.sequence(random_ids(20)).decode_async(3, **DECODE)
        operation.result()
        return bits(await operation), bits(await operation)

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


# ---- limits ----


def test_context_overflow_changes_nothing(engine):
    sequence = engine.sequence(random_ids(500))
    before = state(sequence)
    with pytest.raises(ContextOverflowError, match=r"512"):
        sequence.extend(random_ids(13))
    with pytest.raises(ContextOverflowError):
        sequence.score(random_ids(13))
    with pytest.raises(ContextOverflowError):
        sequence.regenerate(random_ids(13), max_tokens=1)
    with pytest.raises(ContextOverflowError):
        engine.sequence(random_ids(513))
    assert state(sequence) == before


def test_decode_ends_at_the_context(engine):
    sequence = engine.sequence(random_ids(500))
    decoded = sequence.decode(100, **DECODE)
    assert decoded.stop_reason == "context_length"
    assert len(decoded.token_ids) == 12 and sequence.num_tokens == 512
    with pytest.raises(ContextOverflowError):
        sequence.decode(1, **DECODE)
    with pytest.raises(ContextOverflowError):
        sequence.extend([1])
    exact = engine.sequence(random_ids(500)).decode(12, **DECODE)
    assert bits(exact) == bits(decoded)
    assert exact.stop_reason == "max_tokens"


def test_bad_arguments(engine):
    sequence = engine.sequence(random_ids(10))
    calls = (
        lambda: sequence.extend([271]),
        lambda: sequence.extend([-1]),
        lambda: sequence.score([271]),
        lambda: sequence.score([-1]),
        lambda: sequence.decode(0),
        lambda: sequence.decode(-5),
        lambda: sequence.decode(5, until="paragraph"),
        lambda: sequence.decode(5, stop="word"),
        lambda: sequence.decode(5, proposal=[271]),
        lambda: sequence.decode(5, proposal=[-1]),
        lambda: sequence.decode(5, sampling=SamplingParams(logit_bias={271: 1.0})),
        lambda: sequence.decode(5, beta=1.5),
        lambda: sequence.regenerate([271], max_tokens=5),
        lambda: engine.sequence().decode(5),
        lambda: engine.sequence().score([1]),
        lambda: engine.sequence([271]),
        lambda: sequence.decode(5, unknown_option=1),
    )
    for number, call in enumerate(calls):
        try:
            call()
        except ConfigError as error:
            assert str(error)
        else:
            pytest.fail(f"call {number} was accepted")
    assert sequence.token_ids == random_ids(10)


def test_empty_extend_and_score(engine):
    sequence = engine.sequence(random_ids(10))
    sequence.extend([])
    assert sequence.token_ids == random_ids(10)
    scored = sequence.score([])
    assert scored.token_ids == () and scored.probs.shape == (0,)
    assert scored.min_prob == 1.0
    assert engine.sequence([]).num_tokens == 0


def test_score_leaves_the_sequence(engine):
    sequence = engine.sequence(random_ids(40))
    before = state(sequence)
    first = sequence.score(random_ids(33, seed=1), beta=1e-5)
    second = sequence.score(random_ids(33, seed=1), beta=1e-5)
    assert first.probs.tobytes() == second.probs.tobytes()
    assert (first.mask == (first.probs < 1e-5)).all() and 0 < first.mask.sum() < 33
    assert first.min_prob == first.probs.min()
    assert state(sequence) == before


def test_mask_and_minimum(engine):
    decoded = engine.sequence(random_ids(40)).decode(60, beta=0.2, **DECODE)
    assert decoded.probs.dtype == "float32" and len(decoded.probs) == 60
    assert (decoded.mask == (decoded.probs < 0.2)).all() and 0 < decoded.mask.sum() < 60
    assert decoded.min_prob == decoded.probs.min()
    none = engine.sequence(random_ids(40)).decode(60, **DECODE)
    assert not none.mask.any()


def test_statistics_count_what_was_done(engine):
    sequence = engine.sequence()
    assert sequence.extend(random_ids(100)).num_prefilled in (99, 100)
    decoded = sequence.decode(10, **DECODE)
    assert decoded.stats.num_decoded == 10
    # Only the last prompt token's row may be left over; nothing is prefilled twice.
    assert decoded.stats.num_prefilled <= 1
    assert sequence.extend(random_ids(20, seed=1)).num_prefilled <= 21


# ---- the sentence's end ----


PROMPT = "<|im_start|>user\nTell me about the city of Paris.<|im_end|>\n<|im_start|>assistant\n"


def test_sentences_join_to_the_whole():
    """Decoding sentence by sentence gives the tokens of decoding at once."""
    engine = smollm2_engine("int8")
    prompt = engine.tokenizer.encode(PROMPT, parse_special=True)
    whole = engine.sequence(prompt).decode(160, until="eos")
    for change in (False, True):
        sequence = engine.sequence(prompt)
        tokens, probs, sentences = [], b"", 0
        while len(tokens) < 60:
            decoded = sequence.decode(60, until="sentence")
            if decoded.stop_reason == "eos":
                break
            assert decoded.stop_reason == "sentence"
            tokens += decoded.token_ids
            probs += decoded.probs.tobytes()
            sentences += 1
            assert sequence.token_ids == prompt + tokens, "the looked-ahead token is in the list"
            if change:  # drops the looked-ahead token
                sequence.extend([5])
                sequence.truncate(len(prompt) + len(tokens))
        assert sentences >= 3
        assert tuple(tokens) == whole.token_ids[: len(tokens)]
        assert probs == whole.probs[: len(tokens)].tobytes()


def test_looked_ahead_token_is_not_used_for_another_draw():
    """Other sampling, another pass or a rollback must not get the token of the first decode."""
    engine = smollm2_engine("int8")
    prompt = engine.tokenizer.encode(PROMPT, parse_special=True)
    hot = SamplingParams(temperature=0.7, seed=8)
    sequence = engine.sequence(prompt)
    checkpoint = sequence.checkpoint()
    first = sequence.decode(60, sampling=hot)
    assert first.stop_reason == "sentence"
    after = prompt + list(first.token_ids)
    for options in (
        {"sampling": hot},
        {"sampling": hot, "pass_index": 1},
        {"sampling": SamplingParams(temperature=0.7, seed=9)},
        {"sampling": SamplingParams()},
    ):
        fresh = engine.sequence(after).decode(12, **options)
        assert bits(sequence.fork().decode(12, **options)) == bits(fresh), options
    at_end = sequence.checkpoint()
    second = sequence.decode(60, sampling=hot)
    sequence.rollback(at_end)
    assert bits(sequence.decode(60, sampling=hot)) == bits(second)
    sequence.rollback(checkpoint)
    assert bits(sequence.decode(60, sampling=hot)) == bits(first)


def test_end_of_text_is_not_in_the_sequence():
    engine = smollm2_engine("int8")
    prompt = engine.tokenizer.encode(
        "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\nYes.", parse_special=True
    )
    sequence = engine.sequence(prompt)
    bias = SamplingParams(logit_bias={min(engine.tokenizer.eos_token_ids): 100.0})
    decoded = sequence.decode(10, sampling=bias)
    assert decoded.stop_reason == "eos"
    assert decoded.token_ids == () and decoded.text == "" and decoded.min_prob == 1.0
    assert sequence.token_ids == prompt


def test_stop_strings():
    engine = smollm2_engine("int8")
    prompt = engine.tokenizer.encode(PROMPT, parse_special=True)
    whole = engine.sequence(prompt).decode(60, until="eos").text
    # A stop string over the border of two tokens, found from the text itself.
    begin = whole.index(" ", 20) - 2
    stop = whole[begin : begin + 5]
    sequence = engine.sequence(prompt)
    decoded = sequence.decode(60, until="eos", stop=["never in the text", stop])
    assert decoded.stop_reason == "stop_string"
    assert decoded.text == whole[: whole.index(stop)]
    kept = engine.tokenizer.decode_bytes(decoded.token_ids)
    assert decoded.text_bytes.startswith(kept) or kept.startswith(decoded.text_bytes)
    assert sequence.token_ids == prompt + list(decoded.token_ids)
    engine.check_integrity()


# ---- fork of the process ----


def _use_in_child(engine, queue):
    try:
        engine.sequence([1, 2, 3])
        queue.put("no error")
    except FlarecoreError as error:
        queue.put(type(error).__name__)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_fork_the_child_gets_an_error(engine):
    """The worker lives in the parent only: an error, no hang."""
    engine.sequence([1, 2, 3])
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_use_in_child, args=(engine, queue), daemon=True)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert queue.get() in ("ConfigError", "UnsupportedError", "FlarecoreError")
    assert engine.sequence([1, 2, 3]).num_tokens == 3
