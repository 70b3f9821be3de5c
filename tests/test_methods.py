"""The methods that are FLARE with other options or look back, over a scripted engine."""

from __future__ import annotations

import asyncio

import pytest
from helpers_methods import PAPER, method_for, run_method, telling
from scripted_model import Lists, Say, ScriptedEngine, ScriptedRetriever, passages

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.flare import Flare
from flarecore.methods import METHODS, make_method

LOW = {" 1913": 0.1}


def two_passages():
    return ScriptedRetriever(passages("P zero."), passages("P one.", first_id=1),
                             passages("P two.", first_id=2))


def test_every_method_says_what_it_is():
    assert {"flare", "no-retrieval", "single-retrieval", "previous-sentence", "previous-window",
            "next-sentence"} <= set(METHODS)
    for name, spec in METHODS.items():
        assert spec.name == name and spec.source and "\n" not in spec.description
        method = make_method(name, ScriptedEngine(None), two_passages())
        assert method.name == name and method.spec is spec


def test_unknown_names_and_options_are_refused():
    engine = ScriptedEngine(None)
    with pytest.raises(ConfigError, match="did you mean 'no-retrieval'"):
        make_method("no-retreival", engine, None)
    with pytest.raises(ConfigError, match=r"'window_token'.*did you mean 'window_tokens'"):
        make_method("previous-window", engine, two_passages(), window_token=3)
    with pytest.raises(ConfigError, match="window_tokens must be an integer >= 1, got 0"):
        make_method("previous-window", engine, two_passages(), window_tokens=0)
    with pytest.raises(ConfigError, match="none besides those of FlareConfig"):
        make_method("flare", engine, two_passages(), window_tokens=3)
    with pytest.raises(ConfigError, match="FlareConfig, got dict"):
        make_method("flare", engine, two_passages(), {"theta": 0.5})
    with pytest.raises(ConfigError, match="a retriever is needed"):
        make_method("previous-sentence", engine, None)
    assert make_method("no-retrieval", engine, None).config.gate == "never"


@pytest.mark.parametrize(("name", "option", "value"), [
    ("no-retrieval", "theta", 0.5), ("no-retrieval", "k", 9), ("single-retrieval", "beta", 0.1),
    ("single-retrieval", "initial_retrieval", False), ("previous-sentence", "trigger", "mean"),
    ("previous-window", "max_draft_tokens", 9), ("next-sentence", "query", "keywords"),
])
def test_options_that_do_not_apply_are_refused_and_can_be_dropped(name, option, value):
    config = FlareConfig(**{option: value}, max_new_tokens=20)
    with pytest.raises(ConfigError, match=f"{option}=.*does not apply"):
        make_method(name, ScriptedEngine(None), two_passages(), config)
    narrowed = METHODS[name].narrowed(config)
    assert narrowed.max_new_tokens == 20
    make_method(name, ScriptedEngine(None), two_passages(), narrowed)


def test_what_the_method_sets_itself_may_be_said_as_well():
    config = FlareConfig(trigger="always", query="sentence")
    assert make_method("next-sentence", ScriptedEngine(None), two_passages(), config)
    with pytest.raises(ConfigError, match="boundary"):
        make_method("previous-sentence", ScriptedEngine(None), two_passages(),
                    FlareConfig(placement="boundary"))


def test_flare_is_flare():
    def script():
        return Lists([Say(" One."), Say(" In 1913.", low=LOW), Say(stop="eos")],
                     [Say(" In 1912.")])

    result, engine, _ = run_method("flare", script(), two_passages())
    plain = ScriptedEngine(script())
    flare = Flare(plain, two_passages(), FlareConfig(template=PAPER, initial_retrieval=False))
    assert flare.generate("Who?").text == result.text == " One. In 1912."
    assert plain.calls == engine.calls


def test_no_retrieval_never_searches():
    retriever = two_passages()
    result, engine, _ = run_method(
        "no-retrieval", Lists([Say(" In 1913.", low=LOW), Say(stop="eos")]), retriever)
    assert result.text == " In 1913." and retriever.searches == []
    assert engine.contexts(0)[0] == "<bos>HEAD\nQ: Who?\nA:"


@pytest.mark.parametrize("placement", ["prefix", "boundary"])
def test_single_retrieval_keeps_the_passages_of_the_question_in_view(placement):
    retriever = two_passages()
    result, engine, _ = run_method(
        "single-retrieval", Lists([Say(" In 1913.", low=LOW), Say(" Two."), Say(stop="eos")]),
        retriever, placement=placement)
    assert retriever.queries == ["Who?"] and result.text == " In 1913. Two."
    assert all("P zero." in c for c in engine.contexts(0))
    assert [c.num_given for c in engine.calls][1:] == [0, 0]


def test_next_sentence_looks_up_every_draft_whole():
    retriever = two_passages()
    result, engine, _ = run_method(
        "next-sentence", Lists([Say(" In 1913.", low=LOW), Say(" Two."), Say(stop="eos")],
                               [Say(" In 1912."), Say(" Two!")]), retriever)
    assert retriever.queries == ["In 1913.", "Two."]
    assert result.text == " In 1912. Two!"
    assert "P one." in engine.contexts(1)[1] and "P zero." not in engine.contexts(1)[1]


def test_previous_sentence_searches_before_every_further_sentence():
    retriever = two_passages()
    result, engine, _ = run_method(
        "previous-sentence", Lists([Say(" One 1913.", low=LOW), Say(" Two."), Say(stop="eos")]),
        retriever)
    assert retriever.queries == ["One 1913.", "Two."]
    assert engine.contexts(0) == [
        "<bos>HEAD\nQ: Who?\nA:",
        "<bos>HEAD\nE:\n[1]: P zero.\nQ: Who?\nA: One 1913.",
        "<bos>HEAD\nE:\n[1]: P one.\nQ: Who?\nA: One 1913. Two."]
    assert result.text == " One 1913. Two." and result.stats.num_regenerations == 0
    assert [s.draft.passage_ids for s in result.trace.sentences] == [(), ("p0",), ("p1",)]
    assert engine.num_opened == 1 and engine.num_forked == 0


def test_previous_sentence_begins_with_the_question():
    retriever = two_passages()
    run_method("previous-sentence", Lists([Say(" One."), Say(stop="eos")]), retriever,
               initial_retrieval=True)
    assert retriever.queries == ["Who?", "One."]


def test_the_same_sentence_again_is_not_looked_up_again():
    retriever = two_passages()
    result, _, _ = run_method(
        "previous-sentence", Lists([Say(" One."), Say(" One."), Say(" One."), Say(stop="eos")]),
        retriever)
    assert retriever.queries == ["One."]
    assert [s.unsupported_because for s in result.trace.sentences] == [
        None, None, "repeated_query", "repeated_query"]


@pytest.mark.parametrize(("option", "reason", "queries"), [
    ({"max_retrievals": 1}, "max_retrievals", ["One."]),
    ({"cooldown_sentences": 1}, "cooldown_sentences", ["One.", "Three."]),
])
def test_budgets_of_previous_sentence(option, reason, queries):
    retriever = two_passages()
    result, _, _ = run_method(
        "previous-sentence", Lists([Say(" One."), Say(" Two."), Say(" Three."), Say(stop="eos")]),
        retriever, **option)
    assert retriever.queries == queries
    assert reason in [s.unsupported_because for s in result.trace.sentences]


def test_previous_sentence_without_passages():
    result, _, _ = run_method(
        "previous-sentence", Lists([Say(" One."), Say(" Two."), Say(stop="eos")]),
        ScriptedRetriever())
    assert [s.unsupported_because for s in result.sentences] == [None, "no_evidence"]
    result, _, _ = run_method(
        "previous-sentence", Lists([Say(" One.")]), ScriptedRetriever(), no_evidence="stop")
    assert (result.text, result.stop_reason) == (" One.", "no_evidence")
    result, engine, _ = run_method(
        "previous-sentence", Lists([Say(" One."), Say(" Two."), Say(stop="eos")]),
        ScriptedRetriever(), no_evidence="omit")
    assert result.text == " One." and engine.contexts(0)[-1].endswith("A: One. Two.")


def test_previous_window_searches_with_the_last_tokens():
    retriever = two_passages()
    result, engine, _ = run_method(
        "previous-window",
        Lists([Say(" one two three", stop="max_tokens"), Say(" four. five", stop="max_tokens"),
               Say(" six", stop="eos")]),
        retriever, own={"window_tokens": 3})
    assert retriever.queries == ["one two three", "four. five"]
    assert [c.max_tokens for c in engine.calls] == [3, 3, 3]
    assert {c.options["until"] for c in engine.calls} == {"eos"}
    assert result.text == " one two three four. five six" and result.stop_reason == "eos"


def test_a_window_may_end_inside_a_character():
    retriever = two_passages()
    data = " Łódź".encode()
    result, _, _ = run_method(
        "previous-window",
        Lists([Say(data[:2], stop="max_tokens"), Say(data[2:5], stop="max_tokens"),
               Say(data[5:], stop="eos")]), retriever, own={"window_tokens": 3})
    assert result.text == " Łódź"
    assert retriever.queries == ["Who?", "ó"]  # no word in the first window


NAMES = sorted(METHODS)
STORY = telling(lambda context: " In Rome. In 1912. In Oslo."
                if "P " in context or " 1912" in context.split("A:")[-1]
                else " In Rome. In 1913. In Oslo.", low={" 1913": 0.1, " 1912": 0.3})


@pytest.mark.parametrize("name", NAMES)
def test_async_equals_sync_and_nothing_is_left_behind(name):
    engine, method = method_for(name, STORY)
    expected = method.generate("Who?")
    engine, method = method_for(name, STORY)
    assert asyncio.run(method.agenerate("Who?")) == expected
    engine.check_integrity()
    found = name not in ("flare-instruct", "marker", "no-retrieval")
    assert expected.text == f" In Rome. In {1912 if found else 1913}. In Oslo."


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_events", range(0, 14, 2))
def test_stopping_at_any_event_leaves_nothing(name, num_events):
    engine, method = method_for(name, STORY)
    with method.stream("Who?") as stream:
        for _ in zip(range(num_events), stream, strict=False):
            pass
    engine.check_integrity()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_calls", [1, 2])
def test_cancelling_the_task_ends_the_operation_that_runs(name, num_calls):
    calls = []

    def script(context, pass_index):
        calls.append(pass_index)
        return Say(hang=True) if len(calls) == num_calls else STORY(context, pass_index)

    async def cancel_when_stuck(method):
        task = asyncio.create_task(method.agenerate("Who?"))
        while len(calls) < num_calls:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    engine, method = method_for(name, script)
    asyncio.run(cancel_when_stuck(method))
    assert engine.operations[-1].was_cancelled
    engine.check_integrity()


@pytest.mark.parametrize("name", NAMES)
def test_an_error_carries_what_was_written(name):
    def script(context, pass_index):
        if context.count(".") > 1 and "In" in context.split("A:")[-1]:
            return Say(error=ConfigError("odd"))
        return STORY(context, pass_index)

    engine, method = method_for(name, script, template=PAPER)
    with pytest.raises(ConfigError, match="odd") as raised:
        method.generate("Who?")
    assert raised.value.partial.stop_reason == "error"
    assert raised.value.partial.trace.method == name
    engine.check_integrity()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_free", range(8, 60, 5))
def test_a_full_context_ends_the_answer_without_an_error(name, num_free):
    def endless(context, pass_index):
        return Say(" a [Search(b c)] d [UNCERTAIN: e] f g h. ", low={" d": 0.1})

    _, method = method_for(name, endless)
    num_prompt = len(method.generate("Who?").trace.prompt_token_ids)
    small = ScriptedEngine(endless, context_length=num_prompt + num_free)
    how = {"own": {"window_tokens": 8}} if name == "previous-window" else {"max_draft_tokens": 8}
    _, method = method_for(
        name, None, engine=small, overflow="drop_oldest", max_new_tokens=4000, **how)
    result = method.generate("Who?")
    assert result.stop_reason == "context_length"
    small.check_integrity()
