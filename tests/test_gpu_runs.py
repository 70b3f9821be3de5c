"""Runs of decode steps: the device stops by itself where the host must look, and only there."""

import contextlib
import threading
import time

import pytest
from helpers import random_ids, result_bits
from helpers_gpu import (
    MARKS,
    RecordedGraph,
    core_of,
    gpu_engine,
    gpu_model,
    record_graphs,
    runner_of,
)
from helpers_gpu_runs import PAIRS, PROMPT, check_twin, decodes, script, waits
from triton_env import DEVICE, torch

from flarecore.errors import CancelledError
from flarecore.gpu.decode_run import DecodeRun
from flarecore.gpu.run_bucket import RunBucket, StepVariant
from flarecore.sampling import SamplingParams

pytestmark = MARKS


@pytest.fixture(scope="module")
def model():
    return gpu_model()


def test_one_wait_for_a_sentence(model):
    """Of any length; the token that was looked at begins the next one without a pass of its own."""
    next_word = PAIRS[b" A"]
    ids = [*b"It rains all day long.", next_word, *b"ll is wet?", next_word, *b"nd so!", next_word]
    ours, counts = check_twin(model, ids, 3, max_tokens=40)
    assert [out.text for out in ours] == ["It rains all day long.", " All is wet?", " And so!"]
    assert counts == [1, 1, 1]


def test_nothing_is_computed_again_after_a_false_alarm(model):
    """Abbreviations and decimals: the host looks, then the run goes on from the same state."""
    text = b"See Dr. Wu at 3.14 km. Now"
    (out,), (count,) = check_twin(model, text, 1, max_tokens=40)
    assert out.text == "See Dr. Wu at 3.14 km."
    assert count == 3, "once for each period"
    _, _, (rows,) = decodes(model, text, 1, max_tokens=40, count=lambda e: e.stats().num_rows)
    assert rows == len(out.token_ids) + 2, "the space and the letter that show the end"


def test_a_full_record_is_read_and_the_run_goes_on(model):
    text = b"abcdefghijklmnopqrst. Yes"
    gpu = {"steps_per_replay": 3, "steps_per_run": 7}
    (out,), tokens, counts = decodes(model, text, 1, gpu=gpu, max_tokens=40)
    assert out.text == "abcdefghijklmnopqrst." and counts == [4]
    (twin,), twin_tokens, _ = decodes(model, text, 1, max_tokens=40)
    assert result_bits(out) == result_bits(twin) and tokens == twin_tokens


def test_a_row_with_few_steps_ends_the_run_for_all(model):
    """Two long ones would leave it waiting: half of the rows have not stopped."""
    options = {"until": "eos", "ignore_eos": True}
    jobs = [(random_ids(5 + i, seed=i), n) for i, n in enumerate((16, 2, 16))]
    with gpu_engine(model) as engine:
        sequences = [engine.sequence(ids) for ids, _ in jobs]
        alone = [result_bits(s.fork().decode(n, **options))
                 for s, (_, n) in zip(sequences, jobs, strict=True)]  # fmt: skip
        replays = at_replay(engine, 99, list)
        operations = [s.decode_async(n, **options)
                      for s, (_, n) in zip(sequences, jobs, strict=True)]
        operations[1].result()
        num_short = len(replays)
        assert [result_bits(o.result()) for o in operations] == alone
        assert num_short < len(replays) - 2


@pytest.mark.parametrize("graphs", [False, True])
def test_penalty_and_bias_move_on_with_a_run(model, graphs, monkeypatch):
    """One row alone, then beside plain and filtered ones: what one step at a time gives."""
    settings = [
        SamplingParams(temperature=0.8, seed=9, repetition_penalty=1.9, logit_bias={5: 3, 9: -2}),
        SamplingParams(temperature=1.1, seed=2), SamplingParams(repetition_penalty=0.4),
        SamplingParams(temperature=1.3, seed=4, top_k=30, logit_bias={7: 2.5, 8: -100.0}),
    ]  # fmt: skip
    options = {"until": "eos", "ignore_eos": True}
    results = []
    for gpu in ({"steps_per_run": 1}, {}):
        with gpu_engine(model, gpu=gpu) as engine:
            if graphs:
                record_graphs(engine, monkeypatch)
            sequences = [engine.sequence(random_ids(6, seed=i)) for i in range(len(settings))]
            before = waits(engine)
            alone = sequences[0].fork().decode(5, sampling=settings[0], **options)
            count = waits(engine) - before
            operations = [s.decode_async(5, sampling=sampling, **options)
                          for s, sampling in zip(sequences, settings, strict=True)]
            results.append([result_bits(o.result()) for o in operations])
            assert results[-1][0] == result_bits(alone)
    assert results[0] == results[1] and count == 1
    assert len(set(results[0])) == len(settings)


def at_replay(engine, number, action):
    """Calls `action` when a run queues its replay of that number."""
    runner = runner_of(engine)
    replay, calls = runner.replay, []

    def counted(*args):
        calls.append(0)
        if len(calls) == number:
            action()
        return replay(*args)

    runner.replay = counted
    return calls


def test_cancel_ends_a_run(model):
    with gpu_engine(model) as engine, engine.sequence(random_ids(5)) as sequence:
        kept = result_bits(sequence.fork().decode(3))
        # By the worker, which may get there before decode_async() has returned.
        replays = at_replay(engine, 3, lambda: core_of(engine)._running[0].cancel())
        with pytest.raises(CancelledError):
            sequence.decode(120, until="eos", ignore_eos=True)
        assert len(replays) == 3
        assert sequence.num_tokens == 5 and result_bits(sequence.decode(3)) == kept
        engine.check_integrity()


def test_a_run_makes_way_for_other_work(model):
    """What comes while a run is under way does not wait for its end, and changes nothing in it."""
    options = {"until": "eos", "ignore_eos": True}
    with (gpu_engine(model) as engine, engine.sequence(random_ids(5)) as first,
          engine.sequence(random_ids(7)) as second):  # fmt: skip
        alone = [result_bits(s.fork().decode(n, **options))
                 for s, n in ((first, 18), (second, 2))]
        late, before = [], waits(engine)
        at_replay(engine, 2, lambda: late.append(second.decode_async(2, **options)))
        assert result_bits(first.decode(18, **options)) == alone[0]
        assert result_bits(late[0].result()) == alone[1]
        assert 2 <= waits(engine) - before <= 4


def test_blocks_reserved_for_steps_that_were_not_needed_come_back(model):
    with gpu_engine(model) as engine:
        block_bytes = engine.stats().block_size_bytes
    with gpu_engine(model, kv_cache_bytes=4 * block_bytes, passage_cache_bytes=0) as engine:
        script(engine, b"Ab. " * 30)
        with engine.sequence(PROMPT) as first, engine.sequence([*PROMPT, *b"Ab. "]) as second:
            operations = [s.decode_async(100) for s in (first, second)]
            assert [o.result().text for o in operations] == ["Ab.", "Ab."]
            assert engine.stats().num_held_blocks == 2
            assert first.decode(100).text == " Ab."
            assert len(first.decode(5, until="eos").token_ids) == 5
            engine.check_integrity()


@pytest.mark.skipif(DEVICE != "cpu", reason="the captures are made up")
def test_captures_of_two_engines_take_turns(model, monkeypatch):
    """A process may have one under way, and nobody may wait for the device meanwhile."""
    capturing, found = [], []

    @contextlib.contextmanager
    def capture(graph, **options):
        capturing.append(graph)
        time.sleep(0.05)
        found.append(len(capturing))
        yield
        capturing.remove(graph)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: found.append(1 + len(capturing)))
    with gpu_engine(model) as first, gpu_engine(model) as second:
        threads = []
        for runner in map(runner_of, (first, second)):
            runner._step = runner._steps = lambda *args: None
            bucket = RunBucket(1, 4, runner._forward)
            threads.append(threading.Thread(
                target=runner._graph, args=(bucket, 1, StepVariant(256, False, False))))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [1] * 4


class LateDevice:
    """Does what is queued one step at a time, whenever the host asks how far it is."""

    def __init__(self, engine, monkeypatch):
        self.queue, self.num_idle, self.num_steps = [], 0, 0
        stepper = core_of(engine)._setup.stepper
        runner, wait, collect = stepper.runner, stepper._wait, DecodeRun.collect

        def steps(bucket, num_steps, variant):
            for index in range(num_steps):
                self.queue.append(lambda: runner._step(bucket, variant))
                if index >= num_steps - 2:
                    self.queue[-1] = lambda: (runner._step(bucket, variant),
                                              bucket.progress.download())  # fmt: skip

        def drain():
            while self.queue:
                self.work()
            wait()

        runner.is_cuda, runner._steps, stepper._wait = True, steps, drain
        monkeypatch.setattr(torch.cuda, "Event", lambda: self)
        monkeypatch.setattr(DecodeRun, "collect", lambda run: self.queue.append(
            lambda: collect(run)))  # fmt: skip

    def work(self):
        self.num_steps += 1
        self.queue.pop(0)()

    def record(self):
        pass

    def query(self):
        """Of an event behind all that is queued."""
        if self.queue:
            self.work()
        self.num_idle += not self.queue
        return not self.queue


@pytest.mark.skipif(DEVICE != "cpu", reason="a device is late by itself")
def test_a_device_that_works_on_while_the_host_looks(model, monkeypatch):
    """It has its next steps before it has done those it has; few are lost behind an end."""
    plain = {"max_tokens": 14, "until": "eos", "ignore_eos": True,
             "sampling": SamplingParams(temperature=1.0, seed=6)}  # fmt: skip
    text = b"It rains in Dr. Wu's vale. The"
    with gpu_engine(model) as engine, engine.sequence(PROMPT) as sequence:
        wanted = result_bits(sequence.fork().decode(**plain))
        device = LateDevice(engine, monkeypatch)
        with sequence.fork() as fork:
            assert result_bits(fork.decode(**plain)) == wanted
        assert device.num_idle == 0 and 14 <= device.num_steps <= 17
        script(engine, text)
        before = waits(engine), device.num_steps
        assert sequence.decode(60).text == "It rains in Dr. Wu's vale."
        assert waits(engine) - before[0] == 2
        num_replay = runner_of(engine).steps_per_replay
        assert device.num_steps - before[1] <= len(text) + 2 * num_replay + 2
        engine.check_integrity()
