"""Ends, edges and faults of the loop: thresholds, empty passes, budgets, overflow, errors."""

from __future__ import annotations

import numpy as np
import pytest
from scripted_model import FakeClock, Lists, Say, ScriptedEngine, ScriptedRetriever, passages
from test_controller import LOW, PAPER, run

from flarecore.config import FlareConfig
from flarecore.errors import (
    ConfigError,
    ContextOverflowError,
    DeadlineExceeded,
    OutOfBlocksError,
    RetrievalError,
)
from flarecore.flare import Flare
from flarecore.sampling import SamplingParams


@pytest.mark.parametrize("theta", [0.8, 0.3, 0.1])
def test_a_confidence_equal_to_theta_triggers_only_if_inclusive(theta):
    # float32(0.8) > 0.8 and float32(0.3) > 0.3, float32(0.1) > 0.1: compared as doubles the
    # inclusive test would miss them.
    for inclusive, expected in ((False, 0), (True, 1)):
        script = Lists([Say(" In 1913.", low={" 1913": theta}), Say(stop="eos")],
                       [Say(" In 1912.")] * expected)
        result, _, _ = run(script, theta=theta, theta_inclusive=inclusive)
        assert result.stats.num_triggers == expected
    below = float(np.nextafter(np.float32(theta), np.float32(0)))
    script = Lists([Say(" In 1913.", low={" 1913": below}), Say(stop="eos")], [Say(" In 1912.")])
    assert run(script, theta=theta)[0].stats.num_triggers == 1


def test_theta_zero_never_retrieves_unless_it_means_always():
    script = Lists([Say(" In 1913.", prob=0.0), Say(stop="eos")])
    assert run(script, theta=0.0)[0].stats.num_triggers == 0
    script = Lists([Say(" In 1913.", prob=1.0), Say(stop="eos")], [Say(" In 1912.")])
    assert run(script, theta=0.0, theta_zero_always=True)[0].stats.num_triggers == 1


def test_theta_one_always_retrieves_also_where_a_confidence_rounds_to_one():
    script = Lists([Say(" In 1913.", prob=1.0), Say("\n\n", prob=0.5), Say(stop="eos")],
                   [Say(" In 1912.")])
    result, _, _ = run(script, theta=1.0)
    assert [s.draft.triggered for s in result.trace.sentences] == [True, False, False]
    assert run(Lists([Say(" In 1913.", prob=1.0), Say(stop="eos")], [Say(" Yes.")]),
               trigger="always")[0].stats.num_triggers == 1
    assert run(Lists([Say(" In 1913.", prob=0.0), Say(stop="eos")]),
               trigger="never", theta=1.0)[0].stats.num_triggers == 0


def test_punctuation_and_space_trigger_only_if_asked():
    says = Say(" Well , yes", low={",": 0.1, " ": 0.1})
    assert run(Lists([says, Say(stop="eos")]))[0].stats.num_triggers == 0
    assert run(Lists([says, Say(stop="eos")], [Say(" Yes.")]),
               trigger_punctuation=True)[0].stats.num_triggers == 1
    # a character split over tokens is judged as a whole: none of these three bytes is a word
    full_stop = Say("。".encode(), prob=0.1)
    assert run(Lists([full_stop, Say(stop="eos")]))[0].stats.num_triggers == 0
    word = Say("年".encode(), prob=0.1)
    assert run(Lists([word, Say(stop="eos")], [Say(" Yes.")]))[0].stats.num_triggers == 1


def test_a_callable_trigger_query_and_rule():
    seen = []

    def trigger(candidate):
        seen.append((candidate.text, candidate.min_prob < 0.5, candidate.answer_text))
        return "1913" in candidate.text

    script = Lists([Say(" One.", prob=0.1), Say(" In 1913."), Say(stop="eos")],
                   [Say(" In 1912.")])
    retriever = ScriptedRetriever(passages("P."))
    run(script, retriever, trigger=trigger, query=lambda c: f"find {c.question} {c.scope}")
    assert retriever.queries == ["find Who? None"]
    assert seen == [(" One.", True, ""), (" In 1913.", False, " One.")]
    for options in ({"trigger": lambda c: "yes"}, {"query": lambda c: None},
                    {"no_evidence": lambda c: "maybe", "min_score": 9.0}):
        engine = ScriptedEngine(Lists([Say(" In 1913.", low=LOW)]))
        flare = Flare(engine, retriever, FlareConfig(initial_retrieval=False, **options))
        with pytest.raises(ConfigError, match="the callable must return"):
            flare.generate("Who?")
        engine.check_integrity()


def test_end_of_text_first_gives_an_empty_answer():
    result, engine, _ = run(Lists([Say(stop="eos")]))
    assert (result.text, result.sentences, result.stop_reason) == ("", (), "eos")
    assert len(engine.calls) == 1
    assert result.trace.sentences[0].outcome == "nothing"


def test_an_empty_pass_never_loops():
    for reason in ("sentence", "max_tokens"):
        result, engine, _ = run(Lists([Say(" One."), Say(stop=reason)]))
        assert (result.text, result.stop_reason) == (" One.", "no_progress")
        assert len(engine.calls) == 2
    # what is left of the budget may be too little for one character
    result, _, _ = run(Lists([Say(" One."), Say(stop="max_tokens")]), max_new_tokens=3)
    assert result.stop_reason == "max_new_tokens"


def test_end_of_text_in_the_regeneration_ends_the_answer():
    result, engine, _ = run(Lists([Say(" In 1913.", low=LOW)], [Say(" In 1912.", stop="eos")]))
    assert (result.text, result.stop_reason) == (" In 1912.", "eos")
    result, engine, _ = run(Lists([Say(" In 1913.", low=LOW)], [Say(stop="eos")]))
    assert (result.text, result.stop_reason) == ("", "eos")
    # end of text in a draft that is not confident does not end anything
    result, engine, _ = run(Lists([Say(" In 1913.", low=LOW, stop="eos"), Say(stop="eos")],
                                  [Say(" In 1912.")]))
    assert result.text == " In 1912." and len(engine.calls) == 3


def test_a_budget_that_ends_inside_a_sentence():
    script = Lists([Say(" One."), Say(" Two three four five.")])
    result, engine, _ = run(script, max_new_tokens=5)
    assert result.text == " One. Two three four"
    assert result.stop_reason == "max_new_tokens"
    assert result.trace.sentences[1].stop_reason == "max_new_tokens"
    assert len(result.token_ids) == 5
    script = Lists([Say(" One two three."), Say(".", stop="eos")])
    result, engine, _ = run(script, max_draft_tokens=2)
    assert result.text == " One two."
    assert result.trace.sentences[0].stop_reason == "max_draft_tokens"
    assert [c.max_tokens for c in engine.calls] == [2, 2]


def test_the_last_token_of_the_budget_may_end_a_sentence():
    result, _, _ = run(Lists([Say(" One two.")]), max_new_tokens=3)
    assert (result.text, result.stop_reason) == (" One two.", "max_new_tokens")
    assert result.trace.sentences[0].stop_reason == "sentence"


def test_max_sentences():
    result, _, _ = run(Lists([Say(" One."), Say(" Two.")]), max_sentences=2)
    assert (result.text, result.stop_reason) == (" One. Two.", "max_sentences")


def test_retrieval_budgets_accept_and_say_which():
    def answer(**options):
        script = Lists([Say(f" {n} 1913.", low=LOW) for n in range(4)] + [Say(stop="eos")],
                       [Say(f" {n} 1912.") for n in range(3)])
        retriever = ScriptedRetriever(passages("P."))
        engine = ScriptedEngine(script)
        result = Flare(engine, retriever, FlareConfig(
            template=PAPER, **options)).generate("Who?")
        engine.check_integrity()
        return [s.unsupported_because for s in result.sentences], len(retriever.searches)

    assert answer(max_retrievals=2) == ([None] + ["max_retrievals"] * 3, 2)
    assert answer(max_retrievals=0) == (["max_retrievals"] * 4, 0)
    assert answer(max_retrievals_per_sentence=0) == (["max_retrievals_per_sentence"] * 4, 1)
    assert answer(cooldown_sentences=1) == (
        [None, "cooldown_sentences", None, "cooldown_sentences"], 3)
    assert answer(cooldown_sentences=2, initial_retrieval=False) == (
        [None, "cooldown_sentences", "cooldown_sentences", None], 2)


@pytest.mark.parametrize("phase", ["draft", "search", "regenerate", "engine"])
def test_a_deadline_keeps_what_was_accepted(phase):
    clock = FakeClock()

    def late():
        clock.now += 10.0

    class LateRetriever(ScriptedRetriever):
        def search(self, queries, k, filter=None):
            late()
            return super().search(queries, k, filter)

    drafts = [Say(" One.", before=late if phase == "draft" else None),
              Say(" In 1913.", low=LOW)]
    again = Say(" In 1912.", error=DeadlineExceeded("late") if phase == "engine" else None,
                before=late if phase == "regenerate" else None)
    engine = ScriptedEngine(Lists(drafts, [again]))
    retriever = (LateRetriever if phase == "search" else ScriptedRetriever)(passages("P."))
    result = Flare(
        engine, retriever, FlareConfig(deadline_ms=5000, initial_retrieval=False, template=PAPER),
        clock=clock).generate("Who?")
    engine.check_integrity()
    assert result.stop_reason == "deadline"
    assert result.text == (" One. In 1912." if phase == "regenerate" else " One.")
    assert engine.calls[0].options["deadline_ms"] == 5000.0
    if phase in ("search", "engine"):
        assert result.trace.sentences[-1].outcome == "nothing"
        assert result.trace.sentences[-1].stop_reason == "deadline"


def test_a_context_that_can_overflow_is_refused_before_any_work():
    retriever = ScriptedRetriever(passages("P."))
    engine = ScriptedEngine(Lists([]), context_length=60)
    flare = Flare(engine, retriever, FlareConfig(max_new_tokens=40, max_evidence_tokens=30))
    with pytest.raises(ContextOverflowError, match=r"holds 60 tokens.*prompt \d+ \+ max_new"):
        flare.stream("Who?")
    flare = Flare(engine, retriever, FlareConfig(
        max_new_tokens=40, max_draft_tokens=8, overflow="drop_oldest"))
    with pytest.raises(ContextOverflowError, match="one sentence 8"):
        flare.stream([1] * 53, question="q")
    flare.stream([1] * 52, question="q")
    assert retriever.searches == [] and engine.num_opened == 0


@pytest.mark.parametrize(("num_prompt", "options", "remedy"), [
    (60, {}, "shorten the prompt"), (90, {"overflow": "drop_oldest"}, "shorten the prompt"),
    (20, {"max_draft_tokens": 8},
     "shorten the prompt or lower max_new_tokens or max_evidence_tokens, or use "
     "overflow='drop_oldest'"),
    # Dropping would not make room for a sentence either.
    (20, {"max_draft_tokens": 41},
     "shorten the prompt or lower max_new_tokens or max_evidence_tokens"),
    (50, {"overflow": "drop_oldest"}, "shorten the prompt or lower max_new_tokens"),
    (50, {"overflow": "drop_oldest", "max_draft_tokens": 11},
     "shorten the prompt or lower max_draft_tokens"),
    (30, {"gate": "never", "max_draft_tokens": 8},
     "shorten the prompt or lower max_new_tokens, or use overflow='drop_oldest'")])
def test_only_what_can_help_is_named(num_prompt, options, remedy):
    flare = Flare(ScriptedEngine(Lists([]), context_length=60), ScriptedRetriever(), FlareConfig(
        max_new_tokens=40 if "max_draft_tokens" not in options else 41, max_evidence_tokens=30,
        **options))
    with pytest.raises(ContextOverflowError) as raised:
        flare.stream([1] * num_prompt, question="q")
    assert str(raised.value).endswith(f"; {remedy}")


def test_the_strict_check_is_exact():
    template = PAPER
    # sampled: greedy, the first sentence would not be written again with the same passage
    options = dict(template=template, max_new_tokens=6, max_evidence_tokens=10, k=1,
                   sampling=SamplingParams(temperature=1.0))

    def flare(context_length, script=None):
        engine = ScriptedEngine(script or Lists([]), context_length=context_length)
        return Flare(engine, ScriptedRetriever(passages("a b c d e f g")),
                     FlareConfig(**options)), engine

    fits = next(n for n in range(10, 200) if _accepts(flare(n)[0]))
    script = Lists([Say(" 0 1913.", low=LOW), Say(" 1 1913.", low=LOW)],
                   [Say(" 2 1912."), Say(" 3 1912.")])
    small, engine = flare(fits, script)
    result = small.generate("Who?")
    assert result.stop_reason == "max_new_tokens" and len(engine.calls) == 4
    assert max(len(c.context_ids) + c.max_tokens for c in engine.calls) == fits


def _accepts(flare):
    try:
        flare.stream("Who?")
    except ContextOverflowError:
        return False
    return True


def test_drop_oldest_leaves_passages_out_and_ends_with_the_context():
    prompt = len(ScriptedEngine(Lists([])).tokenizer.encode(
        "<bos>HEAD\nQ: Who?\nA:", parse_special=True))
    options = dict(overflow="drop_oldest", max_draft_tokens=8, max_new_tokens=1000)
    # room for one of two passages: the one that was in use before goes
    script = Lists([Say(" 0 1913.", low=LOW), Say(" 1 1913.", low=LOW), Say(stop="eos")],
                   [Say(" 0 1912."), Say(" 1 1912.")])
    old, new = passages("Old one."), passages("New one.", first_id=1)
    engine = ScriptedEngine(script, context_length=prompt + 3 + 8 + 5 + 12)
    _, engine, _ = run(script, ScriptedRetriever(old, new + old), engine=engine, **options)
    assert "[1]: Old one.\nQ" in engine.contexts(1)[0]
    assert "[1]: New one.\nQ" in engine.contexts(1)[1]
    # room for none: the same as none found
    script = Lists([Say(" 0 1913.", low=LOW), Say(stop="eos")])
    engine = ScriptedEngine(script, context_length=prompt + 8 + 3)
    result, _, _ = run(script, ScriptedRetriever(old), engine=engine, **options)
    assert result.sentences[0].unsupported_because == "no_evidence"
    # no room for another sentence, and not even for all of one
    script = Lists([Say(" 0 1 2 3 4 5 6.")] * 2)
    engine = ScriptedEngine(script, context_length=prompt + 8 + 5)
    result, _, _ = run(script, engine=engine, trigger="never", **options)
    assert [c.max_tokens for c in engine.calls] == [8, 5]
    assert result.stop_reason == "context_length"


def test_a_retriever_that_raises_keeps_the_cause_and_the_accepted_text():
    cause = ConnectionError("no route")
    script = Lists([Say(" One."), Say(" In 1913.", low=LOW)])
    engine = ScriptedEngine(script)
    flare = Flare(engine, ScriptedRetriever(error=cause),
                  FlareConfig(initial_retrieval=False, template=PAPER))
    with pytest.raises(RetrievalError, match="ConnectionError: no route") as caught:
        flare.generate("Who?")
    assert caught.value.__cause__ is cause
    partial = caught.value.partial
    assert partial.text == " One." and partial.stop_reason == "error"
    assert partial.trace.sentences[1].outcome == "nothing"
    engine.check_integrity()


@pytest.mark.parametrize("answer", [
    None, [], [["text"]], [passages("a", "b", "c", "d")], [passages("a"), passages("b")]])
def test_a_retriever_that_returns_nonsense(answer):
    class Nonsense:
        def search(self, queries, k, filter=None):
            return answer

    engine = ScriptedEngine(Lists([]))
    with pytest.raises(RetrievalError):
        Flare(engine, Nonsense(), FlareConfig(k=3)).generate("Who?")
    engine.check_integrity()


def test_an_error_of_the_engine_closes_everything():
    script = Lists([Say(" One."), Say(" In 1913.", low=LOW)],
                   [Say(error=OutOfBlocksError("no block"))])
    engine = ScriptedEngine(script)
    flare = Flare(engine, ScriptedRetriever(passages("P.")), FlareConfig(template=PAPER))
    with pytest.raises(OutOfBlocksError) as caught:
        flare.generate("Who?")
    assert caught.value.partial.text == " One."
    engine.check_integrity()


def test_options_of_a_pass_reach_the_engine():
    sampling = SamplingParams(temperature=0.7, seed=3)
    script = Lists([Say(" In 1913.", low=LOW), Say(stop="eos")], [Say(" In 1912.")])
    _, engine, _ = run(script, sampling=sampling, beta=0.25, stop=["END"])
    for call in engine.calls:
        assert call.options == {"sampling": sampling, "until": "sentence", "beta": 0.25,
                                "deadline_ms": None, "stop": ("END",),
                                "lookup": call.options["lookup"]}
    assert [c.pass_index for c in engine.calls] == [0, 1, 0]
