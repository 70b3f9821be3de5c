"""Both drivers tell the same story, and leave nothing behind whenever they are stopped."""

from __future__ import annotations

import asyncio
import gc

import pytest
from scripted_model import FakeClock, Lists, Say, ScriptedEngine, ScriptedRetriever, passages
from test_controller import LOW, PAPER

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError, RetrievalError
from flarecore.events import DraftStarted
from flarecore.flare import Flare


class AsyncRetriever(ScriptedRetriever):
    """Offers asearch, optionally one that never answers."""

    hang = False

    async def asearch(self, queries, k, filter=None):
        await asyncio.sleep(3600 if self.hang else 0)
        return self.search(queries, k, filter)


def story():
    return Lists([Say(" One."), Say(" In 1913.", low=LOW), Say(" Three."), Say(stop="eos")],
                 [Say(" In 1912.")])


def make(script, retriever=None, **options):
    engine = ScriptedEngine(script)
    flare = Flare(engine, retriever or ScriptedRetriever(passages("P.")),
                  FlareConfig(template=PAPER, **options), clock=FakeClock())
    return engine, flare


@pytest.mark.parametrize("kind", [ScriptedRetriever, AsyncRetriever])
@pytest.mark.parametrize("placement", ["prefix", "boundary"])
def test_async_events_equal_sync_events(kind, placement):
    engine, flare = make(story(), kind(passages("P.")), placement=placement)
    with flare.stream("Who?") as stream:
        expected, answer = list(stream), stream.result

    async def collect(flare):
        async with flare.astream("Who?") as stream:
            return [event async for event in stream], stream.result

    engine, flare = make(story(), kind(passages("P.")), placement=placement)
    assert asyncio.run(collect(flare)) == (expected, answer)
    engine.check_integrity()
    engine, flare = make(story(), kind(passages("P.")), placement=placement)
    assert asyncio.run(flare.agenerate("Who?")) == answer
    engine.check_integrity()


def test_there_is_no_result_before_the_end():
    _, flare = make(story())
    stream = flare.stream("Who?")
    next(stream)
    with pytest.raises(ConfigError, match="not finished"):
        _ = stream.result
    stream.close()
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("num_events", range(13))
def test_closing_a_stream_at_any_event_leaves_nothing(num_events):
    engine, flare = make(story())
    with flare.stream("Who?") as stream:
        for _ in range(num_events):
            next(stream)
    engine.check_integrity()
    engine, flare = make(story())
    stream = flare.stream("Who?")
    for _ in range(num_events):
        next(stream)
    del stream  # dropped, not closed
    gc.collect()
    engine.check_integrity()

    async def stop_early(flare):
        async with flare.astream("Who?") as stream:
            for _ in range(num_events):
                await stream.__anext__()

    engine, flare = make(story())
    asyncio.run(stop_early(flare))
    engine.check_integrity()


@pytest.mark.parametrize("script", [
    Lists([Say(" One.", hang=True)]),
    Lists([Say(" One."), Say(" In 1913.", low=LOW)], [Say(hang=True)]),
], ids=["draft", "regenerate"])
def test_ctrl_c_while_an_operation_runs(script):
    engine, flare = make(script)
    with pytest.raises(KeyboardInterrupt):
        flare.generate("Who?")
    assert engine.operations[-1].was_cancelled
    engine.check_integrity()


@pytest.mark.parametrize("phase", ["draft", "search", "regenerate"])
def test_cancelling_the_task_while_something_runs(phase):
    script = Lists(
        [Say(" One.", hang=phase == "draft"), Say(" In 1913.", low=LOW), Say(stop="eos")],
        [Say(" In 1912.", hang=phase == "regenerate")])
    retriever = AsyncRetriever(passages("P."))
    retriever.hang = phase == "search"
    engine, flare = make(script, retriever, initial_retrieval=False)
    events = []

    async def consume():
        async for event in flare.astream("Who?"):
            events.append(event)

    async def cancel_when_stuck():
        task = asyncio.create_task(consume())
        seen = -1
        while seen != len(events) or not events:
            seen = len(events)
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_when_stuck())
    if phase != "search":
        assert engine.operations[-1].was_cancelled
    assert all(operation.done() for operation in engine.operations)
    engine.check_integrity()
    assert script.drafts or script.regenerations, "the answer was not complete"


def test_a_deadline_ends_an_asynchronous_search():
    retriever = AsyncRetriever(passages("P."))
    retriever.hang = True
    engine, flare = make(Lists([Say(" One."), Say(" In 1913.", low=LOW)]), retriever,
                         initial_retrieval=False, deadline_ms=5)
    result = asyncio.run(flare.agenerate("Who?"))
    assert (result.text, result.stop_reason) == (" One.", "deadline")
    engine.check_integrity()


@pytest.mark.parametrize("kind", [ScriptedRetriever, AsyncRetriever])
def test_an_asynchronous_search_that_raises(kind):
    engine, flare = make(Lists([]), kind(error=ValueError("odd")))
    with pytest.raises(RetrievalError, match="ValueError: odd"):
        asyncio.run(flare.agenerate("Who?"))
    engine.check_integrity()


def test_answers_of_one_object_do_not_disturb_each_other():
    def script(context, pass_index):
        name = context.split("Q: ")[-1].split("?")[0]
        done = context.endswith("never")
        if pass_index:
            return Say(f" {name} for sure.")
        return Say(f" {name} never", low={f" {name}": 0.1}) if not done and "sure" not in context \
            else Say(stop="eos")

    engine = ScriptedEngine(script)
    flare = Flare(engine, AsyncRetriever(passages("P.")), FlareConfig(
        template=PAPER, initial_retrieval=False))

    async def both():
        return await asyncio.gather(*(flare.agenerate(f"{n}?") for n in ("Ann", "Bob", "Cy")))

    assert [r.text for r in asyncio.run(both())] == [
        " Ann for sure.", " Bob for sure.", " Cy for sure."]
    engine.check_integrity()


def test_a_retriever_is_needed_only_where_it_is_used():
    engine = ScriptedEngine(Lists([Say(" One.", prob=0.1, stop="eos")]))
    with pytest.raises(ConfigError, match="a retriever is needed"):
        Flare(engine, None)
    flare = Flare(engine, None, FlareConfig(trigger="never", initial_retrieval=False))
    assert flare.generate("Who?").text == " One."
    with pytest.raises(ConfigError, match="search"):
        Flare(engine, object())
    with pytest.raises(ConfigError, match="FlareConfig"):
        Flare(engine, None, {"theta": 0.5})


def test_a_second_task_on_a_stream_is_refused():
    engine, flare = make(Lists([Say(" One.", hang=True)]))

    async def read_twice():
        stream = flare.astream("Who?")
        while not isinstance(await stream.__anext__(), DraftStarted):
            pass
        reader = asyncio.create_task(stream.__anext__())
        await asyncio.sleep(0.02)
        for second in (stream.__anext__, stream.aclose):
            with pytest.raises(ConfigError, match="another task is reading this stream"):
                await second()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await stream.aclose()

    asyncio.run(read_twice())
    engine.check_integrity()
