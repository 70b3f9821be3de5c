"""Answers that wait for room in a full KV cache instead of failing."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest
from helpers import TinyLlama, open_engine, random_ids

from flarecore.config import FlareConfig
from flarecore.errors import DeadlineExceeded, OutOfBlocksError
from flarecore.flare import Flare
from flarecore.loop import cache_room
from flarecore.loop.cache_room import CacheRoom
from flarecore.loop.effects import Pause
from flarecore.loop.timing import Deadline
from flarecore.retrieval.passage import Passage

SPEC = TinyLlama(context_length=512)


class Fixed:
    """Always finds the same passages."""

    def search(self, queries, k, filter=None):
        return [[Passage("a", "abc def ghi " * 3), Passage("b", "xyz " * 8)][:k] for _ in queries]


def open_with_blocks(num_blocks):
    with open_engine(SPEC) as probe:
        block = probe.stats().block_size_bytes
    return open_engine(SPEC, kv_cache_bytes=num_blocks * block)


def flare_of(engine, **options):
    defaults = {"theta": 0.9, "k": 2, "max_sentences": 3, "max_new_tokens": 60,
                "max_draft_tokens": 20, "max_evidence_tokens": 60}
    return Flare(engine, Fixed(), FlareConfig.paper(**{**defaults, **options}))


def facts(result):
    return (result.token_ids, result.stop_reason,
            [[p.probs for p in (s.draft, *s.regenerations)] for s in result.trace.sentences])


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that answers took, in order."""
    taken = []

    def pause(seconds):
        taken.append(seconds)
        return Pause(seconds)

    monkeypatch.setattr(cache_room, "Pause", pause)
    return taken


def prompts(count):
    return [random_ids(90, seed=10 + i) for i in range(count)]


def ask(flare, prompt):
    return flare.agenerate(prompt, question="who?")


@pytest.mark.parametrize("options", [
    {}, {"placement": "prefix"}, {"placement": "parallel"}, {"query": "question"}])
def test_answers_that_do_not_fit_at_once_give_what_they_give_alone(options, pauses):
    with open_engine(SPEC) as engine:
        flare = flare_of(engine, **options)
        alone = [flare.generate(p, question="who?") for p in prompts(5)]
    assert all(r.stats.num_retrievals > 0 for r in alone)
    with open_with_blocks(14) as engine:
        flare = flare_of(engine, **options)

        async def together():
            return await asyncio.gather(*(ask(flare, p) for p in prompts(5)))

        at_once = asyncio.run(together())
        assert [facts(r) for r in at_once] == [facts(r) for r in alone]
        assert pauses, "nobody had to wait"
        assert engine.stats().num_held_blocks == 0
        engine.check_integrity()


def test_blocking_answers_on_threads_wait_as_well(pauses):
    with open_engine(SPEC) as engine:
        alone = [flare_of(engine).generate(p, question="who?") for p in prompts(4)]
    with open_with_blocks(14) as engine:
        found = {}

        def write(i):
            found[i] = flare_of(engine).generate(prompts(4)[i], question="who?")

        threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [facts(found[i]) for i in range(4)] == [facts(r) for r in alone]
        assert pauses
        assert engine.stats().num_held_blocks == 0


def test_an_answer_that_never_fits_fails_at_once():
    with open_with_blocks(4) as engine:
        with pytest.raises(OutOfBlocksError) as caught:
            flare_of(engine).generate(random_ids(200), question="who?")
        assert caught.value.partial.text == ""
        assert engine.stats().num_held_blocks == 0


class Answer:
    """An answer whose only operation needs so many free blocks."""

    def __init__(self, engine, needed, limit_ms=None):
        self.engine, self.needed, self.held = engine, needed, 0
        self.room = CacheRoom(engine, self.give_back)
        self.steps = self.room.run(self.part, Deadline(limit_ms, time.monotonic, time.monotonic()))

    def part(self):
        self.room.enter()
        if self.needed > self.engine.num_free:
            raise OutOfBlocksError("full")
        self.engine.num_free -= self.needed
        self.held = self.needed
        return "done"
        yield

    def give_back(self):
        self.engine.num_free += self.held
        self.held = 0
        self.room.leave()

    def waits(self):
        """One more step; whether it is still waiting."""
        try:
            assert isinstance(next(self.steps), Pause)
        except StopIteration as end:
            assert end.value == "done"
            return False
        return True


class CountingEngine:
    """Has so many blocks in all, and says how many are free."""

    def __init__(self, num_blocks):
        self.num_blocks = self.num_free = num_blocks

    def stats(self):
        return SimpleNamespace(
            num_blocks=self.num_blocks, num_held_blocks=self.num_blocks - self.num_free)


def test_the_oldest_goes_first_and_new_ones_queue_up():
    engine = CountingEngine(10)
    first, second, third = Answer(engine, 6), Answer(engine, 6), Answer(engine, 2)
    assert not first.waits()
    assert second.waits()
    assert third.waits(), "it would fit, but another one waits already"
    assert second.waits()
    first.give_back()
    assert third.waits(), "out of turn"
    assert not second.waits()
    assert not third.waits()
    assert engine.num_free == 2


def test_one_that_waits_holds_nothing_and_goes_on_when_more_is_free():
    engine = CountingEngine(10)
    other, growing = Answer(engine, 4), Answer(engine, 5)
    assert not other.waits()
    assert not growing.waits()
    growing.needed = 6
    growing.steps = growing.room.run(growing.part, Deadline(None, time.monotonic, time.monotonic()))
    assert growing.held == 5
    assert not growing.waits(), "6 were free once it had given back its own 5"
    growing.give_back()
    growing.needed = 7
    growing.steps = growing.room.run(growing.part, Deadline(None, time.monotonic, time.monotonic()))
    assert growing.waits()
    assert growing.waits()
    assert growing.held == 0
    other.give_back()
    assert not growing.waits()


def test_alone_there_is_nobody_to_wait_for():
    engine = CountingEngine(10)
    with pytest.raises(OutOfBlocksError):
        next(Answer(engine, 11).steps)


def test_the_deadline_ends_a_wait():
    engine = CountingEngine(10)
    first, late = Answer(engine, 6), Answer(engine, 6, limit_ms=20.0)
    assert not first.waits()
    with pytest.raises(DeadlineExceeded):
        while True:
            assert late.waits()
    late.room.leave()
    third = Answer(engine, 6)
    assert third.waits()
    first.give_back()
    assert not third.waits(), "who has left the queue is waited for"
