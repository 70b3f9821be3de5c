"""The page of a trace in a real browser: what it shows, how it is laid out, that nothing runs."""

from __future__ import annotations

import dataclasses
import json

import pytest
from helpers_browser import NAMES, Browser, find_browser
from helpers_trace import change_texts, example_trace
from test_trace_html import HOSTILE

from flarecore.trace_html import trace_page

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is installed ('make test' "
                            "installs Chromium if it may; on Debian: apt-get install chromium)")
SIZES = [(360, "light"), (720, "dark"), (1400, "light")]


@pytest.fixture(scope="module")
def browser():
    with Browser(BROWSER) as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Addresses of pages: one answer, several, one of a hundred sentences, hostile texts."""
    folder = tmp_path_factory.mktemp("pages")
    trace, chinese = example_trace(), example_trace("谁是艾达？", theta=0.6)
    sentences = tuple(dataclasses.replace(trace.sentences[i % 3], index=i) for i in range(100))
    long = dataclasses.replace(trace, sentences=sentences,
                               text="".join(s.text for s in sentences))
    no_spaces = change_texts(trace, lambda text: text.replace(" ", "") + "x" * 300)
    evil = change_texts(trace, lambda text: HOSTILE.replace("alert(1)", "window.broken=1") + text)
    made = {"one": [trace], "several": [trace, chinese], "long": [long], "evil": [evil],
            "no_spaces": [no_spaces]}
    for name, traces in made.items():
        (folder / f"{name}.html").write_text(trace_page(traces), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in made}


def js(browser, script):
    """Value of the statements of a function body."""
    return json.loads(browser.js(f"JSON.stringify((() => {{ {script} }})())"))


def is_quiet(browser):
    """Nothing was fetched but the page (and its empty icon), and nobody complained."""
    fetched = {r["request"]["url"].split(":")[0]
               for r in browser.happened("Network.requestWillBeSent")}
    complaints = browser.happened("Log.entryAdded", "Runtime.exceptionThrown",
                                  "Runtime.consoleAPICalled")
    return fetched <= {"file", "data"} and not complaints


@pytest.mark.parametrize("name", ["one", "several", "long", "evil", "no_spaces"])
@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_it_fits_and_is_quiet(browser, pages, name, width, scheme):
    browser.open(pages[name], width=width, scheme=scheme)
    found = js(browser, """
        const root = document.documentElement;
        const out = [...document.querySelectorAll("main *")].filter(e => !e.closest("svg")
            && e.getBoundingClientRect().right > root.clientWidth + 1 && e.offsetParent);
        return {overflow: root.scrollWidth - root.clientWidth,
                out: out.map(e => e.tagName + "." + e.className).slice(0, 5),
                ground: getComputedStyle(document.body).backgroundColor}""")
    assert found["overflow"] <= 0 and found["out"] == []
    assert found["ground"] == {"light": "rgb(247, 246, 242)", "dark": "rgb(19, 21, 25)"}[scheme]
    assert is_quiet(browser)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tokens_show_confidence_by_more_than_colour(browser, pages, scheme):
    browser.open(pages["one"], scheme=scheme)
    tokens = js(browser, """
        const card = document.getElementById("a1s2");
        return [...card.querySelectorAll(".tokens .t")].map(e => {
            const s = getComputedStyle(e);
            return [e.innerText, s.backgroundColor, s.borderBottomWidth, s.fontWeight,
                    s.textDecorationLine]; })""")
    low = next(t for t in tokens if t[0] == "1913")
    sure = next(t for t in tokens if t[0] == "born")
    assert sure[1:] == ["rgba(0, 0, 0, 0)", "0px", "400", "none"]
    assert low[1] != sure[1] and float(low[2].removesuffix("px")) >= 3
    assert low[3:] == ["700", "line-through"]
    scale = js(browser, """return [...document.querySelectorAll(".scale .t")].map(
        e => parseFloat(getComputedStyle(e).borderBottomWidth))""")
    assert scale == sorted(scale, reverse=True) and scale[0] > scale[5] > scale[9] == 0
    pins = js(browser, """
        const scale = document.querySelector(".scale").getBoundingClientRect();
        return [...document.querySelectorAll(".pin")].map(pin => {
            const box = pin.querySelector("path").getBoundingClientRect();
            return [pin.textContent, (box.left + box.width / 2 - scale.left) / scale.width]; })""")
    assert {text: round(at, 2) for text, at in pins} == {"β = 0.4": 0.4, "θ = 0.5": 0.5}


def test_the_difference_and_the_used_words_stand_out(browser, pages):
    browser.open(pages["one"])
    shown = js(browser, """
        const look = (selector) => [...document.querySelectorAll("#a1s2 " + selector)].map(
            e => [e.innerText, getComputedStyle(e).textDecorationLine]);
        return {diff: document.querySelector("#a1s2 .diff").innerText, del: look("del"),
                ins: look("ins"), marks: look(".passages mark.new"),
                badge: document.querySelector("#a1s2 .badge").innerText}""")
    assert shown["diff"].replace(" ", "") == "Shewasbornin19131912inRomeBern."
    assert shown["del"] == [["1913", "line-through"], ["Rome", "line-through"]]
    assert shown["ins"] == [["1912", "underline"], ["Bern", "underline"]]
    assert [text for text, _ in shown["marks"]] == ["Bern", "1912"]
    assert shown["badge"] == "↻ written again with evidence"


def test_bars_are_as_long_as_their_numbers(browser, pages):
    browser.open(pages["one"])
    widths = js(browser, """
        return [...document.querySelectorAll(".phases tbody tr")].map(row => {
            const bar = row.querySelector("svg").getBoundingClientRect();
            const part = row.querySelector("rect");
            return part ? part.getBoundingClientRect().width / bar.width : 0; })""")
    # 4.5 s of drafts fill the width; 0.5 s of searches, 1.5 s of regenerations, nothing else
    assert widths == pytest.approx([1, 0.5 / 4.5, 1.5 / 4.5, 0], abs=0.01)
    kinds = js(browser, """
        const rects = [...document.querySelectorAll(".phases rect")];
        return rects.map(r => [r.getAttribute("class"), getComputedStyle(r).fill])""")
    fills = dict(kinds)
    assert len(set(fills.values())) == len(fills) - 2  # draft is decoded, retrieve is prefilled
    assert all("url" in fills[k] for k in ("f-reused", "f-accepted", "f-regenerate"))


def test_a_token_tells_its_confidence_to_pointer_and_keys(browser, pages):
    browser.open(pages["one"])
    first = js(browser, """
        const tip = document.querySelector(".tip"), list = document.querySelector("#a1s2 .tokens");
        const token = [...list.querySelectorAll(".t")].find(e => e.innerText === "1913");
        const before = tip.hidden;
        token.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
        const pointed = [before, tip.hidden, tip.innerText, token.hasAttribute("title")];
        document.body.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
        const left = [tip.hidden, token.title];
        list.focus();
        const press = (key) => list.dispatchEvent(new KeyboardEvent("keydown",
            {key, bubbles: true, cancelable: true}));
        press("ArrowRight"); press("ArrowRight");
        return {pointed, left, at: list.querySelector(".at").innerText, tip: tip.innerText}""")
    note = "0.1 · below θ · not in the query"
    assert first == {"pointed": [True, False, note, False], "left": [True, note],
                     "at": "was", "tip": "0.95"}
    rows = json.loads(browser.js("""new Promise(resolve => {
        const details = document.querySelector("#a1s2 .exact");
        details.addEventListener("toggle", () => resolve(JSON.stringify(
            [...details.querySelectorAll("tr")].map(
                row => [...row.children].map(cell => cell.innerText)))));
        details.querySelector("summary").click(); })"""))
    assert ["1913", "0.1", "below θ, not in the query"] in rows and len(rows) == 8


def test_a_link_opens_its_answer_and_print_shows_all(browser, pages):
    browser.open(pages["several"] + "#a2s2")
    state = js(browser, """
        const answers = [...document.querySelectorAll("details.answer")];
        const box = document.getElementById("a2s2").getBoundingClientRect();
        return {open: answers.map(a => a.open), seen: box.top >= 0 && box.top < innerHeight}""")
    assert state == {"open": [True, True], "seen": True}
    browser.open(pages["long"], width=720, media="print")
    shown = js(browser, """
        return {tools: getComputedStyle(document.querySelector(".tools")).display,
                ground: getComputedStyle(document.body).backgroundColor,
                lazy: getComputedStyle(document.querySelector(".sentence")).contentVisibility,
                cards: document.querySelectorAll(".sentence").length}""")
    assert shown == {"tools": "none", "ground": "rgb(255, 255, 255)", "lazy": "visible",
                     "cards": 100}


def test_hostile_text_stays_text_and_no_script_can_be_added(browser, pages):
    browser.open(pages["evil"])
    state = js(browser, """
        const script = document.createElement("script");
        script.textContent = "window.added = 1";
        document.body.append(script);
        const image = document.createElement("img");
        image.setAttribute("onerror", "window.added = 2");
        image.src = "https://example.invalid/x.png";
        document.body.append(image);
        return {broken: window.broken, added: window.added, frames: frames.length,
                title: document.title.slice(0, 9),
                images: document.querySelectorAll("main img, main script, main style").length}""")
    assert state == {"frames": 0, "title": "</script>", "images": 0}
    texts = [e["entry"]["text"] for e in browser.happened("Log.entryAdded")]
    assert len(texts) >= 2 and all("Content Security Policy" in text for text in texts)
    assert browser.js("window.added === undefined && window.broken === undefined")
