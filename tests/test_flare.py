"""The face of the loop: options for one request, what is refused, what is left of an answer."""

from __future__ import annotations

import asyncio
import importlib

import pytest
from scripted_model import FakeClock, Lists, Say, ScriptedEngine, ScriptedRetriever, passages
from test_controller import LOW, PAPER

import flarecore
from flarecore.config import FlareConfig
from flarecore.engine import Engine
from flarecore.errors import (
    CancelledError,
    ClosedError,
    ConfigError,
    OutOfBlocksError,
    RetrievalError,
    UnsupportedError,
)
from flarecore.events import SentenceAccepted
from flarecore.flare import Flare
from flarecore.methods import make_method
from flarecore.trace import Trace


def story():
    return Lists([Say(" One."), Say(" In 1913.", low=LOW), Say(" Three."), Say(stop="eos")],
                 [Say(" In 1912.")])


def make(script, retriever=None, *, clock=None, **options):
    engine = ScriptedEngine(script)
    options = {"template": PAPER, "initial_retrieval": False} | options
    return engine, Flare(engine, retriever or ScriptedRetriever(passages("P.")),
                         FlareConfig(**options), clock=clock or FakeClock())


# ---- replace ----


def test_replace_changes_options_and_shares_the_rest():
    engine, flare = make(story(), k=2)
    other = flare.replace(max_sentences=1, deadline_ms=100)
    assert type(other) is Flare
    assert other.config == FlareConfig(
        template=PAPER, initial_retrieval=False, k=2, max_sentences=1, deadline_ms=100.0)
    assert flare.config.max_sentences is None, "the first has changed"
    assert {name for name, value in vars(flare).items() if vars(other)[name] is not value} == {
        "_config", "_prompts"}
    assert other.generate("Who?").text == " One."
    assert engine.calls[0].options["deadline_ms"] == 100.0


def test_replace_checks_at_once_what_flare_checks():
    _, flare = make(story())
    with pytest.raises(ConfigError, match="unknown option 'deadline'; did you mean 'deadline_ms'"):
        flare.replace(deadline=100)
    with pytest.raises(ConfigError, match="theta must be a number"):
        flare.replace(theta=2)
    with pytest.raises(UnsupportedError, match="placement='parallel'"):
        flare.replace(placement="parallel")
    alone = Flare(ScriptedEngine(story()), None, FlareConfig(gate="never"))
    with pytest.raises(ConfigError, match="a retriever is needed"):
        alone.replace(gate=None)


def test_replace_of_a_method_takes_its_own_options_and_keeps_what_it_sets():
    engine = ScriptedEngine(None)
    retriever = ScriptedRetriever(passages("P."))
    method = make_method("previous-window", engine, retriever, window_tokens=8)
    other = method.replace(window_tokens=100, k=5)
    assert (other.name, other.own_options) == ("previous-window", {"window_tokens": 100})
    assert other.config == make_method(
        "previous-window", engine, retriever, FlareConfig(k=5), window_tokens=100).config
    assert method.own_options == {"window_tokens": 8} and method.config.k == 3
    with pytest.raises(ConfigError, match="'window_token'; did you mean 'window_tokens'"):
        method.replace(window_token=1)
    with pytest.raises(ConfigError, match=r"theta=0\.5 does not apply"):
        method.replace(theta=0.5)
    asked = make_method("marker", engine, retriever).replace(instruction="Mark it. ")
    assert "Mark it. " in engine.tokenizer.decode(asked._build("Who?", None, None)[0].token_ids)


# ---- what is left of an answer ----


def test_partial_is_the_answer_so_far_at_any_event():
    _, flare = make(story())
    with flare.stream("Who?") as stream:
        accepted = []
        assert stream.partial.text == "" and stream.partial.stats.total_ms == 0.0
        for event in stream:
            accepted += [event] if isinstance(event, SentenceAccepted) else []
            partial = stream.partial
            assert partial.sentences == tuple(accepted)
            assert partial.text == "".join(e.text for e in accepted) == partial.trace.text
            assert partial.stats.num_sentences == len(accepted)
            assert Trace.from_json(partial.trace.to_json()) == partial.trace
            assert "<html" in partial.trace.to_html()
        assert stream.partial == stream.result
        assert stream.result.text == " One. In 1912. Three."
        assert partial == stream.result, "with the last event, the answer has ended"


def test_partial_of_an_answer_that_was_left_early():
    def left(partial):
        assert (partial.text, partial.stop_reason) == (" One.", "cancelled")
        assert partial.trace.stop_reason == "cancelled"
        assert [(s.outcome, s.stop_reason) for s in partial.trace.sentences] == [
            ("draft", "sentence"), ("nothing", "cancelled")]
        assert "it was cancelled (cancelled)" in partial.trace.to_html()

    engine, flare = make(story())
    with flare.stream("Who?") as stream:
        while stream.partial.stats.num_triggers == 0:
            next(stream)
    left(stream.partial)
    engine.check_integrity()
    with pytest.raises(ConfigError, match="not finished"):
        _ = stream.result

    async def leave():
        async with flare.astream("Who?") as stream:
            while stream.partial.stats.num_triggers == 0:
                await stream.__anext__()
        return stream.partial

    engine, flare = make(story())
    left(asyncio.run(leave()))
    engine.check_integrity()


def test_partial_of_a_cancelled_task_while_an_operation_runs():
    engine, flare = make(Lists([Say(" One."), Say(" Two.", hang=True)]))
    streams = []

    async def consume():
        async with flare.astream("Who?") as stream:
            streams.append(stream)
            async for _ in stream:
                pass

    async def cancel():
        task = asyncio.create_task(consume())
        while len(engine.operations) < 2:
            await asyncio.sleep(0.001)
        assert streams[0].partial.text == " One.", "while it runs"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert (streams[0].partial.text, streams[0].partial.stop_reason) == (" One.", "cancelled")
    engine.check_integrity()


def test_partial_of_an_answer_that_failed_is_that_of_its_error():
    _, flare = make(Lists([Say(" One."), Say(error=OutOfBlocksError("full"))]))
    stream = flare.stream("Who?")
    with pytest.raises(OutOfBlocksError) as caught:
        list(stream)
    assert stream.partial is caught.value.partial
    assert (stream.partial.text, stream.partial.stop_reason) == (" One.", "error")


def test_asking_for_partial_does_not_move_the_clock():
    clock = FakeClock()

    def wait():
        clock.now += 1.0

    _, flare = make(Lists([Say(" One.", before=wait), Say(stop="eos", before=wait)]), clock=clock)
    with flare.stream("Who?") as stream:
        clock.now += 64.0  # nothing has begun
        for _ in stream:
            clock.now += 16.0
            assert stream.partial.stats.total_ms in (0.0, 1000.0, 2000.0)
        stats = stream.result.stats
    assert (stats.draft_ms, stats.other_ms) == (2000.0, 0.0)


# ---- closed engines, retrievers, names ----


class ClosedEngine(ScriptedEngine):
    is_closed = False


def test_a_closed_engine_is_refused():
    engine = ClosedEngine(story())
    flare = Flare(engine, ScriptedRetriever(passages("P.")))
    engine.is_closed = True
    with pytest.raises(ClosedError, match="the engine is closed"):
        Flare(engine, ScriptedRetriever(passages("P.")))
    with pytest.raises(ClosedError, match="the engine is closed"):
        flare.replace(k=1)


def test_an_engine_that_is_closed_meanwhile_ends_answers_with_what_there_is():
    from helpers import TinyLlama, open_engine

    assert Engine.is_closed
    engine = open_engine(TinyLlama(context_length=2048))
    flare = Flare(engine, None, FlareConfig(
        gate="never", template=PAPER, max_draft_tokens=4, max_new_tokens=1000))
    stream = flare.stream("Who?")
    while not stream.partial.sentences:
        next(stream)
    engine.close()
    with pytest.raises(ClosedError) as caught:
        list(stream)
    assert not isinstance(caught.value, (ValueError, CancelledError))
    assert caught.value.partial.text and caught.value.partial is stream.partial
    with pytest.raises(ClosedError, match="the engine is closed"):
        flare.generate("Who?")
    with pytest.raises(ClosedError, match="the engine is closed"):
        Flare(engine, None, FlareConfig(gate="never"))


def test_a_retriever_with_an_async_search_is_refused():
    class Remote:
        async def search(self, queries, k, filter=None):
            return [[] for _ in queries]

    with pytest.raises(ConfigError, match=r"Remote\.search must be a plain method.*asearch"):
        Flare(ScriptedEngine(None), Remote())


def test_what_a_retriever_raises_about_a_filter_is_wrapped():
    class Picky(ScriptedRetriever):
        def check_filter(self, filter):
            raise self.error

    for error, wanted in ((KeyError("lang"), RetrievalError), (ConfigError("no"), ConfigError)):
        _, flare = make(story(), Picky(error=error))
        with pytest.raises(wanted) as caught:
            flare.stream("Who?", filter={"lang": "en"})
        assert caught.value is error or caught.value.__cause__ is error


def test_every_name_that_is_exported_is_there_and_public_where_it_comes_from():
    for name, module in flarecore._MODULE_OF.items():
        assert getattr(flarecore, name) is getattr(importlib.import_module(module), name)
    for name in ("AnswerStream", "AsyncAnswerStream", "Candidate", "DecodeOptions", "Event",
                 "Filter", "FlareStats", "PassageTrace", "SentenceTrace", "TextEncoder",
                 "TriggerFn", "QueryFn"):
        assert name in flarecore.__all__
