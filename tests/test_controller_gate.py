"""The gate over the question, the rules over drafts, and drafts that stop at a low token."""

from __future__ import annotations

import pytest
from scripted_model import Lists, Say, ScriptedEngine, ScriptedRetriever, passages
from test_controller import LOW, run

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.events import DraftFinished
from flarecore.flare import Flare
from flarecore.rules import DraftRule
from flarecore.trace import RuleTrace, Trace


def drafts(events):
    return [e for e in events if isinstance(e, DraftFinished)]


# ---- the gate ----


@pytest.mark.parametrize("gate", ["never", lambda question: "never"])
def test_a_closed_gate_retrieves_nothing_whatever_else_is_set(gate):
    script = Lists([Say(" In 1913.", prob=0.0), Say(stop="eos")])
    retriever = ScriptedRetriever(passages("P."))
    result, engine, events = run(
        script, retriever, gate=gate, initial_retrieval=True, theta=1.0, trigger="token",
        must_retrieve=DraftRule(terms=("1913",)))
    assert retriever.searches == [] and result.text == " In 1913."
    assert result.trace.gate == "never" and result.trace.initial_retrieval is None
    assert not drafts(events)[0].triggered
    assert result.trace.sentences[0].draft.triggered is None, "nobody was asked"
    assert result.trace.sentences[0].draft.low == (True, True, False)
    assert result.sentences[0].unsupported_because is None
    assert "stop_below" not in engine.calls[0].options


@pytest.mark.parametrize("gate", ["always", lambda question: "always"])
def test_an_open_gate_searches_with_the_question_first(gate):
    script = Lists([Say(" Sure."), Say(stop="eos")])
    retriever = ScriptedRetriever(passages("P."))
    result, engine, _ = run(script, retriever, gate=gate, initial_retrieval=False, trigger="never")
    assert retriever.queries == ["Who?"] and "P." in engine.contexts(0)[0]
    assert result.trace.gate == "always"


def test_a_gate_decides_by_the_question():
    seen = []

    def gate(question):
        seen.append(question)
        return "never" if question.startswith("Hello") else None

    for question, searches in (("Hello there", []), ("Who?", ["Who?"])):
        retriever = ScriptedRetriever(passages("P."))
        result, _, _ = run(Lists([Say(" Sure.", stop="eos")]), retriever, prompt=question,
                           gate=gate, initial_retrieval=True)
        assert retriever.queries == searches
        assert result.trace.gate == ("never" if searches == [] else None)
    assert seen == ["Hello there", "Who?"]


def test_a_gate_that_cannot_be():
    engine = ScriptedEngine(Lists([]))
    for answer in (True, "open", 0):
        flare = Flare(engine, ScriptedRetriever(), FlareConfig(gate=lambda q, a=answer: a))
        with pytest.raises(ConfigError, match="gate: the callable must return 'never', 'always'"):
            flare.generate("Who?")
    with pytest.raises(ConfigError, match="max_retrievals=0 forbids"):
        FlareConfig(gate="always", max_retrievals=0)
    with pytest.raises(ConfigError, match=r"gate \(or None, or a callable\) must be one of"):
        FlareConfig(gate="auto")
    for gate in ("always", lambda question: "always"):
        flare = Flare(engine, ScriptedRetriever(), FlareConfig(gate=gate, initial_retrieval=False))
        with pytest.raises(ConfigError, match="token ids do not tell"):
            flare.generate([1, 2, 3])
    engine.check_integrity()
    assert Flare(ScriptedEngine(Lists([Say(" A.", stop="eos")])), None, FlareConfig(
        gate="never", initial_retrieval=True)).generate([1, 2, 3]).text == " A."
    for gate in ("always", lambda question: None):
        with pytest.raises(ConfigError, match="a retriever is needed"):
            Flare(engine, None, FlareConfig(gate=gate, trigger="never", initial_retrieval=False))


# ---- rules ----

NUMBER = DraftRule(patterns=(r"\b[A-Z]{2}-\d+",))


def test_a_sure_draft_is_looked_up_if_a_rule_says_so():
    script = Lists([Say(" Fine."), Say(" Use AB-12."), Say(stop="eos")], [Say(" Use AB-13.")])
    retriever = ScriptedRetriever(passages("P."))
    result, _, events = run(script, retriever, must_retrieve=NUMBER, trigger="never")
    assert retriever.queries == ["Use AB-12."], "nothing is masked: the model was sure"
    assert result.text == " Fine. Use AB-13."
    rule = RuleTrace("must_retrieve", "pattern", NUMBER.patterns[0], "AB-12")
    assert [e.rule for e in drafts(events)] == [None, rule, None]
    first, second, _ = result.trace.sentences
    assert not first.draft.triggered and first.draft.rule is None
    assert second.draft.triggered and second.draft.rule == rule
    assert not any(second.draft.low)
    assert Trace.from_json(result.trace.to_json()) == result.trace
    assert result.stats.num_triggers == 1


def test_an_unsure_draft_is_accepted_if_a_rule_says_so():
    def is_small_talk(candidate):
        return candidate.text.strip() == "Hello."

    script = Lists([Say(" Hello.", prob=0.1), Say(" In 1913.", low=LOW), Say(stop="eos")],
                   [Say(" In 1912.")])
    result, _, events = run(script, never_retrieve=is_small_talk)
    assert result.text == " Hello. In 1912."
    rule = RuleTrace("never_retrieve", "callable", "is_small_talk", "")
    assert [e.rule for e in drafts(events)] == [rule, None, None]
    assert result.sentences[0].unsupported_because is None
    assert result.trace.sentences[0].draft.low[0], "what is low stays visible"
    assert result.stats.num_triggers == 1


@pytest.mark.parametrize("trigger", ["always", "never"])
def test_must_goes_before_never_and_both_before_the_trigger(trigger):
    both = DraftRule(terms=("both",))
    script = Lists([Say(" Say both."), Say(" Say not."), Say(stop="eos")], [Say(" Said both.")])
    result, _, _ = run(script, trigger=trigger, must_retrieve=both,
                       never_retrieve=DraftRule(terms=("both", "not")))
    assert [s.draft.triggered for s in result.trace.sentences[:2]] == [True, False]
    assert [s.draft.rule.name for s in result.trace.sentences[:2]] == [
        "must_retrieve", "never_retrieve"]


def test_budgets_go_before_rules_and_say_so():
    script = Lists([Say(" Use AB-12."), Say(stop="eos")])
    result, _, _ = run(script, must_retrieve=NUMBER, max_retrievals=0)
    assert result.sentences[0].unsupported_because == "max_retrievals"


def test_what_was_looked_up_need_not_be_looked_up_again():
    # the regeneration holds a product number as well: the duty is done
    script = Lists([Say(" Use AB-12."), Say(stop="eos")], [Say(" Use AB-13.")])
    result, _, _ = run(script, must_retrieve=NUMBER, max_retrievals_per_sentence=3)
    (again,) = result.trace.sentences[0].regenerations
    assert again.triggered is False and again.rule is None
    # but what needs no look-up needs none in a regeneration either
    script = Lists([Say(" In 1913.", low=LOW), Say(stop="eos")],
                   [Say(" Hello 1913.", low=LOW)])
    result, _, _ = run(script, never_retrieve=DraftRule(terms=("hello",)),
                       max_retrievals_per_sentence=3)
    assert result.trace.sentences[0].regenerations[0].rule.name == "never_retrieve"


def test_a_rule_that_returns_no_bool():
    engine = ScriptedEngine(Lists([Say(" One.")]))
    flare = Flare(engine, ScriptedRetriever(), FlareConfig(
        must_retrieve=lambda c: None, initial_retrieval=False))
    with pytest.raises(ConfigError, match="must_retrieve: the callable must return a bool"):
        flare.generate("Who?")
    engine.check_integrity()


def test_a_rule_alone_needs_a_retriever():
    options = {"trigger": "never", "initial_retrieval": False}
    assert not FlareConfig(**options).may_retrieve
    assert FlareConfig(must_retrieve=NUMBER, **options).may_retrieve
    assert not FlareConfig(never_retrieve=NUMBER, **options).may_retrieve
    assert not FlareConfig(must_retrieve=NUMBER, max_retrievals_per_sentence=0,
                           **options).may_retrieve


# ---- token: drafts that stop ----

TOKEN = {"trigger": "token", "theta": 0.5}


def test_a_draft_stops_at_its_first_low_token_and_the_whole_sentence_is_written_again():
    script = Lists([Say(" He was born in 1913 in Rome.", low={" born": 0.45, " 1913": 0.1}),
                    Say(stop="eos")], [Say(" He was made in 1912.")])
    retriever = ScriptedRetriever(passages("P."))
    result, engine, events = run(script, retriever, **TOKEN)
    assert retriever.queries == ["He was born"], "beta decides whether the low token stays"
    assert drafts(events)[0].text == " He was born" and drafts(events)[0].triggered
    assert drafts(events)[0].stop_reason == "low_confidence"
    assert result.text == " He was made in 1912."
    assert engine.calls[1].context.endswith("A:"), "from the sentence's boundary on"
    assert engine.calls[1].proposal == result.trace.sentences[0].draft.token_ids
    assert result.trace.sentences[0].completion is None
    assert engine.calls[0].options["stop_below"] == 0.5
    assert not engine.calls[0].options["stop_at_punctuation"]
    # the last regeneration of a sentence is not tested, and must not stop
    assert "stop_below" not in engine.calls[1].options
    assert result.stats.num_decoded < len(engine.tokenizer.encode(
        " He was born in 1913 in Rome. He was made in 1912."))


def test_a_low_token_below_beta_leaves_the_query():
    script = Lists([Say(" He left in 1913 for Rome.", low=LOW), Say(stop="eos")],
                   [Say(" He left in 1912.")])
    retriever = ScriptedRetriever(passages("P."))
    run(script, retriever, **TOKEN)
    assert retriever.queries == ["He left in"]
    # nothing left before the first low token: the question
    script = Lists([Say(" Rome fell.", low={" Rome": 0.1}), Say(stop="eos")], [Say(" It fell.")])
    retriever = ScriptedRetriever(passages("P."))
    run(script, retriever, **TOKEN)
    assert retriever.queries == ["Who?"]


@pytest.mark.parametrize("speculative", [True, False])
@pytest.mark.parametrize("case", ["none found", "never rule", "omit", "empty query"])
def test_a_draft_that_stopped_for_nothing_is_written_to_its_end(case, speculative):
    say = Say(" In 1913 he left.", low=LOW)
    options = {
        "none found": {"no_evidence": "accept_draft"},
        "never rule": {"never_retrieve": DraftRule(terms=("1913",))},
        "omit": {"no_evidence": "omit"},
        "empty query": {"beta": 1.0, "empty_query": "accept_draft"}}[case]
    script = Lists([say, say, Say(" End.", stop="eos")])
    result, engine, _ = run(
        script, ScriptedRetriever(), speculative=speculative, **TOKEN, **options)
    omitted = case == "omit"
    assert result.text == (" End." if omitted else " In 1913 he left. End.")
    assert engine.contexts(0)[-1].endswith("A: In 1913 he left."), "never half a sentence"
    cut, whole = engine.calls[0], engine.calls[1]
    assert cut.context_ids == whole.context_ids and whole.pass_index == 0
    assert "stop_below" not in whole.options
    sentence = result.trace.sentences[0]
    assert whole.proposal == (sentence.draft.token_ids if speculative else ())
    assert sentence.draft.text == " In 1913" and sentence.completion.text == " In 1913 he left."
    assert sentence.completion.triggered is None
    assert sentence.outcome == ("omitted" if omitted else "draft")
    assert sentence.regenerations == ()
    assert Trace.from_json(result.trace.to_json()) == result.trace


def test_a_draft_does_not_stop_where_nothing_may_be_searched():
    script = Lists([Say(" In 1913 he left.", low=LOW), Say(" He left in 1913 too.", low=LOW),
                    Say(stop="eos")], [Say(" In 1912 he left.")])
    result, engine, _ = run(script, max_retrievals=1, **TOKEN)
    assert [("stop_below" in c.options) for c in engine.calls] == [True, False, False, False]
    assert result.text == " In 1912 he left. He left in 1913 too."
    assert [s.unsupported_because for s in result.sentences] == [None, "max_retrievals"]
    assert result.trace.sentences[1].draft.triggered


def test_an_end_without_evidence_drops_the_half_sentence():
    script = Lists([Say(" One."), Say(" In 1913 he left.", low=LOW)])
    result, engine, _ = run(script, ScriptedRetriever(), no_evidence="stop", **TOKEN)
    assert (result.text, result.stop_reason, len(engine.calls)) == (" One.", "no_evidence", 2)


def test_a_regeneration_that_stops_is_written_to_its_end_when_it_is_accepted():
    script = Lists(
        [Say(" In 1913 he left.", low=LOW), Say(stop="eos")],
        [Say(" In 1914 she left.", low={" 1914": 0.1})] * 2)
    retriever = ScriptedRetriever(passages("P."))
    # The second search would be the same query: the regeneration is accepted as it is.
    result, engine, _ = run(script, retriever, max_retrievals_per_sentence=2, **TOKEN)
    assert retriever.queries == ["In"]
    assert result.text == " In 1914 she left."
    sentence = result.trace.sentences[0]
    assert sentence.outcome == "regenerated"
    assert sentence.unsupported_because == "repeated_query"
    assert sentence.regenerations[0].text == " In 1914"
    assert sentence.completion.text == " In 1914 she left." and sentence.completion.pass_index == 1
    assert engine.calls[1].context_ids == engine.calls[2].context_ids
    assert sentence.token_ids == sentence.completion.token_ids


def test_a_sentence_whose_last_token_is_low_is_whole():
    script = Lists([Say(" In 1913", low=LOW), Say(stop="eos")])
    result, _, events = run(script, ScriptedRetriever(), **TOKEN)
    assert drafts(events)[0].stop_reason == "sentence" and drafts(events)[0].triggered
    assert result.trace.sentences[0].completion is None and result.text == " In 1913"
    # cut by a limit there is more to come, but the limit holds
    script = Lists([Say(" In 1913 he left.", low=LOW)] * 2)
    result, _, _ = run(script, ScriptedRetriever(), max_new_tokens=3, **TOKEN)
    assert result.text == " In 1913 he" and result.stop_reason == "max_new_tokens"


def test_punctuation_stops_a_draft_only_if_asked():
    say = Say(" Well, yes.", low={",": 0.1})
    result, engine, _ = run(Lists([say, Say(stop="eos")]), **TOKEN)
    assert result.stats.num_triggers == 0 and result.text == " Well, yes."
    script = Lists([say, Say(stop="eos")], [Say(" Yes.")])
    result, engine, _ = run(script, trigger_punctuation=True, **TOKEN)
    assert result.trace.sentences[0].draft.text == " Well,"
    assert engine.calls[0].options["stop_at_punctuation"]
