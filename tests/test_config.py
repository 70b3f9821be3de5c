"""Options: one default each, everything else is checked and explained."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate


def test_options_are_frozen_keyword_only_and_equal_by_value():
    config = FlareConfig(theta=0.5, k=2)
    assert config == FlareConfig(k=2, theta=0.5) and hash(config) == hash(FlareConfig(
        k=2, theta=0.5))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.theta = 0.1
    with pytest.raises(TypeError):
        FlareConfig(0.5)
    assert dataclasses.replace(config, k=4) == FlareConfig(theta=0.5, k=4)


@pytest.mark.parametrize("make", [
    lambda: FlareConfig(thetta=0.5), lambda: FlareConfig.from_dict({"thetta": 0.5}),
    lambda: FlareConfig.paper(thetta=0.5),
    lambda: dataclasses.replace(FlareConfig(), thetta=0.5)])
def test_an_unknown_option_is_an_error_that_knows_the_closest(make):
    with pytest.raises(ConfigError, match="unknown option 'thetta'; did you mean 'theta'"):
        make()


@pytest.mark.parametrize(("name", "value"), [
    ("theta", -0.01), ("theta", 1.01), ("theta", float("nan")), ("theta", "0.5"), ("theta", True),
    ("beta", 2), ("k", 0), ("k", 1.0), ("k", True), ("trigger", "maximum"), ("trigger", 0.5),
    ("query", "msk"), ("mask_unit", "char"), ("placement", "suffix"), ("no_evidence", None),
    ("overflow", "truncate"), ("max_retrievals", -1), ("max_sentences", 0),
    ("max_new_tokens", 0), ("max_draft_tokens", 0), ("max_query_tokens", 0),
    ("max_passage_tokens", 0), ("max_evidence_tokens", -5), ("cooldown_sentences", -1),
    ("max_retrievals_per_sentence", None), ("deadline_ms", 0), ("deadline_ms", float("inf")),
    ("min_score", float("nan")), ("stop", "Question:"), ("stop", ["", "a"]), ("stop", [1]),
    ("gate", "auto"), ("gate", True), ("min_span_chars", 0), ("span_gap", -1), ("span_gap", 2.5),
    ("recompute_tokens", 0),
    ("evidence_policy", "keep"), ("must_retrieve", "AB"), ("never_retrieve", ["a"]),
    ("initial_retrieval", 1), ("speculative", None), ("sampling", {}), ("template", "text")])
def test_a_wrong_value_is_an_error_that_names_the_option(name, value):
    with pytest.raises(ConfigError, match=name):
        FlareConfig(**{name: value})


def test_a_string_is_not_taken_apart_into_stop_characters():
    with pytest.raises(ConfigError, match="wrap a single string in a list"):
        FlareConfig(stop="\n(")
    assert FlareConfig(stop=["\n("]).stop == ("\n(",)


def test_numbers_of_numpy_are_numbers():
    config = FlareConfig(k=np.int64(2), theta=np.float32(0.5))
    assert type(config.k) is int and type(config.theta) is float


def test_paper_and_authors_code_differ_where_the_facts_say():
    paper, authors = FlareConfig.paper(), FlareConfig.authors_code()
    assert (paper.theta, paper.beta, paper.k) == (0.8, 0.4, 2)
    changed = {name: (getattr(paper, name), getattr(authors, name))
               for name in (f.name for f in dataclasses.fields(paper))
               if getattr(paper, name) != getattr(authors, name)}
    assert changed == {
        "theta_inclusive": (False, True), "theta_zero_always": (False, True),
        "beta_inclusive": (False, True), "empty_query": ("question", "accept_draft"),
        "draft_context": ("none", "last_evidence")}
    assert paper.mask_unit == "token" and paper.trigger_punctuation
    assert authors.max_query_tokens == 64 and paper.placement == "prefix"
    assert FlareConfig.authors_code(theta=0.2, theta_inclusive=False).theta == 0.2


# Jiang et al. 2023, table 9: theta, beta, query, k, policy, new tokens
TABLE_9 = {
    "2wiki": (0.8, 0.4, "mask", 2, "replace", 256),
    "strategyqa": (0.4, 0.4, "mask", 3, "replace", 256),
    "asqa": (0.8, 0.4, "question", 3, "keep_first", 256),
    "wikiasp": (0.8, 0.4, "question", 5, "keep_first", 512)}


@pytest.mark.parametrize("dataset", TABLE_9)
def test_the_papers_settings(dataset):
    paper, authors = FlareConfig.paper(dataset), FlareConfig.authors_code(dataset=dataset)
    for config in (paper, authors):
        assert (config.theta, config.beta, config.query, config.k, config.evidence_policy,
                config.max_new_tokens) == TABLE_9[dataset]
        assert config.trigger == "min" and config.span_gap == 5 and config.gate is None
        assert config.max_draft_tokens == config.max_query_tokens == 64
    changed = {f.name for f in dataclasses.fields(paper)
               if getattr(paper, f.name) != getattr(authors, f.name)}
    assert changed == {"theta_inclusive", "theta_zero_always", "beta_inclusive", "empty_query",
                       "draft_context"}
    # nothing is cut: room for the passages of the question and of the step
    num = paper.k * (2 if paper.evidence_policy == "keep_first" else 1)
    assert paper.max_evidence_tokens >= num * paper.max_passage_tokens
    assert FlareConfig.paper() == FlareConfig.paper("2wiki")
    assert FlareConfig.paper(dataset, k=1, theta=0.1).k == 1


def test_a_data_set_that_the_paper_does_not_have():
    with pytest.raises(ConfigError, match=r"dataset must be one of.*did you mean '2wiki'"):
        FlareConfig.paper("2wikis")


def test_options_round_trip_through_json():
    config = FlareConfig.authors_code(
        stop=("\n\n",), sampling=SamplingParams(temperature=0.5, seed=2**64 - 1,
                                                logit_bias={7: -1.5}),
        template=PromptTemplate.base(head="H"), min_score=0.25, max_sentences=3)
    assert FlareConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    shown = FlareConfig(query=lambda candidate: "q", gate=str).to_dict()
    assert shown["query"] == "callable:<lambda>" and shown["gate"] == "callable:str"
    for options in ({"gate": "never", "trigger": "mean", "evidence_policy": "sticky"},
                    {"trigger": "span", "min_span_chars": 2, "query": "question", "span_gap": 0},
                    {"trigger": "token", "query": "keywords", "evidence_policy": "keep_first"}):
        config = FlareConfig(**options)
        assert FlareConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ConfigError, match="options must be an object"):
        FlareConfig.from_dict([])


@pytest.mark.parametrize(("options", "may"), [
    ({}, True), ({"initial_retrieval": False}, True),
    ({"initial_retrieval": False, "trigger": "never"}, False),
    ({"initial_retrieval": False, "theta": 0.0}, False),
    ({"initial_retrieval": False, "theta": 0.0, "theta_zero_always": True}, True),
    ({"initial_retrieval": False, "theta": 0.0, "trigger": "always"}, True),
    ({"initial_retrieval": False, "max_retrievals_per_sentence": 0}, False),
    ({"initial_retrieval": False, "trigger": "token", "theta": 0.0}, False),
    ({"initial_retrieval": False, "trigger": "mean", "theta": 0.0}, False),
    ({"initial_retrieval": False, "trigger": "never", "gate": "always"}, True),
    ({"initial_retrieval": False, "trigger": "never", "gate": lambda question: None}, True),
    ({"gate": "never", "trigger": "always"}, False),
    ({"max_retrievals": 0}, False), ({"trigger": "never"}, True)])
def test_may_retrieve(options, may):
    assert FlareConfig(**options).may_retrieve is may


@pytest.mark.parametrize(("name", "value"), [
    ("temperature", -0.1), ("temperature", float("nan")), ("top_k", -1), ("top_k", 1.5),
    ("top_p", 0.0), ("top_p", 1.01), ("min_p", -0.1), ("seed", -1), ("seed", 2**64),
    ("stream", True), ("repetition_penalty", 0.0), ("logit_bias", {-1: 0.0}),
    ("logit_bias", {1: "x"}), ("logit_bias", [1])])
def test_wrong_sampling_options(name, value):
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: value})


def test_sampling_options_round_trip_and_refuse_unknown_names():
    params = SamplingParams(temperature=1.0, top_k=5, top_p=0.5, logit_bias={3: 1})
    assert SamplingParams.from_dict(json.loads(json.dumps(params.to_dict()))) == params
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        SamplingParams(temprature=1.0)
    with pytest.raises(ConfigError, match="did you mean 'top_k'"):
        SamplingParams.from_dict({"topk": 1})
