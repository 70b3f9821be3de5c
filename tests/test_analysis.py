"""Texts to terms: scripts with spaces and without, numbers, compounds, odd characters."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecore.errors import ConfigError
from flarecore.retrieval.analysis import (
    ENGLISH_STOP_WORDS,
    Analyser,
    FunctionAnalyser,
    TextAnalyser,
    as_analyser,
)

ANALYSER = TextAnalyser()
PLAIN = TextAnalyser(stop_words=None)


@pytest.mark.parametrize(("text", "terms"), [
    ("", []),
    (" \n\t…!? -- ''", []),
    ("Ada LOVELACE, Straße", ["ada", "lovelace", "strasse"]),
    ("costs 3.14 or 1,000,000 or 1,234.5", ["costs", "3.14", "or", "1000000", "or", "1234.5"]),
    ("1,000, 2,000.", ["1000", "2000"]),
    ("1,2,3 and 3,14.", ["1", "2", "3", "and", "3", "14"]),
    ("X-200", ["x200", "x", "200"]),
    ("X200", ["x200", "x", "200"]),
    ("ISO/IEC-27001_a", ["iso", "iec27001a", "iec", "27001", "a"]),
    ("covid-19", ["covid19", "covid", "19"]),
    ("3-4", ["3-4", "3", "4"]),
    ("2024-01-05", ["2024-01-05", "2024", "01", "05"]),
    ("1990–1995", ["1990", "1995"]),
    ("v1.2.3-beta", ["v1.2.3beta", "v", "1.2.3", "beta"]),
    ("Lothair Ii's mother’s boss'", ["lothair", "ii", "mother", "boss"]),
    ("O’Brien", ["obrien", "o", "brien"]),
    ("U.S. and u.s.a.", ["us", "u", "s", "and", "usa", "u", "s", "a"]),
    ("AT&T writes C++, C# and C.", ["att", "at", "t", "writes", "c++", "c#", "and", "c"]),
    ("end.Next", ["endnext", "end", "next"]),
    # full width, ligatures, fractions and signs that normalisation would glue to a word
    ("Ｘ－２００　ＡＢＣ ３．１４", ["x200", "x", "200", "abc", "3.14"]),
    ("ﬁne m² 6½ FLARE™", ["fine", "m", "2", "6", "1", "2", "flare", "tm"]),
    # one word in two Unicode spellings, and with invisible characters inside
    ("caf\u00e9 cafe\u0301 co\u00adop\ufeff", ["caf\u00e9", "caf\u00e9", "coop"]),
    ("one\u200btwo", ["one", "two"]),
    # letters that are made of several characters
    ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
    ("ПРИВЕТ мир", ["привет", "мир"]),
    ("שָׁלוֹם", ["שָׁלוֹם"]),
    ("👍🏽 ok 👨‍👩‍👧", ["👍", "ok", "👨", "👩", "👧"]),
    ("half \ud800 a pair", ["half", "a", "pair"]),
    # no spaces: pairs, then single characters
    ("差旅政策", ["差旅", "旅政", "政策", "差", "旅", "政", "策"]),
    ("卡万·肖特", ["卡万", "卡", "万", "肖特", "肖", "特"]),
    ("北", ["北"]),
    ("東京タワー", ["東京", "京タ", "タワ", "ワー", "東", "京", "タ", "ワ", "ー"]),
    ("ﾀﾜｰ", ["タワ", "ワー", "タ", "ワ", "ー"]),
    ("서울시", ["서울", "울시", "서", "울", "시"]),
    ("ไทย", ["ไท", "ทย", "ไ", "ท", "ย"]),
    ("公司２０２６年X-1政策",
     ["2026", "x1", "x", "1", "公司", "公", "司", "年", "政策", "政", "策"]),
])
def test_terms_of_a_passage(text, terms):
    assert ANALYSER.passage_terms(text) == terms
    assert PLAIN.passage_terms(text) == terms  # stop words are a matter of queries


@pytest.mark.parametrize(("text", "terms"), [
    ("公司差旅政策", ["公司", "司差", "差旅", "旅政", "政策"]),
    ("差旅", ["差旅", "差", "旅"]),
    ("我的差旅 北 政策是什么", ["我的", "的差", "差旅", "北", "政策", "策是", "是什", "什么"]),
    ("Who was the king of Kent?", ["king", "kent"]),
    ("The Who", ["the", "who"]),
    ("the 王", ["王"]),
    ("", []),
])
def test_terms_of_a_query(text, terms):
    assert ANALYSER.query_terms(text) == terms


def test_query_terms_are_found_in_passages():
    for text in ("X-200 差旅政策 3.14", "北", "ﾀﾜｰ", "AT&T's C++"):
        assert set(ANALYSER.query_terms(text)) <= set(ANALYSER.passage_terms(f"a {text} b"))


def test_stop_words_can_be_kept():
    assert "the" in ENGLISH_STOP_WORDS
    assert PLAIN.query_terms("The king") == ["the", "king"]


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(), max_size=40))
def test_any_text_gives_clean_terms(text):
    for terms in (ANALYSER.passage_terms(text), ANALYSER.query_terms(text)):
        assert all(isinstance(term, str) and term and not any(map(str.isspace, term))
                   for term in terms)
    assert set(ANALYSER.query_terms(text)) <= set(ANALYSER.passage_terms(text))


@pytest.mark.parametrize(("piece", "count"), [
    ("a.", 100_001), ("1,", 100_000), ("a'", 100_001), ("1.", 1), ("字", 199_999),
    ("1,000,", 199_999), ("e\u0301\u0302", 1), ("-", 0), ("a1", 200_001), ("000,", 99_994)])
def test_long_texts_take_linear_work(piece, count):
    # Matching that goes back and forth would not come to an end here.
    assert len(ANALYSER.passage_terms(piece * 100_000)) == count


def test_stemmer():
    pytest.importorskip("Stemmer", reason="needs PyStemmer")
    stems = TextAnalyser(stemmer="english")
    assert stems.passage_terms("Connected connections 差旅") == [
        "connect", "connect", "差旅", "差", "旅"]
    assert stems.query_terms("the connecting") == ["connect"]
    with pytest.raises(ConfigError, match=r"stemmer must be one of .*english.*got 'klingon'"):
        TextAnalyser(stemmer="klingon")


def test_options():
    with pytest.raises(ConfigError, match="stop_words"):
        TextAnalyser(stop_words="french")
    assert isinstance(ANALYSER, Analyser)
    assert ANALYSER.options == {"stop_words": "english", "stemmer": None}


def words(text):
    return text.split()


def test_own_analysers():
    assert as_analyser(None) == TextAnalyser()
    own = as_analyser(words)
    assert own.name.endswith(".words") and own.query_terms("a b") == ["a", "b"]
    named = FunctionAnalyser("mine", str.split, {"x": [1]})
    assert as_analyser(named) is named
    with pytest.raises(ConfigError, match="FunctionAnalyser"):
        as_analyser(lambda text: text.split())
    for wrong in (3, "words", TextAnalyser):
        with pytest.raises(ConfigError, match="analyser must be"):
            as_analyser(wrong)
    with pytest.raises(ConfigError, match=r"'mine'.*JSON"):
        as_analyser(FunctionAnalyser("mine", str.split, {"x": {1}}))


def test_imports_stay_light():
    code = ("import sys, flarecore; flarecore.TextAnalyser().query_terms('é'); "
            "sys.exit(any(name in sys.modules for name in ('bm25s', 'Stemmer', 'hnswlib')))")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
