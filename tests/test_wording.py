"""The display's text work: safe text, used words, excerpts."""

import numpy as np
import pytest

from flarecore.wording import content_words, excerpt, filter_words, printable, used_spans


@pytest.mark.parametrize(("text", "shown"), [
    ("plain\ttext\n", "plain\ttext\n"),
    ("\x1b[2Jgone", "\N{REPLACEMENT CHARACTER}[2Jgone"),
    ("\x9b31mred", "\N{REPLACEMENT CHARACTER}31mred"),
    ("a\u202egpj.exe", "a\N{REPLACEMENT CHARACTER}gpj.exe"),
    ("a\r\nb\rc", "a\nb\N{REPLACEMENT CHARACTER}c"),
    ("half \ud800 a pair", "half \N{REPLACEMENT CHARACTER} a pair"),
    ("差旅 θ", "差旅 θ"),
])
def test_control_characters_are_replaced(text, shown):
    assert printable(text) == shown


def marked(text, sentence):
    return [text[begin:end] for begin, end in used_spans(text, content_words([sentence]))]


@pytest.mark.parametrize(("text", "sentence", "expected"), [
    ("She was born on 9 March 1931 in Husum.", "Born in Husum in 1931.", ["born", "1931", "Husum"]),
    ("It weighs 11,800 kilograms.", "11,800 kg, not 11 or 800", ["11,800"]),
    ("It was the one of them.", "the one of them was it", []),
    ("酒店每晚不超过850元。", "每晚不超过850元", ["每晚不超过850"]),
    ("晚了", "晚", []),
    ("Veldenmoor's high-speed rail", "high-speed", ["high-speed"]),
    ("", "anything", []),
])
def test_used_words(text, sentence, expected):
    assert marked(text, sentence) == expected


def test_excerpt_holds_the_used_words_and_ends_at_words():
    text = "filler " * 50 + "Marwede received the Lindqvist Medal " + "padding " * 50
    words = content_words(["the Lindqvist Medal"])
    begin, end = excerpt(text, words, 80)
    assert "Lindqvist Medal" in text[begin:end]
    assert end - begin <= 80
    assert text[begin - 1] == " " and text[end] == " "


@pytest.mark.parametrize("text", ["", "short", "x" * 300, "差" * 300, "one two " * 60])
@pytest.mark.parametrize("words", [frozenset(), frozenset({"two"}), frozenset({"差差"})])
def test_excerpt_is_a_bounded_range(text, words):
    begin, end = excerpt(text, words, 100)
    assert 0 <= begin <= end <= len(text)
    assert end - begin <= 100
    if text:
        assert end > begin


def test_excerpt_has_the_most_used_words_that_fit():
    rng = np.random.default_rng(4)
    for size in (5, 17, 40):
        text = " ".join(rng.choice(["two", "one", "longer"], 60))
        found = used_spans(text, frozenset({"two"}))
        most = max(sum(begin <= left and right <= begin + size for left, right in found)
                   for begin, _ in found)
        begin, end = excerpt(text, frozenset({"two"}), size)
        assert len(used_spans(text[begin:end], frozenset({"two"}))) == most


def test_excerpt_of_a_long_text_takes_linear_time():
    text = "two one " * 100_000
    begin, end = excerpt(text, frozenset({"two"}), 100)
    assert text[begin:end].startswith("two one two")


def test_short_texts_are_whole():
    assert excerpt("a b c", frozenset(), 5) == (0, 5)


def test_filter_on_one_line():
    conditions = {"lang": "en", "date": {"gte": "2026-01-01", "ne": "2027-01-01"}, "id": ["a", "b"]}
    assert filter_words(conditions) == (
        "lang = en, date ≥ 2026-01-01, date ≠ 2027-01-01, id in ['a', 'b']")
