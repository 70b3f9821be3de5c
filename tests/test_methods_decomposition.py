"""Question decomposition over a scripted engine."""

from __future__ import annotations

from helpers_methods import run_method
from scripted_model import Say, ScriptedEngine, ScriptedRetriever, passages

LINES = [" How long is A?", " A is 3 km long.", "Follow up: How long is B?",
         " B is 4 km long.", "So the answer is: B."]


def lines(*said):
    """A script that writes one line after the other, and then ends."""
    left = list(said)

    def script(context, pass_index):
        return Say(left.pop(0) + "\n", stop="max_tokens") if left else Say(stop="eos")

    return script


def test_sub_questions_are_searched_and_stay_out_of_the_text():
    retriever = ScriptedRetriever(passages("P zero."), passages("P one.", first_id=1))
    result, engine, _ = run_method("question-decomposition", lines(*LINES), retriever)
    assert retriever.queries == ["How long is A?", "How long is B?"]
    assert result.stop_reason == "final_answer"
    assert result.text == " A is 3 km long. B is 4 km long.\nSo the answer is: B."
    second = engine.calls[1].context
    assert second.endswith("E:\n[1]: P zero.\nQ: Who?\nA: Follow up: How long is A?\n"
                           "Intermediate answer:")
    assert "[1]: P one." in engine.calls[3].context and "P zero" not in engine.calls[3].context
    assert "HEAD" not in second and "Answer each question by way of smaller ones" in second
    assert [s.outcome for s in result.trace.sentences] == [
        "omitted", "draft", "omitted", "draft", "draft"]
    assert result.trace.sentences[0].draft.triggered
    assert {c.options["stop"] for c in engine.calls} == {("\n",)}


def test_the_label_may_be_written_once_more_and_opens_a_turn_without_a_space():
    retriever = ScriptedRetriever(passages("P zero."))
    _, engine, _ = run_method(
        "question-decomposition", lines("Follow up: How long is A?", *LINES[1:2]), retriever)
    assert retriever.queries == ["How long is A?"]
    assert engine.calls[0].context.endswith("A: Follow up:")
    chat = ScriptedEngine(lines("?", " It is."), chat=True)
    run_method("question-decomposition", None, engine=chat, template=None)
    assert chat.calls[0].context.endswith("assistant\nFollow up:")


def test_after_enough_sub_questions_the_final_answer_is_asked_for():
    retriever = ScriptedRetriever(passages("P zero."))
    result, engine, _ = run_method(
        "question-decomposition", lines(*LINES[:2], " B."), retriever, own={"max_questions": 1})
    assert engine.calls[-1].context.endswith("A is 3 km long.\nSo the answer is:")
    assert result.text == " A is 3 km long.\nSo the answer is: B."
    assert result.stop_reason == "final_answer"


def test_a_repeated_sub_question_is_not_searched_again_and_ends_the_asking():
    retriever = ScriptedRetriever(passages("P zero."))
    result, _, _ = run_method(
        "question-decomposition",
        lines(*LINES[:2], "follow up:  how long is A?", " It is 3.", " C."), retriever)
    assert retriever.queries == ["How long is A?"]
    assert result.trace.sentences[2].unsupported_because == "repeated_query"
    assert result.text.endswith("\nSo the answer is: C.")


def test_lines_that_are_no_sub_questions_are_text():
    result, _, _ = run_method(
        "question-decomposition", lines(" What is it?", " It is B.", "Really [1]."))
    assert result.text == " It is B.\nReally [1]." and result.stop_reason == "eos"
    assert result.stats.num_retrievals == 1


def test_a_question_at_the_end_of_the_text_is_answered():
    retriever = ScriptedRetriever(passages("P zero."))

    def script(context, pass_index):
        return Say(" It is 3.", stop="eos") if context.endswith("answer:") \
            else Say(" How long is A?", stop="eos")

    result, _, _ = run_method("question-decomposition", script, retriever)
    assert result.text == " It is 3." and retriever.queries == ["How long is A?"]


def test_stop_strings_blank_lines_and_budgets():
    result, _, _ = run_method(
        "question-decomposition", lines("?", " It is B.", "Question: next"), stop=("\nQuestion:",))
    assert (result.text, result.stop_reason) == (" It is B.", "stop_string")
    result, engine, _ = run_method(
        "question-decomposition", lambda c, i: Say("\n" if c.endswith("\n") else " a b c\n"))
    assert result.text == " a b c" and result.stop_reason == "no_progress"
    assert len(engine.calls) == 5  # question, answer, and a few blank lines
    result, _, _ = run_method(
        "question-decomposition", lambda c, i: Say(" Follow up: a?\n"), max_new_tokens=40)
    assert result.stop_reason == "max_new_tokens" and result.stats.num_retrievals <= 1
    result, _, _ = run_method(
        "question-decomposition", lines(*LINES), max_sentences=1)
    assert (result.text, result.stop_reason) == (" A is 3 km long.", "max_sentences")
    result, _, _ = run_method("question-decomposition", lines(*LINES), gate="never")
    assert result.text.endswith("So the answer is: B.") and result.stats.num_retrievals == 0
