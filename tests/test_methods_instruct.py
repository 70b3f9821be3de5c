"""FLARE-instruct over a scripted engine: calls, what only looks like one, budgets."""

from __future__ import annotations

import pytest
from helpers_methods import PAPER, method_for, run_method, telling
from scripted_model import Say, ScriptedEngine, ScriptedRetriever, passages

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.methods import make_method
from flarecore.methods.instruct import BracketTokens
from flarecore.sampling import SamplingParams


def story(call, *, answered=" He was born in Lyon in 1912. He died.", before=" He was born in"):
    """Asks once; with passages in view the rest follows."""
    return telling(lambda context: answered if "P zero" in context
                   else f"{before} {call} Paris. He died.")


def test_a_call_is_searched_and_leaves_the_answer():
    retriever = ScriptedRetriever(passages("P zero."))
    result, engine, _ = run_method("flare-instruct", story("[Search(Joe birthplace)]"), retriever)
    assert retriever.queries == ["Joe birthplace"]
    assert result.text == " He was born in Lyon in 1912. He died."
    first, quiet, rest, *_ = engine.calls
    assert first.context.startswith("<bos>First skill") and "HEAD\n" in first.context
    assert first.options["stop"] == (")]",)
    # the passages stand before the question, the call is gone
    assert quiet.context.endswith("E:\n[1]: P zero.\nQ: Who?\nA: He was born in")
    assert (quiet.max_tokens, quiet.options["stop"]) == (5, ())
    assert rest.context.endswith("A: He was born in Lyon in 1912.")
    sentence = result.trace.sentences[0]
    assert sentence.draft.text == " He was born in [Search(Joe birthplace)]"
    assert sentence.draft.stop_reason == sentence.stop_reason == "call"
    assert sentence.draft.triggered and sentence.text == " He was born in"
    assert result.trace.retrievals[0].query_source == "call"


def test_the_bracket_is_favoured_and_then_forbidden():
    retriever = ScriptedRetriever(passages("P zero."))
    _, engine, _ = run_method(
        "flare-instruct", story("[Search(Joe)]"), retriever, own={"quiet_tokens": 2},
        sampling=SamplingParams(logit_bias={ord("["): 0.5, 7: 1.0}))
    first, quiet, rest, *_ = engine.calls
    assert first.options["sampling"].logit_bias == {ord("["): 2.5, 7: 1.0}
    assert quiet.max_tokens == 2 and quiet.options["sampling"].logit_bias[ord("[")] < -1e5
    assert rest.options["sampling"].logit_bias == {ord("["): 2.5, 7: 1.0}


def test_the_tokens_of_a_vocabulary_that_hold_a_bracket():
    engine = ScriptedEngine(None)
    tokenizer = engine.tokenizer
    at = len(tokenizer.token_table)
    tokenizer.token_table += [b" [", b"[S", b"a[", b"[]", b"[Search", b"  ["]
    tokens = BracketTokens(tokenizer)
    assert tokens.opening == (ord("["), at, at + 1, at + 4, at + 5)
    assert tokens.with_bracket == (ord("["), *range(at, at + 6))


@pytest.mark.parametrize(("call", "query"), [
    ("[Search(Foo (film))]", "Foo (film)"), ("[Search(Łódź 北京)]", "Łódź 北京"),
    ("[Search(two\nlines)]", "two lines"), ("[Search(a [b (c)] d)]", "a [b (c)] d"),
    ("[Search(Who is he? A man. Or not)]", "Who is he? A man. Or not"),
    ("[Search(x [Search(inner)]", "inner"), ("[Search()]", "Who?"),
])
def test_calls_in_all_their_forms(call, query):
    before = " He was born in [Search(x" if "inner" in query else " He was born in"
    for stop in ((), ("\nQuestion:",)):
        retriever = ScriptedRetriever(passages("P zero."))
        result, _, _ = run_method("flare-instruct", story(
            call, answered=f"{before} Lyon in 1912. He died."), retriever, stop=stop)
        assert retriever.queries == [query]
        assert result.text == f"{before} Lyon in 1912. He died."


@pytest.mark.parametrize("text", [
    " See [1] and [2]. Also (a [b (c)] d) there. Yes.", " [1]", " [Search]", " [search(x)] no.",
    " A [Search(never closed. Then more text. And more.", " It ends [Search(in it", " x)] y)] z.",
    " 北京 [注(一)] 是。 [Sea", "\n[Search (x)]\n\n[Search:(y)]\n",
])
def test_what_is_no_call_comes_out_byte_for_byte(text):
    retriever = ScriptedRetriever(passages("P zero."))
    for stop in ((), ("\nQuestion:",)):
        result, _, _ = run_method("flare-instruct", telling(text), retriever, stop=stop)
        assert result.text == text
    assert retriever.searches == []


def test_a_call_beside_brackets_that_are_none():
    retriever = ScriptedRetriever(passages("P zero."))
    script = story("[Search(Joe)]", before=" (a [b (c)] d) He", answered=" (a [b (c)] d) He is.")
    result, _, _ = run_method("flare-instruct", script, retriever)
    assert retriever.queries == ["Joe"] and result.text == " (a [b (c)] d) He is."


def test_a_call_is_not_cut_by_the_limit_of_a_piece():
    retriever = ScriptedRetriever(passages("P zero."))
    long = " one two three four five six"
    result, _, _ = run_method(
        "flare-instruct", telling(lambda c: f"{long} seven." if "P zero" in c
                                  else f"{long} [Search(a b c d)] x."),
        retriever, max_draft_tokens=10)
    assert retriever.queries == ["a b c d"]
    assert result.text == f"{long} seven."
    text = " [Search(a b c d e f g h i j k l m n o"
    result, _, _ = run_method("flare-instruct", telling(text), retriever, max_draft_tokens=10)
    assert result.text == text


def test_a_stop_string_inside_a_call_ends_the_answer():
    retriever = ScriptedRetriever(passages("P zero."))
    result, _, _ = run_method(
        "flare-instruct", telling(" He [Search(Joe\nQuestion: Who?)] x."), retriever,
        stop=("\nQuestion:",))
    assert (result.text, result.stop_reason) == (" He [Search(Joe", "stop_string")
    assert retriever.searches == []
    result, _, _ = run_method(
        "flare-instruct", telling(lambda c: " He is." if "P zero" in c
                                  else " He [Search(Joe)] x."), retriever, stop=("\nQuestion:",))
    assert result.text == " He is." and retriever.queries == ["Joe"]


def test_the_same_call_again_and_again_ends():
    retriever = ScriptedRetriever(passages("P zero."))

    def script(context, pass_index):
        return Say(" a b [Search(Joe)]", stop="max_tokens")

    result, _, _ = run_method("flare-instruct", script, retriever, max_new_tokens=60)
    assert retriever.queries == ["Joe"]
    assert result.stop_reason == "max_new_tokens"
    assert {s.unsupported_because for s in result.trace.sentences if s.draft.triggered} == {
        None, "repeated_query"}


def test_budgets_gate_and_missing_passages():
    script = telling(" He [Search(Joe)] is. [Search(Ann)] She was.")

    def once(context, pass_index):
        said = script(context, pass_index) if "A: He" not in context else Say(" is.", stop="eos")
        return said

    retriever = ScriptedRetriever(passages("P zero."))
    result, _, _ = run_method("flare-instruct", once, retriever, max_retrievals=0)
    assert result.text == " He is." and retriever.searches == []
    assert result.sentences[0].unsupported_because == "max_retrievals"
    result, _, _ = run_method("flare-instruct", once, retriever, gate="never")
    assert result.text == " He is." and retriever.searches == []
    result, _, _ = run_method("flare-instruct", once, ScriptedRetriever())
    assert result.text == " He is." and result.sentences[0].unsupported_because == "no_evidence"
    result, _, _ = run_method("flare-instruct", once, ScriptedRetriever(), no_evidence="stop")
    assert (result.text, result.stop_reason) == ("", "no_evidence")
    result, _, _ = run_method("flare-instruct", once, retriever, max_sentences=1)
    assert result.text == " He is."
    with pytest.raises(ConfigError, match="leave none out"):
        method_for("flare-instruct", once, ScriptedRetriever(),
                   no_evidence=lambda candidate: "omit")[1].generate("Who?")


def test_the_instruction_goes_into_chats_and_can_be_changed():
    def ask(prompt, **own):
        engine = ScriptedEngine(lambda context, pass_index: Say(" Hm.", stop="eos"), chat=True)
        method = make_method("flare-instruct", engine, None, FlareConfig(gate="never"), **own)
        method.generate(prompt)
        return engine.calls[0].context

    user = {"role": "user", "content": "Who?"}
    assert ask("Who?").startswith("<bos><|im_start|>system\nFirst skill")
    assert "system\nFirst skill" in ask([user]) and "Be brief." not in ask([user])
    assert "<|im_start|>user\nWho?" in ask([user])
    both = ask([{"role": "system", "content": "Be brief."}, user])
    assert both.index("First skill") < both.index("Be brief.") and both.count("system\n") == 1
    assert "system\nDo it." in ask("Who?", instruction="Do it.")
    with pytest.raises(ConfigError, match="instruction"):
        ask("Who?", instruction=" ")
    engine, method = method_for("flare-instruct", telling("", answer="Plain"), template=PAPER)
    method.generate(engine.tokenizer.encode("Plain"), question="Who?")
    assert engine.calls[0].context == "Plain"
