"""Mask to query, low spans and punctuation tokens."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecore.errors import ConfigError
from flarecore.reference import text as reference
from flarecore.text import (
    SentenceBoundary,
    is_punctuation_or_space,
    low_spans,
    mask_to_query,
    split_sentences,
)


def mask(marked: str, unit: str = "word") -> str:
    """Query of tokens separated by ``|``; those that begin with ``!`` are low."""
    tokens = marked.split("|")
    probs = [0.1 if t.startswith("!") else 0.9 for t in tokens]
    data = [t.removeprefix("!").encode() for t in tokens]
    return mask_to_query(data, probs, 0.4, unit=unit)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("marked", "query"),
    [
        ("Joe| Biden| attended| the| University| of|! Penn|sylvania|,| then| left|.",
         "Joe Biden attended the University of then left."),
        ("He| lives| in| Penn|!sylvania|.", "He lives in"),
        ("He|!,| she| and| it", "He she and it"),  # a low comma takes no word along
        ("in|! Lyon|,| then", "in then"),  # a comma that lost its word goes
        ("(|!Lyon|)| then", "then"),
        ("Anne| (|b|.|! 1950|)| wrote", "Anne (b. wrote"),
        ("a| -| b|! c", "a - b"),
        ("Bosnia|-|!Herz|egovina| won", "Bosnia- won"),  # a hyphen separates words
        ("do|n|!'t| go", "go"),
        ("the| U|!.|S|.| army", "the army"),
        ("about| 3|.|!14| m", "about m"),
        ("1|,|!000| men", "men"),
        ("Lyon|,|!Kent| men", "Lyon, men"),
        ("10|:|!30| today", "today"),
        ("10|:|! 30| today", "10: today"),
        ("a|! b|! c|! d| e", "a e"),
        ("  a |\n|\t b  ", "a b"),
        ("北京|!大学|成立", "北京 成立"),
        ("他|在|!北京|大学|。", "他在 大学。"),
        ("iPhone|手|!机|很贵", "iPhone手 很贵"),
        ("iPh|!one|手机", "手机"),
        ("한|!국|어| 공부", "공부"),  # Hangul has spaces
        ("กร|!ุ|งเทพ", "ก งเทพ"),  # a mark goes with its base
        ("か|!\u3099|き", "き"),
        ("नम|!स्ते| दुनिया", "दुनिया"),
        ("na|!i\u0308|ve| man", "man"),
        ("می\u200c|!خواهم| بروم", "بروم"),
        ("!a|!b", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_words(marked: str, query: str) -> None:
    assert mask(marked) == query
    assert mask(marked, "auto") == query


def test_token_unit_drops_the_token_only() -> None:
    assert mask("in| Penn|!sylvania|,| then", "token") == "in Penn , then"
    assert mask("the| U|!.|S|. army", "token") == "the U S. army"
    assert mask("北京|!大学|成立", "token") == "北京 成立"


def test_beta_is_exact_and_inclusive_is_the_authors_code() -> None:
    tokens, probs = [b"a", b" b", b" c"], np.array([0.4, 0.39999998, 0.40000004], np.float32)
    assert mask_to_query(tokens, probs, 0.4) == ("a c", [True, False, True])
    assert mask_to_query(tokens, probs, 0.4, inclusive=True) == ("c", [False, False, True])
    ends = np.array([0.0, 1.0, 0.5], np.float32)
    assert mask_to_query(tokens, ends, 0.0)[0] == "a b c"
    assert mask_to_query(tokens, ends, 0.0, inclusive=True)[0] == "b c"
    assert mask_to_query(tokens, ends, 1.0)[0] == "b"
    assert mask_to_query(tokens, ends, 1.0, inclusive=True)[0] == ""


def test_nan_is_low() -> None:
    assert mask_to_query([b"a", b" b"], [math.nan, 0.0], 0.0) == ("b", [False, True])


def test_a_character_in_several_tokens_goes_as_a_whole() -> None:
    tokens = ["京".encode()[:2], "京".encode()[2:], b"a"]
    assert mask_to_query(tokens, [0.9, 0.9, 0.9], 0.4) == ("京a", [True, True, True])
    for low in (0, 1):
        probs = [0.9, 0.9, 0.9]
        probs[low] = 0.1
        assert mask_to_query(tokens, probs, 0.4) == ("a", [False, False, True])


def test_invalid_bytes_become_gaps() -> None:
    tokens = [b"a\xff", b"b", b"\xe4\xb8", b"c", b"\xef\xbf\xbd"]
    query, kept = mask_to_query(tokens, [0.9] * 5, 0.4)
    assert query == "a b c"
    assert kept == [True, True, False, True, False]


@pytest.mark.parametrize(
    "piece",
    ["c080", "c1bf", "e08080", "e09fbf", "eda080", "f0808080", "f08fbfbf", "f4908080", "ff"],
)
def test_forbidden_forms_are_no_characters(piece: str) -> None:
    token = bytes.fromhex(piece)
    assert mask_to_query([b"a" + token + b"b"], [0.9], 0.4)[0] == "a b"
    assert not is_punctuation_or_space(token)


def test_special_tokens_never_reach_a_query() -> None:
    tokens = [b"<s>", b"Pa", b"<pad>", b"ris", b" is", "京".encode()[:1], b"<x>", "京".encode()[1:]]
    special = [True, False, True, False, False, False, True, False]
    query, kept = mask_to_query(tokens, [0.9] * 8, 0.4, special=special)
    assert query == "Pa ris is"  # nothing reaches across a special token
    assert kept == [False, True, False, True, True, False, False, False]


def test_kept_flags() -> None:
    tokens = [b" Penn", b"sylvania", b",", b" ", b"", b" x", b"\n"]
    probs = [0.9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.1]
    _, kept = mask_to_query(tokens, probs, 0.4)
    assert kept == [False, False, False, True, True, True, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta": 1.5}, "beta"),
        ({"beta": -0.1}, "beta"),
        ({"beta": math.nan}, "beta"),
        ({"beta": None}, "beta"),
        ({"beta": 10**400}, "beta"),
        ({"probs": [0.5]}, "one probability a token"),
        ({"probs": [[0.5, 0.5]]}, "one dimension"),
        ({"probs": [0.5, -100.0]}, "logarithms"),
        ({"probs": [0.5, math.inf]}, "probability 1"),
        ({"special": [True]}, "special flag"),
        ({"special": []}, "special flag"),
        ({"unit": "letter"}, "unit"),
        ({"unit": None}, "unit"),
        ({"probs": ["0.5", "half"]}, "probs must be one number a token"),
        ({"probs": [0.5, 1j]}, "probs must be one number a token"),
        ({"special": 1}, "special"),
        ({"token_bytes": ["a", b"b"]}, r"token_bytes\[0\] must be bytes, got str"),
        ({"token_bytes": b"ab"}, "token_bytes"),
        ({"token_bytes": None}, "token_bytes"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], message: str) -> None:
    good = {"token_bytes": [b"a", b"b"], "probs": [0.5, 0.5], "beta": 0.4}
    with pytest.raises(ConfigError, match=message):
        mask_to_query(**{**good, **change})  # type: ignore[arg-type]


def spans(marked: str, span_gap: int = 0) -> list[tuple[int, int]]:
    tokens = marked.split("|")
    probs = [0.1 if t.startswith("!") else 0.9 for t in tokens]
    data = [t.removeprefix("!").encode() for t in tokens]
    special = [t.endswith("<s>") for t in tokens]
    return low_spans(probs, 0.4, span_gap=span_gap, token_bytes=data, special=special)


def test_low_spans() -> None:
    assert spans("a|b|c") == []
    assert spans("!a|!b|c|!d") == [(0, 2), (3, 4)]
    assert spans("!a|b|!c", 2) == [(0, 1), (2, 3)]  # distance 2 is not below 2
    assert spans("!a|b|!c", 3) == [(0, 3)]
    assert spans("!a|b|c|d|!e|f|g|h|i|!j", 5) == [(0, 5), (9, 10)]
    assert spans("!,|! |!a|!.|!\n") == [(2, 3)]  # punctuation is never low
    assert spans("!a|!,|!b", 2) == [(0, 1), (2, 3)]
    assert spans("!a|!,|!b", 3) == [(0, 3)]
    assert spans("!a|!<s>|!b", 9) == [(0, 1), (2, 3)]
    assert spans("!€") == [(0, 1)]
    assert low_spans([0.4], 0.4, span_gap=0, token_bytes=[b"a"]) == []
    assert low_spans([0.4], 0.4, span_gap=0, token_bytes=[b"a"], inclusive=True) == [(0, 1)]
    assert low_spans([0.1, 0.1], 0.4, span_gap=0, token_bytes=[b"\xe4", b"\xb8\xad"]) == [(0, 2)]
    for gap in (-1, 0.5, "1"):
        with pytest.raises(ConfigError, match="span_gap"):
            low_spans([0.4], 0.4, span_gap=gap, token_bytes=[b"a"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="threshold"):
        low_spans([0.4], math.nan, span_gap=0, token_bytes=[b"a"])


@pytest.mark.parametrize("wrong", ["a", None, bytearray(b"a")])
def test_text_in_place_of_bytes_is_refused(wrong: object) -> None:
    for call in (is_punctuation_or_space, SentenceBoundary().feed):
        with pytest.raises(ConfigError, match="token_bytes must be bytes"):
            call(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="text must be a string"):
        split_sentences(b"a" if isinstance(wrong, str) else wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("token", "expected"),
    [(b"", True), (b".", True), (b' ,"', True), (b"\n\n", True), ("。」".encode(), True),
     ("…—“".encode(), True), ("\u3000".encode(), True), (b"$+=|<>^`~", True), (b"a", False),
     (b".a", False), (b"1", False), ("京".encode(), False), ("京".encode()[:1], False),
     (b"\x82", False), (b".\xe3\x80", False), ("€".encode(), False), ("🎉".encode(), False)],
)  # fmt: skip
def test_punctuation_tokens(token: bytes, expected: bool) -> None:
    assert is_punctuation_or_space(token) is expected
    assert reference.is_punctuation_or_space(token) is expected


PIECES = (
    " Penn|sylvania|,| in| 19|90|3|.|14|U|S| the|北京|大学|。|，| -|-|(|)|'|s|&|_|@|:|é|ก|ำ|่"
    "|カ|ﾞ|が|\u3099|한|국| |\n|  |🎉|€|$|<|x|>||\u200d|\ufffd"
)
TOKENS = [piece.encode() for piece in PIECES.split("|")]
TOKENS += [
    b"\xff",
    b"\xe4",
    b"\xe4\xb8",
    b"\xb8\xad",
    b"\xad",
    b"\xf0\x9f",
    b"\x8e\x89",
    b"\xed\xa0\x80",
]
PROBS = st.sampled_from([0.0, 0.1, 0.4, 0.5, 0.9, 1.0, math.nan])


@settings(derandomize=True, deadline=None, max_examples=500)
@given(
    tokens=st.lists(st.tuples(st.sampled_from(TOKENS), PROBS, st.booleans()), max_size=10),
    any_special=st.booleans(),
    beta=st.sampled_from([0.0, 0.4, 0.5, 1.0]),
    unit=st.sampled_from(["word", "token", "auto"]),
    inclusive=st.booleans(),
    span_gap=st.integers(0, 4),
)
def test_native_equals_the_reference(
    tokens: list[tuple[bytes, float, bool]],
    any_special: bool,
    beta: float,
    unit: str,
    inclusive: bool,
    span_gap: int,
) -> None:
    data, probs = [t for t, _, _ in tokens], [p for _, p, _ in tokens]
    special = [s for _, _, s in tokens] if any_special else None
    query, kept = mask_to_query(
        data,
        probs,
        beta,
        unit=unit,
        inclusive=inclusive,
        special=special,  # type: ignore[arg-type]
    )
    assert (query, kept) == reference.mask_to_query(data, probs, beta, unit, inclusive, special)
    assert query == " ".join(query.split(" ")).strip() and "  " not in query
    got = low_spans(
        probs, beta, span_gap=span_gap, token_bytes=data, special=special, inclusive=inclusive
    )
    assert got == reference.low_spans(probs, beta, span_gap, data, special, inclusive)


def test_sentences_and_queries_meet() -> None:
    first, second = split_sentences("Mia Holt was born in Kent. She died in York.")
    tokens = [b" She", b" died", b" in", b" Yo", b"rk", b"."]
    assert b"".join(tokens).decode() == second and first.startswith("Mia")
    assert mask_to_query(tokens, [0.9, 0.8, 0.9, 0.9, 0.2, 1.0], 0.4)[0] == "She died in"
