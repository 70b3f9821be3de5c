"""Token-level retrieval over a scripted engine."""

from __future__ import annotations

import pytest
from helpers_methods import method_for, run_method, telling
from scripted_model import Say, ScriptedRetriever, passages

from flarecore.errors import ConfigError
from flarecore.methods import METHODS


def story(context):
    return " He was born in 1912 in Oslo. He died." if "P " in context \
        else " He was born in 1913 in Rome. He died."


def test_it_goes_on_before_the_low_token_with_the_passages_in_view():
    retriever = ScriptedRetriever(passages("P zero."))
    result, engine, _ = run_method("token-level", telling(story, low={" 1913": 0.1}), retriever)
    assert result.text == " He was born in 1912 in Oslo. He died."
    assert retriever.queries == ["He was born in"]
    first, forced, rest, *_ = engine.calls
    assert first.context == "<bos>HEAD\nQ: Who?\nA:"
    assert forced.context == "<bos>HEAD\nE:\n[1]: P zero.\nQ: Who?\nA: He was born in"
    assert forced.max_tokens == 1 and "stop_below" not in forced.options
    assert rest.context.endswith("A: He was born in 1912")
    assert rest.pass_index == 1  # other random numbers than the text that was thrown away
    assert [s.text for s in result.trace.sentences][:2] == [" He was born in", " 1912 in Oslo."]
    assert result.trace.sentences[0].draft.text == " He was born in 1913"


def test_a_token_that_stays_low_is_accepted_and_the_same_query_is_not_searched_again():
    retriever = ScriptedRetriever(passages("P zero."))
    result, _, _ = run_method(
        "token-level", telling(story, low={" 1913": 0.1, " 1912": 0.1, " Oslo": 0.2}), retriever)
    assert result.text == " He was born in 1912 in Oslo. He died."
    assert retriever.queries == ["He was born in", "He was born in in"]


@pytest.mark.parametrize("theta", [0.8, 1.0])
def test_everything_low_ends(theta):
    retriever = ScriptedRetriever(passages("P zero."))
    text = " He was born in Oslo. He died."
    result, _, _ = run_method(
        "token-level", telling(text, low=dict.fromkeys(
            (" He", " was", " born", " in", " Oslo", " died"), 0.1)),
        retriever, theta=theta, query="sentence")
    assert result.text == text
    assert 3 < len(retriever.queries) <= 8
    result, _, _ = run_method("token-level", telling(text), retriever, theta=theta,
                              max_retrievals=2, initial_retrieval=True)
    assert result.text == text and result.stats.num_retrievals <= 2


def test_a_low_token_at_the_very_end_is_looked_up_before_the_answer_ends():
    def end(context):
        return " In 1912" if "P " in context else " In 1913"

    retriever = ScriptedRetriever(passages("P zero."))
    result, _, _ = run_method("token-level", telling(end, low={" 1913": 0.1}), retriever)
    assert result.text == " In 1912" and result.stop_reason == "eos"
    assert retriever.queries == ["In"]


def test_the_query_is_the_sentence_not_the_answer():
    retriever = ScriptedRetriever(passages("Other."))
    result, _, _ = run_method(
        "token-level", telling(" One. Two is 1913 or so.", low={" 1913": 0.1}), retriever,
        beta=0.0)
    assert retriever.queries == ["Two is 1913"]
    assert result.text == " One. Two is 1913 or so."


def test_a_low_token_inside_a_character_takes_all_of_it():
    # bytes are tokens here, and the second one of the character is low
    def script(context, pass_index):
        if "P zero" not in context:
            return Say(" ał".encode(), low={"\ufffd": 0.1}, stop="max_tokens")
        return Say("x" if context.endswith(" a") else "", stop="eos")

    retriever = ScriptedRetriever(passages("P zero."))
    result, _, _ = run_method("token-level", script, retriever)
    assert result.text == " ax"
    assert len(result.trace.sentences[0].draft.token_ids) > len(
        result.trace.sentences[0].token_ids) == 2


def test_options():
    assert "theta" in METHODS["token-level"].options
    for wrong in ({"query": "keywords"}, {"no_evidence": "omit"}, {"placement": "boundary"},
                  {"cooldown_sentences": 2}, {"trigger": "mean"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            method_for("token-level", None, **wrong)


def test_no_evidence_and_budgets():
    script = telling(" In 1913. He died.", low={" 1913": 0.1})
    result, _, _ = run_method("token-level", script, ScriptedRetriever())
    assert result.text == " In 1913. He died."
    assert result.sentences[0].unsupported_because == "no_evidence"
    result, _, _ = run_method("token-level", script, ScriptedRetriever(), no_evidence="stop")
    assert (result.text, result.stop_reason) == ("", "no_evidence")
    result, _, _ = run_method("token-level", script, max_sentences=1)
    assert (result.text, result.stop_reason) == (" In 1913.", "max_sentences")
    result, _, _ = run_method("token-level", script, max_new_tokens=2)
    assert (result.text, result.stop_reason) == (" In", "max_new_tokens")
    result, _, _ = run_method("token-level", script, gate="never")
    assert result.stats.num_retrievals == 0 and result.text == " In 1913. He died."
