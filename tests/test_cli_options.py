"""Every option of the loop on the command line, and how it becomes a configuration."""

from __future__ import annotations

import argparse
import dataclasses

import pytest

from flarecore.cli.main import build_parser
from flarecore.cli.options import add_flare_options, flare_config
from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.rules import DraftRule
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate


def config(*argv, **changes):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flare_options(parser)
    return flare_config(parser.parse_args(argv), **changes)


def test_nothing_given_is_the_default():
    assert config() == FlareConfig() and config(k=7) == FlareConfig(k=7)


@pytest.mark.parametrize(("argv", "options"), [
    (["--gate", "never"], {"gate": "never"}), (["--trigger", "mean"], {"trigger": "mean"}),
    (["--trigger", "span", "--min-span-chars", "2"], {"trigger": "span", "min_span_chars": 2}),
    (["--trigger", "token", "--theta", "0.3"], {"trigger": "token", "theta": 0.3}),
    (["--query", "question", "--span-gap", "3"], {"query": "question", "span_gap": 3}),
    (["--query", "keywords"], {"query": "keywords"}),
    (["--evidence-policy", "sticky"], {"evidence_policy": "sticky"}),
    (["--theta-inclusive", "--trigger-punctuation"],
     {"theta_inclusive": True, "trigger_punctuation": True}),
    (["--max-retrievals-per-sentence", "2"], {"max_retrievals_per_sentence": 2}),
    (["--must-term", "a b", "--must-term", "c", "--must-pattern", r"\d+"],
     {"must_retrieve": DraftRule(terms=("a b", "c"), patterns=(r"\d+",))}),
    (["--never-pattern", "^Hello"], {"never_retrieve": DraftRule(patterns=("^Hello",))}),
    (["--stop", "a", "--temperature", "0.5"],
     {"stop": ("a",), "sampling": SamplingParams(temperature=0.5)})])
def test_options(argv, options):
    assert config(*argv) == FlareConfig(**options)


@pytest.mark.parametrize(("name", "expected"), [
    ("default", FlareConfig()), ("paper", FlareConfig.paper()),
    ("paper_asqa", FlareConfig.paper("asqa")), ("authors_code", FlareConfig.authors_code()),
    ("authors_code_wikiasp", FlareConfig.authors_code("wikiasp"))])
def test_presets(name, expected):
    assert config("--preset", name) == expected
    assert config("--preset", name, "--k", "9") == dataclasses.replace(expected, k=9)


def test_a_template_from_a_file(tmp_path):
    path = tmp_path / "prompt.json"
    path.write_text('{"kind": "base", "answer": "A:"}', encoding="utf-8")
    assert config("--template", str(path)).template == PromptTemplate.base(answer="A:")
    path.write_text('{"kind": "base", "answer": "{A}:"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"prompt\.json: PromptTemplate\.answer: unexpected"):
        config("--template", str(path))


def test_a_wrong_pattern_says_where():
    with pytest.raises(ConfigError, match=r"^--must-pattern is no regular expression.*; to "
                                          "find it as it stands, use --must-term"):
        config("--must-pattern", "a", "--must-pattern", "(")
    with pytest.raises(ConfigError, match=r"^--never-term is only white space"):
        config("--never-term", " ")


def test_the_help_says_the_defaults_of_the_command(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["demo", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "(default: 0.6)" in text and "passages per search (default: 2)" in text
    assert "(default: 0.8)" not in text


def test_the_help_names_every_option_and_none_twice(capsys):
    with pytest.raises(SystemExit):
        config("--help")
    text = capsys.readouterr().out
    fields = {f.name for f in dataclasses.fields(FlareConfig)}
    missing = {name for name in fields if f"--{name.replace('_', '-')}" not in text}
    assert missing == {"must_retrieve", "never_retrieve", "sampling", "theta_zero_always",
                       "beta_inclusive", "empty_query", "max_query_tokens"}, \
        "these are set by other options or by presets"
    for option in ("--must-term", "--must-pattern", "--never-term", "--never-pattern"):
        assert option in text
