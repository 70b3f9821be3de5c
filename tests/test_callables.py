"""Options that are callables: what they are given, checked early, and what they raise."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from scripted_model import Lists, Say, ScriptedEngine, ScriptedRetriever, passages
from test_controller import LOW, PAPER

from flarecore.callables import call_option
from flarecore.config import FlareConfig
from flarecore.errors import CallbackError, CancelledError, ConfigError
from flarecore.flare import Flare

NAMES = ("gate", "trigger", "must_retrieve", "never_retrieve", "query", "no_evidence")
# Options that let the named callable be asked for the second sentence.
ASKED = {"query": {}, "no_evidence": {"min_score": 9.0}}


class Method:
    def one(self, sentence):
        return False

    async def later(self, sentence):
        return False

    def __call__(self, sentence, more):
        return False


class Untold:
    """Tells no signature, as some builtins do: what it takes cannot be known."""

    __signature__ = "none"

    def __call__(self, first, second):
        return False


@pytest.mark.parametrize("name", NAMES)
def test_a_callable_that_cannot_take_its_argument_is_refused_early(name):
    for wrong in (lambda text, probs: True, lambda: True, lambda *, sentence: True, Method()):
        with pytest.raises(ConfigError, match=rf"^{name}: the callable must take one argument, "):
            FlareConfig(**{name: wrong})
    for wrong in (Method().later, asyncio.sleep):
        with pytest.raises(ConfigError, match=rf"^{name}: .*plain function"):
            FlareConfig(**{name: wrong})
    for right in (Method().one, lambda sentence, more=0: True, lambda *all: True, bool, Untold()):
        assert getattr(FlareConfig(**{name: right}), name) == right


def raising(error):
    def rule(argument):
        if argument is None or isinstance(argument, str) or argument.sentence_index == 1:
            raise error
        return False
    return rule


def answer(name, error, *, is_async=False):
    engine = ScriptedEngine(Lists([Say(" One."), Say(" In 1913.", low=LOW)], [Say(" In 1912.")]))
    flare = Flare(engine, ScriptedRetriever(passages("P.")), FlareConfig(
        template=PAPER, initial_retrieval=False, **{name: raising(error)}, **ASKED.get(name, {})))
    try:
        return asyncio.run(flare.agenerate("Who?")) if is_async else flare.generate("Who?")
    finally:
        engine.check_integrity()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_callable_raises_is_wrapped_with_its_cause(name, is_async):
    for error in (ValueError("odd"), ConfigError("mine")):
        with pytest.raises(CallbackError, match=rf"^{name}: .*raising.* raised ") as caught:
            answer(name, error, is_async=is_async)
        assert caught.value.__cause__ is error
        assert caught.value.partial.text == ("" if name == "gate" else " One.")
        assert caught.value.partial.stop_reason == "error"


@pytest.mark.parametrize("name", NAMES)
def test_control_exceptions_go_through_as_they_are(name):
    for error in (KeyboardInterrupt(), asyncio.CancelledError(), CancelledError("mine")):
        with pytest.raises(type(error)) as caught:
            answer(name, error)
        assert caught.value is error


def test_an_async_callable_that_looks_like_none_is_closed():
    running = Method().later(None)
    with pytest.raises(ConfigError, match=r"trigger: .*plain function"):
        call_option("trigger", lambda sentence: running, None)
    assert inspect.getcoroutinestate(running) == inspect.CORO_CLOSED, "it will warn"
