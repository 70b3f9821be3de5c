"""The loop over cached lineages equals the reference loop, which builds every context anew.

The model is a pseudo-random function of all ids of its context and of the pass, so that a single
wrong, missing or doubled token in any context changes everything after it.
"""

from __future__ import annotations

import hashlib
import itertools
import random

import numpy as np
import pytest
from scripted_model import Say, ScriptedEngine, ScriptedRetriever
from test_controller import PAPER

from flarecore.config import FlareConfig
from flarecore.flare import Flare
from flarecore.reference.naive_loop import NaiveOptions, naive_flare
from flarecore.reference.naive_prompt import base_prompt
from flarecore.retrieval.passage import Passage
from flarecore.sampling import SamplingParams

WORDS = ["alpha", "beta", "gamma", "delta", "one", "two", "three", "four", "five", "six"]
THETA, BETA = 0.35, 0.3
COMMON = {"theta": THETA, "beta": BETA, "mask_unit": "token", "max_draft_tokens": 9,
          "max_new_tokens": 70}


def sentence(context_ids, pass_index: int) -> Say:
    """A sentence of 1 to 7 words, some of them with a low confidence."""
    digest = hashlib.sha256(repr((pass_index, tuple(context_ids))).encode()).digest()
    rng = random.Random(digest)
    words = rng.sample(WORDS, rng.randint(1, 7))
    words = [" " + words[0].capitalize(), *(" " + word for word in words[1:])]
    choices = [THETA, 0.9] if rng.random() < 0.5 else [0.1, BETA, 0.32, THETA, 0.9]
    low = {word: rng.choice(choices) for word in words}
    return Say("".join(words) + ".", low=low | {".": rng.choice([0.1, 0.9])})


class Source:
    """The same sentences token by token; what follows one is a capitalised word."""

    def __init__(self, tokenizer) -> None:
        self.tokenizer, self.next = tokenizer, tokenizer.encode(" Next")[0]

    def stream(self, token_ids, pass_index, attached=None):
        say = sentence(token_ids, pass_index)
        ids = iter(self.tokenizer.encode(say.text))

        def next_token():
            token_id = next(ids, self.next)
            return token_id, say.low.get(self.tokenizer.decode([token_id]), say.prob)

        return next_token


TEXTS = {f"p{n}": f"fact {WORDS[n // 2]}." for n in range(8)}


def find(query: str, k: int) -> list[Passage]:
    """Passages that depend on the query and often recur; some share their text."""
    rng = random.Random(query)
    return [Passage(i, TEXTS[i], score=1.0) for i in rng.sample(list(TEXTS), rng.randint(0, k))]


class Finder(ScriptedRetriever):
    def search(self, queries, k, filter=None):
        self.searches.append((tuple(queries), k, filter))
        return [find(query, k) for query in queries]


def scripted_engine():
    engine = ScriptedEngine(None)
    engine.script = lambda context, pass_index: sentence(
        engine.calls[-1].context_ids, pass_index)
    return engine


def both(*, greedy=True, k=3, **options):
    """An answer by the loop and by the reference; they are equal in everything both tell."""
    engine = scripted_engine()
    sampling = SamplingParams(temperature=0.0 if greedy else 1.0)
    result = Flare(engine, Finder(), FlareConfig(
        k=k, template=PAPER, sampling=sampling, **COMMON | options)).generate("Why?")
    engine.check_integrity()
    naive = naive_flare(
        Source(engine.tokenizer), engine.tokenizer,
        base_prompt(engine.tokenizer, PAPER, "Why?"),
        NaiveOptions(search=lambda q: find(q, k), greedy=greedy, **COMMON | options))
    for ours, theirs in zip(result.trace.sentences, naive.sentences, strict=True):
        assert ours.draft.token_ids == theirs.draft.token_ids
        assert np.array_equal(np.float32(ours.draft.probs), theirs.draft.probs)
        assert ours.draft.triggered == theirs.triggered
        assert [r.query for r in ours.retrievals] == ([theirs.query] if theirs.query else [])
        again = theirs.regenerated
        assert [(p.passage_ids, p.token_ids) for p in ours.regenerations] == (
            [(theirs.passage_ids, again.token_ids)] if again else [])
        assert ours.token_ids == theirs.token_ids
    assert list(result.token_ids) == naive.token_ids
    assert result.stop_reason == naive.stop_reason
    return result, engine, naive


CONTEXTS = list(itertools.product(("none", "last_evidence"), (True, False)))


@pytest.mark.parametrize("policy", ["replace", "keep_first", "sticky"])
@pytest.mark.parametrize("placement", ["prefix", "boundary"])
@pytest.mark.parametrize("trigger", ["min", "mean", "span", "token"])
def test_the_loop_equals_the_naive_loop(trigger, placement, policy):
    regenerated = kept = cut = 0
    for draft_context, initial in CONTEXTS:
        result, engine, naive = both(
            trigger=trigger, placement=placement, evidence_policy=policy, min_span_chars=5,
            theta=0.7 if trigger == "mean" else THETA, draft_context=draft_context,
            initial_retrieval=initial)
        stats = result.stats
        assert stats.num_drafts > stats.num_triggers
        contexts = sum(len(c.context_ids) for c in engine.calls)
        assert stats.num_prefilled + stats.num_reused == contexts
        assert stats.num_prefilled < contexts / 2
        regenerated += stats.num_regenerations
        kept += sum(bool(s.passage_ids) and not {TEXTS[i] for i in s.passage_ids} <= {
            p.text for p in find(s.query, 3)} for s in naive.sentences)
        cut += sum(s.draft.stop_reason == "low_confidence" for s in result.trace.sentences)
    assert regenerated >= 6
    assert (cut > 0) == (trigger == "token")
    assert (kept > 0) == (policy != "replace"), "passages that the step did not find"


@pytest.mark.parametrize("options", [
    {"trigger": "always"}, {"trigger": "never"}, {"theta": 0.0}, {"theta": 1.0},
    {"theta": 1.0, "trigger": "token"}, {"theta": 0.0, "trigger": "token"},
    {"theta": 1.0, "trigger": "mean"}, {"trigger": "min", "trigger_punctuation": True},
    {"trigger": "mean", "theta": 0.6, "trigger_punctuation": True},
    {"trigger": "token", "trigger_punctuation": True},
    {"trigger": "span", "min_span_chars": 9, "trigger_punctuation": True}],
    ids=lambda options: " ".join(map(str, options.values())))
def test_the_ends_of_the_scales_equal_the_naive_loop(options):
    for greedy in (True, False):
        both(greedy=greedy, **options)


def test_sampled_answers_are_written_again_also_with_the_same_passages():
    counts = []
    for greedy in (True, False):
        result, _, _ = both(
            greedy=greedy, k=1, draft_context="last_evidence", placement="boundary", theta=1.0)
        same = [r for s in result.trace.sentences for r in s.retrievals if r.is_unchanged]
        assert same and result.stats.num_unchanged == (len(same) if greedy else 0)
        counts.append(result.stats.num_regenerations)
    assert counts[0] < counts[1]


@pytest.mark.parametrize("speculative", [True, False])
def test_every_request_gets_the_same_answer_each_time(speculative):
    answers = []
    for _ in range(2):
        flare = Flare(scripted_engine(), Finder(), FlareConfig(
            theta=THETA, beta=BETA, template=PAPER, speculative=speculative))
        answers += [flare.generate("Why?").token_ids, flare.generate("Why?").token_ids]
    assert len(set(answers)) == 1 and len(answers[0]) > 20
