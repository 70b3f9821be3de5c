"""Rules over a draft: terms as whole words in every script, patterns, and what is no rule."""

from __future__ import annotations

import json

import pytest

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.rules import DraftRule, RuleHit


@pytest.mark.parametrize(("term", "text", "found"), [
    ("AB-12", "Order AB-12 now.", "AB-12"), ("AB-12", "Order XAB-12.", None),
    ("AB-12", "Order AB-123.", None), ("ab-12", "Order AB-12", "AB-12"),
    ("art", "part of the article", None), ("art", "(art)", "art"), ("C++", "in C++.", "C++"),
    ("C++", "in C++20", "C++"), (".NET", "ASP.NET", ".NET"),
    ("New York", "in New\n York", "New\n York"),
    ("New York", "New Yorker", None), ("GPT", "使用GPT模型", "GPT"), ("GPT", "使用GPTs模型", None),
    ("北京", "在北京市", "北京"), ("İstanbul", "to İstanbul", "İstanbul"), ("β", "βeta", None),
    ("a.b", "axb", None)])
def test_terms_are_whole_words_where_words_have_spaces(term, text, found):
    hit = DraftRule(terms=[term]).find(text)
    assert hit == (None if found is None else RuleHit("term", term, found))


def test_patterns_and_case():
    rule = DraftRule(terms=["warranty"], patterns=[r"\b[A-Z]{2}-\d{4}\b", r"\d+ EUR"])
    assert rule.find("see AB-1234 or 5 EUR") == RuleHit(
        "pattern", r"\b[A-Z]{2}-\d{4}\b", "AB-1234")
    assert rule.find("5 eur of Warranty") == RuleHit("term", "warranty", "Warranty")
    assert rule.find("see AB-12345") is None
    strict = DraftRule(terms=["IT"], ignore_case=False)
    assert strict.find("it works") is None and strict.find("IT works").text == "IT"


@pytest.mark.parametrize(("options", "message"), [
    ({}, "at least one of terms and patterns"),
    ({"terms": "word"}, "DraftRule.terms must be a list of strings"),
    ({"terms": ["a", " \n"]}, r"terms\[1\] is only white space"),
    ({"patterns": ["ok", "a("]}, r"patterns\[1\] is no regular expression: missing \).*ter 1"),
    ({"patterns": ["x*"]}, r"patterns\[0\] matches the empty text and so every draft"),
    ({"terms": ["a"], "ignore_case": 1}, "ignore_case must be True or False"),
    ({"term": ["a"]}, "unknown option 'term'; did you mean 'terms'")])
def test_what_is_no_rule_says_where(options, message):
    with pytest.raises(ConfigError, match=message):
        DraftRule(**options)
    with pytest.raises(ConfigError, match=message):
        DraftRule.from_dict(options)


def test_rules_are_options_and_round_trip():
    rule = DraftRule(terms=("a b",), patterns=(r"\d",), ignore_case=False)
    config = FlareConfig(must_retrieve=rule, never_retrieve=DraftRule(terms=("x",)))
    assert FlareConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    for value in ("AB", ["AB"], ("AB",)):
        with pytest.raises(ConfigError, match=r"must_retrieve must be a DraftRule.*DraftRule\(te"):
            FlareConfig(must_retrieve=value)
    with pytest.raises(ConfigError, match=r"never_retrieve must be a DraftRule.*got int"):
        FlareConfig(never_retrieve=3)
