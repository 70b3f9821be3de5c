"""The deadline of an answer: when it begins, and what becomes of a draft that waits then."""

from __future__ import annotations

import pytest
from scripted_model import FakeClock, Lists, Say, ScriptedEngine, ScriptedRetriever, passages
from test_controller import LOW, PAPER

from flarecore.config import FlareConfig
from flarecore.errors import DeadlineExceeded
from flarecore.flare import Flare
from flarecore.trace import Trace


class LateRetriever(ScriptedRetriever):
    """Takes ten seconds of a clock."""

    def __init__(self, clock, *answers):
        super().__init__(*answers)
        self.clock = clock

    def search(self, queries, k, filter=None):
        self.clock.now += 10.0
        return super().search(queries, k, filter)


@pytest.mark.parametrize("phase", ["draft", "query", "search", "regenerate"])
@pytest.mark.parametrize("policy", ["drop", "accept_draft"])
def test_a_finished_draft_can_be_accepted_at_the_deadline(policy, phase):
    clock = FakeClock()

    def query(sentence):
        clock.now += 10.0 if phase == "query" else 0.0
        return "1913"

    draft = Say(" In 1913.", low=LOW,
                error=DeadlineExceeded("late") if phase == "draft" else None)
    engine = ScriptedEngine(Lists([draft], [Say(error=DeadlineExceeded("late"))]))
    found = passages("P.")
    retriever = LateRetriever(clock, found) if phase == "search" else ScriptedRetriever(found)
    flare = Flare(engine, retriever, FlareConfig(
        deadline_ms=5000, deadline_policy=policy, initial_retrieval=False, query=query,
        template=PAPER), clock=clock)
    with flare.stream("Who?") as stream:
        events = list(stream)
        result = stream.result
    engine.check_integrity()
    assert result.stop_reason == events[-1].stop_reason == "deadline"
    keeps = policy == "accept_draft" and phase != "draft"
    assert result.text == (" In 1913." if keeps else "")
    assert [s.unsupported_because for s in result.sentences] == ["deadline"] * keeps
    if phase != "draft":
        (sentence,) = result.trace.sentences
        assert sentence.outcome == ("draft" if keeps else "nothing")
    page = result.trace.to_html()
    assert Trace.from_json(result.trace.to_json()) == result.trace
    assert ("unsupported: deadline" in page) == keeps


def test_a_draft_that_stopped_at_a_low_token_is_not_finished():
    clock = FakeClock()
    engine = ScriptedEngine(Lists([Say(" In 1913", low=LOW, stop="low_confidence")]))
    result = Flare(engine, LateRetriever(clock, passages("P.")), FlareConfig(
        deadline_ms=5000, deadline_policy="accept_draft", trigger="token", template=PAPER,
        initial_retrieval=False), clock=clock).generate("Who?")
    assert (result.text, result.stop_reason) == ("", "deadline")


def test_the_deadline_counts_from_the_call():
    clock = FakeClock()
    engine = ScriptedEngine(Lists([Say(" One.")]))
    flare = Flare(engine, ScriptedRetriever(passages("P.")), FlareConfig(
        deadline_ms=5000, initial_retrieval=False, template=PAPER, max_sentences=1), clock=clock)
    stream = flare.stream("Who?")
    clock.now += 2.0
    list(stream)
    assert engine.calls[0].options["deadline_ms"] == 3000.0
    stream = flare.stream("Who?")
    clock.now += 6.0
    list(stream)
    assert (stream.result.text, stream.result.stop_reason) == ("", "deadline")
