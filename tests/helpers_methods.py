"""What tests of methods share: scripts, runs with the checks that hold for every answer."""

from __future__ import annotations

import re

from scripted_model import FakeClock, Lists, Say, ScriptedEngine, ScriptedRetriever, passages

from flarecore.config import FlareConfig
from flarecore.events import Event, Finished, SentenceAccepted
from flarecore.methods import make_method
from flarecore.templates import PromptTemplate
from flarecore.trace import Trace

PAPER = PromptTemplate.base(
    head="HEAD\n", question="Q: {question}\n", answer="A:", passage="[{number}]: {text}\n",
    prefix_evidence="E:\n{passages}", first_evidence="F:\n{passages}",
    boundary_evidence="\nB:\n{passages}A (continued):", stop=())


def telling(target, *, low=None, answer="A:"):
    """A script that writes on, sentence by sentence, towards a target text.

    `target` is the whole text or a function of the context that gives it; it must begin with what
    the answer holds already.
    """
    def script(context, pass_index):
        text = target(context) if callable(target) else target
        written = re.split(f"{answer}|Intermediate answer:", context)[-1]
        if written == " Follow up:":
            return Say(" Which?\n", stop="max_tokens")
        assert text.startswith(written), (text, written)
        rest = text[len(written):]
        sentence = re.match(r".*?[.!?](?=[ \n]|$)\n*", rest, re.DOTALL)
        if sentence is None:
            return Say(rest, low=low or {}, stop="eos")
        return Say(sentence.group(), low=low or {})

    return script


def method_for(name, script, retriever=None, *, engine=None, own=None, **options):
    """The engine and a method on it, without an initial retrieval where that is an option."""
    engine = engine or ScriptedEngine(script)
    options.setdefault("template", PAPER)
    if name not in ("no-retrieval", "single-retrieval"):
        options.setdefault("initial_retrieval", False)
    retriever = retriever or ScriptedRetriever(passages("P zero."), passages("P one.", first_id=1))
    return engine, make_method(
        name, engine, retriever, FlareConfig(**options), clock=FakeClock(), **(own or {}))


def run_method(name, script, retriever=None, *, prompt="Who?", **options):
    """Writes an answer and checks what holds for every answer; returns it with the engine."""
    engine, method = method_for(name, script, retriever, **options)
    with method.stream(prompt) as stream:
        events = list(stream)
        result = stream.result
    engine.check_integrity()
    accepted = [e for e in events if isinstance(e, SentenceAccepted)]
    assert isinstance(events[-1], Finished) and events[-1].text == result.text
    assert "".join(e.text for e in accepted) == result.text
    assert tuple(accepted) == result.sentences
    assert not isinstance(script, Lists) or script.is_used_up
    assert Trace.from_json(result.trace.to_json()) == result.trace
    assert result.trace.method == name
    assert result.trace.method_options == method.own_options
    assert len(result.trace.retrievals) == result.stats.num_retrievals
    assert [Event.from_json(e.to_json()) for e in events] == events
    assert name == "flare" or f"<b dir=\"auto\">{name}</b>" in result.trace.to_html()
    return result, engine, events
