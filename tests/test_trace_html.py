"""The page of a trace: what it says, that nothing breaks out of it, how it looks in a browser."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re

import pytest
from helpers_trace import change_texts, example_trace, parse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flarecore.errors import ConfigError
from flarecore.trace import Trace
from flarecore.trace_html import trace_page
from flarecore.trace_html.markup import join, tag, visible
from flarecore.trace_html.page import asset
from flarecore.trace_html.tokens import difference

HOSTILE = ("</script></style></title></p><script>alert(1)</script><img src=x onerror=alert(1)>"
           "\"' onclick=x <!-- --> ]]> &lt; &#60; \x00\x1b[2J \u202eevil\u2066 \ud800 \u2028 {{7}}")


@pytest.fixture(scope="module")
def trace():
    return example_trace()


@pytest.fixture(scope="module")
def page(trace):
    return parse(trace.to_html())


def words(element, name, cls=""):
    return [e.text for e in element.all(name, cls)]


def test_the_page_names_question_answer_and_rules(trace, page):
    assert page.one("head").one("title").text == "When was Ada born? · FLARE trace"
    assert page.one("h1").text == "When was Ada born?"
    assert words(page.one("ul", "facts"), "li")[:3] == ["model scripted", "θ 0.5", "β 0.4"]
    reading = page.one("section", "reading")
    text = re.sub(r"(?<=\.)\d+", "", reading.one("p", "text").text)
    assert text == trace.text.strip()
    marks = [e.classes & {"o-draft", "o-regenerated", "o-unsupported"}
             for e in reading.one("p", "text").all("span", "s")]
    assert marks == [{"o-draft"}, {"o-regenerated"}, {"o-unsupported"}]
    assert "the model ended the answer (eos)" in reading.text


def test_totals_are_those_of_the_trace(trace, page):
    tiles = [(tile.one("b").text, tile.one("span").text, tile.one("small").text)
             for tile in page.one("ul", "tiles").all("li")]
    assert tiles[:4] == [
        ("6.50 s", "in all", "2.17 s a sentence"), ("3", "sentences", "18 tokens"),
        ("2 of 4", "drafts needed evidence", "trigger rate 50%"),
        ("2", "searches", "1 sentence written again")]
    # Written again: born, 1912, Bern. All stand in the passages.
    assert ("100%", "words found") in [tile[:2] for tile in tiles]


def test_phase_rows_add_up_to_the_counts(trace, page):
    stats, rows = trace.stats, page.one("table", "phases").one("tbody").all("tr")
    assert words(page.one("table", "phases"), "th")[7:] == [
        "draft", "retrieve", "regenerate", "other"]
    numbers = [[int(re.sub(r" of .*|,", "", n)) for n in words(row, "td", "number") if n]
               for row in (rows[0], rows[2])]
    reused, prefilled, one_by_one, accepted = map(sum, zip(*numbers, strict=True))
    assert (reused, prefilled) == (stats.num_reused, stats.num_prefilled)
    assert accepted == stats.num_accepted > 0
    assert one_by_one + accepted == stats.num_decoded
    assert [row.all("td", "measure")[0].text for row in rows] == [
        "draft 4.50 s4.50 s, 69%", "retrieve 500 ms500 ms, 8%", "regenerate 1.50 s1.50 s, 23%",
        "0.0 ms, 0%"]
    bars = [float(r.attributes["width"].rstrip("%")) for r in rows[2].all("rect")]
    assert bars[0] == pytest.approx(100 * 1.5 / 4.5, abs=0.01)


def test_draft_tokens_tell_confidence_threshold_and_mask(trace, page):
    card = page.all("li", "sentence")[1]
    draft = trace.sentences[1].draft
    tokens = card.one("p", "tokens").all(cls="t")
    assert [t.text for t in tokens] == [text.strip() for text in draft.tokens]
    assert card.one("p", "tokens").text == draft.text.strip()
    low = next(t for t in tokens if t.text == "1913")
    assert low.name == "s" and low.classes == {"t", "c1", "lo"}
    assert low.attributes["title"] == "0.1 · below θ · not in the query"
    others = [t for t in tokens if t is not low]
    assert {(t.name, *sorted(t.classes)) for t in others} == {("span", "c9", "t")}
    assert "Lowest confidence 0.1, below θ = 0.5: needs evidence" in card.text
    assert "not below θ = 0.5: needs no evidence" in page.all("li", "sentence")[0].text


def test_the_legend_has_both_thresholds_at_their_place(page):
    legend = page.one("div", "legend")
    assert {(pin.text, pin.attributes["x"]) for pin in legend.all("svg", "pin")} == {
        ("θ = 0.5", "50.00%"), ("β = 0.4", "40.00%")}
    assert [t.classes - {"t"} for t in legend.one("div", "scale").all("span")] == [
        {f"c{i}"} for i in range(10)]


def test_the_search_shows_query_filter_and_used_words(trace, page):
    search = page.all("li", "sentence")[1].one("section", "search")
    assert search.one("p", "query").text == trace.sentences[1].retrievals[0].query
    assert search.one("span", "scope").text == "Ada"
    assert "only where lang = en" in search.text
    first, second, third = search.one("ol", "passages").all("li")
    assert first.one("span", "score").text == "0.750" and first.one("b").text == "Ada: life"
    assert [m.text for m in first.all("mark")] == ["born", "Bern", "1912"]
    assert [m.text for m in first.all("mark", "new")] == ["Bern", "1912"]
    # long: an excerpt that opens to the whole text
    assert second.one("details").one("summary").text.endswith("all 840 characters")
    assert second.one("details").children[1].text == "The winter was cold. " * 40
    assert third.classes == {"unused"} and "not used" in third.text and not third.all("mark")


def test_the_rewritten_sentence_is_a_difference(page):
    card = page.all("li", "sentence")[1]
    rewrite = card.one("section", "rewrite")
    assert words(rewrite, "del") == ["1913", "Rome"] and words(rewrite, "ins") == ["1912", "Bern"]
    assert "Against the draft: 6 tokens kept, 2 removed, 2 new; ended" in rewrite.text
    assert rewrite.one("p", "proposal").text.endswith("4 of 8 proposed tokens right (50%)")
    assert words(card.one("section", "accepted"), "mark", "new") == ["1912", "Bern"]
    plain = page.all("li", "sentence")
    assert "plain" in plain[0].classes and not plain[0].all("section", "search")
    assert "unsupported: no evidence" in plain[2].text and "Nothing was found." in plain[2].text
    assert "Nothing was added; the model ended the answer (eos)." in plain[3].text


PIECES = [" the", " cat", "s", " 19", "12", "13", "", "年", "，", " ", "\n", "</p>"]
TOKENS = st.lists(st.sampled_from(PIECES), max_size=14)


@given(TOKENS, TOKENS)
@settings(max_examples=200, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_difference_holds_both_sentences(trace, before, after):
    def spoken(tokens):
        ids = tuple(PIECES.index(t) for t in tokens)
        return dataclasses.replace(
            trace.sentences[0].draft, text="".join(tokens), tokens=tuple(tokens), token_ids=ids,
            probs=(0.5,) * len(ids), low=(False,) * len(ids))

    found = difference(spoken(before), spoken(after))
    assert found.num_kept + found.num_removed == len(before)
    assert found.num_kept + found.num_new == len(after)
    tree = parse("<!DOCTYPE html>\n" + found.markup).one("p")

    def without(name):
        text = "".join(c if isinstance(c, str) else "" if c.name == name else c.text
                       for c in tree.children)
        return re.sub(r"[\s◌]+", "", text.replace("↵", ""))

    assert without("del") == re.sub(r"\s+", "", "".join(after))
    assert without("ins") == re.sub(r"\s+", "", "".join(before))


def test_the_page_needs_nothing_and_allows_nothing(trace):
    text = trace.to_html()
    page = parse(text)
    ids = [e.attributes["id"] for e in page.walk() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    for element in page.walk():
        names = set(element.attributes)
        assert not any(n.startswith("on") or n in ("style", "srcset", "action") for n in names)
        for name in {"src", "href"} & names:
            target = element.attributes[name]
            assert target == "data:," or (target[0] == "#" and target[1:] in ids)
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", text) and "@import" not in text
    (policy,) = [m.attributes["content"] for m in page.all("meta")
                 if m.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    for name in ("style", "script"):
        digest = hashlib.sha256(page.one(name).text.encode()).digest()
        assert f"{name}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy


def hostile(trace, evil=HOSTILE):
    return change_texts(trace, lambda text: evil + text)


@pytest.mark.parametrize("several", [False, True])
def test_no_text_breaks_out(trace, several):
    traces = [hostile(trace), trace][:1 + several]
    good, bad = parse(trace_page([trace] * len(traces))), parse(trace_page(traces))
    bad_names = {e.name for e in bad.walk()}
    assert bad_names <= {e.name for e in good.walk()} | {"small"}
    assert "img" not in bad_names and len(bad.all("script")) == len(bad.all("style")) == 1
    assert bad.one("style").text == good.one("style").text
    assert visible(HOSTILE + trace.sentences[1].retrievals[0].passages[0].title) in bad.text
    assert "[U+0000]" in bad.text and "[U+202E]" in bad.text and "[U+D800]" in bad.text
    trace_page(traces).encode("utf-8")


@given(st.text(), st.text())
@settings(max_examples=100, deadline=None)
def test_every_text_and_attribute_comes_back_as_it_was(text, value):
    made = parse("<!DOCTYPE html>\n" + join(tag("p", text, title=value)))
    element = made.one("p")
    assert element.text == visible(text) and element.attributes == {"title": visible(value)}


def test_several_answers_have_an_index(trace):
    other = example_trace("谁是艾达？", theta=0.6)
    page = parse(trace_page([trace, other]))
    links = page.one("table", "index").one("tbody").all("a")
    assert [(a.text, a.attributes["href"]) for a in links] == [
        ("When was Ada born?", "#a1"), ("谁是艾达？", "#a2")]
    assert links[1].attributes["lang"] == "zh"
    answers = page.all("details", "answer")
    assert ["open" in a.attributes for a in answers] == [True, False]
    assert words(page.one("table", "index"), "small") == ["theta 0.5", "theta 0.6"]


def test_a_second_search_for_a_sentence_shows_its_own_mask(trace):
    second = trace.sentences[1]
    search, again = second.retrievals[0], second.regenerations[0]
    kept = tuple(i != 4 for i in range(len(again.token_ids)))
    twice = dataclasses.replace(second, retrievals=(search, dataclasses.replace(search, kept=kept)),
                                regenerations=(again, second.draft))
    page = parse(dataclasses.replace(trace, sentences=(twice,)).to_html())
    card = page.one("li", "sentence")
    assert words(card, "s") == ["1913", again.tokens[4].strip()]
    assert "Against the sentence before" in card.text
    assert "wide" not in card.one("div", "steps").classes


@pytest.mark.parametrize(("part", "field", "message"), [
    ("draft", "probs", r"sentences\[1\].draft.probs must have one value"),
    ("draft", "tokens", r"sentences\[1\].draft.tokens must have"),
    ("regenerations", "low", r"regenerations\[0\].low must have"),
    ("retrievals", "kept", r"retrievals\[0\].kept must have")])
def test_a_trace_that_contradicts_itself_is_refused(trace, part, field, message):
    data = trace.to_dict()
    place = data["sentences"][1][part]
    (place[0] if isinstance(place, list) else place)[field].pop()
    with pytest.raises(ConfigError, match=message):
        Trace.from_dict(data).to_html()
    with pytest.raises(ConfigError, match="at least one trace"):
        trace_page([])


def test_a_sentence_that_evidence_did_not_change_says_so(trace):
    second = trace.sentences[1]
    same = dataclasses.replace(second, regenerations=(
        dataclasses.replace(second.draft, pass_index=1, num_proposed=8, num_accepted=8),))
    page = parse(dataclasses.replace(trace, sentences=(same,)).to_html())
    assert page.one("span", "badge").text == "= written again with evidence, unchanged"
    card = page.one("li", "sentence")
    assert not card.all("del") and not card.all("ins")
    assert "Against the draft: the same 8 tokens" in card.text


def test_odd_numbers_and_unknown_names_do_no_harm(trace):
    data = trace.to_dict()
    data["config"] = {"theta": "high", "beta": 7, "trigger": None, "nested": {"a": [1, None]}}
    data["question"] = data["scope"] = None
    data["stats"].update(num_reused=-5, draft_ms=-1.0, num_sentences=0, num_decoded=10**30)
    data["sentences"][0].update(outcome="novel", stop_reason="novel reason")
    data["sentences"][1]["draft"].update(time_ms=-3.0, num_decoded=-1)
    data["sentences"][1]["draft"]["probs"][:3] = [-1.0, 2.0, 1e300]
    text = Trace.from_dict(data).to_html()
    assert "novel" in text and "(the prompt was given as tokens)" in text
    assert all(0 <= float(w) <= 100 for w in re.findall(r'width="([-\d.]+)%"', text))


def contrast(one, other):
    """WCAG 2 contrast ratio of two colours #rrggbb."""
    def luminance(colour):
        parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_is_readable_on_every_colour_in_both_schemes():
    css = asset("page.css")
    names = {name: pair for name, *pair in re.findall(
        r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", css)}
    levels = re.findall(r"\.c\d { background: light-dark\((#\w{6}), (#\w{6})\)", css)
    assert len(levels) == 9
    for scheme in (0, 1):
        pairs = [("ink", level[scheme]) for level in levels]
        pairs += [(text, names[ground][scheme]) for text, ground in (
            ("ink", "paper"), ("ink", "card"), ("dim", "card"), ("dim", "paper"), ("dim", "sunk"),
            ("link", "card"), ("link", "paper"), ("good", "good-soft"), ("warn", "warn-soft"),
            ("warn", "card"), ("bad", "bad-soft"))]
        for text, ground in pairs:
            assert contrast(names[text][scheme], ground) >= 4.5, (text, ground)
