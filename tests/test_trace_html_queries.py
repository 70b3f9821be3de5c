"""The page: rules, queries by the model, stopped drafts, unchanged passages, marked words."""

from __future__ import annotations

import html

from helpers_trace import parse
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_model import Lists, Say, ScriptedRetriever
from test_controller import LOW, run
from test_controller_queries import ASK, DRAFT, Asking
from test_evidence_policies import named

from flarecore.rules import DraftRule
from flarecore.trace_html.markup import tag
from flarecore.trace_html.searches import Words, marked
from flarecore.wording import used_spans


def card(result, number=1):
    """The sentence's card on the page."""
    page = parse(result.trace.to_html())
    (found,) = [e for e in page.all("li", "sentence") if e.attributes.get("id", "").endswith(
        f"s{number}")]
    return page, found


def test_queries_that_the_model_wrote():
    script = Asking([DRAFT, Say(stop="eos")], [Say(" Ann met Cy.")],
                    {"Bob": " Whom <b>did</b> Ann meet?", "Monday": " No question."})
    result, _, _ = run(script, query="question", span_gap=2, template=ASK)
    page, shown = card(result)
    asked = shown.one("section", "asked")
    assert [e.text for e in asked.all("p", "asked")] == [
        "for “Bob”: Whom <b>did</b> Ann meet?", "for “Monday”: No question., not used"]
    assert [e.text for e in asked.all("s")] == ["No question."]
    assert "questions that the model wrote" in shown.one("section", "search").text
    assert "query" in page.one("table", "phases").text
    assert html.escape("<b>did</b>") in result.trace.to_html()


def test_several_queries_stand_one_below_the_other():
    script = Lists([Say(" In 1913.", low=LOW), Say(stop="eos")], [Say(" In 1912.")])
    result, _, _ = run(script, query=lambda c: ["one", "two"])
    _, shown = card(result)
    assert [e.text for e in shown.all("p", "query")] == ["one", "two"]
    assert "query" not in [r.children[0].text for r in parse(
        result.trace.to_html()).one("table", "phases").one("tbody").all("tr")]


def test_a_rule_that_decided():
    script = Lists([Say(" Use AB-12."), Say(" Hello.", prob=0.1), Say(stop="eos")],
                   [Say(" Use AB-13.")])
    result, _, _ = run(script, must_retrieve=DraftRule(terms=("AB-12",)),
                       never_retrieve=lambda c: "Hello" in c.text)
    assert "Needs evidence (must_retrieve: “AB-12”)" in card(result, 1)[1].text
    assert "Needs no evidence (never_retrieve: <lambda>)" in card(result, 2)[1].text


def test_a_stopped_draft_and_its_end():
    script = Lists([Say(" In 1913 he left.", low=LOW)] * 2 + [Say(stop="eos")])
    result, _, _ = run(script, ScriptedRetriever(), trigger="token")
    _, shown = card(result)
    assert "stopped at a token below θ (low_confidence)" in shown.text
    titles = [e.text for e in shown.all("h4")]
    assert any(t.startswith("Written to its end") for t in titles)
    total = sum(p.num_decoded + p.num_prefilled + p.num_reused for p in (
        result.trace.sentences[0].draft, result.trace.sentences[0].completion))
    assert f"{total} tokens" in shown.one("div", "costs").text


def test_passages_that_were_in_view_already():
    script = Lists([Say(" In 1913.", low=LOW), Say(stop="eos")])
    result, _, _ = run(script, ScriptedRetriever(named("a")), initial_retrieval=True)
    _, shown = card(result)
    assert "had these very passages in view already" in shown.text
    assert "accepted as drafted" in shown.text


WORDS = st.lists(st.sampled_from(["Bern", "Ada", "1912", "the", "born-in", "你好吗", "。", "x"]))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(WORDS, WORDS, WORDS, st.integers(0, 30), st.integers(0, 30))
def test_marks_are_the_used_words_and_the_new_ones(text, used, known, begin, size):
    whole, words = " ".join(text), Words(" ".join(used), "-- " + " ".join(known))
    end = min(begin + size, len(whole))
    shown = parse("<!DOCTYPE html>\n" + tag("p", marked(whole, words, begin, end))).one("p")

    def covered(spans):
        return [whole[i:j] for i, j in spans if begin <= i and j <= end]

    assert shown.text == whole[begin:end]
    assert "".join(m.text for m in shown.all("mark")) == "".join(
        covered(used_spans(whole, words.used)))
    assert [m.text for m in shown.all("mark", "new")] == covered(used_spans(whole, words.new))


def test_a_long_passage_is_marked_in_linear_time():
    text = "Bern and " * 50_000
    assert marked(text, Words("in Bern")).count("<mark") == 50_000
