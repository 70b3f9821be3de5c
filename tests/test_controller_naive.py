"""The loop over cached lineages equals one that builds every context from nothing.

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
from flarecore.retrieval.passage import Passage
from flarecore.text import mask_to_query

WORDS = ["alpha", "beta", "gamma", "delta", "one", "two", "three", "four", "five", "six"]
THETA, BETA, MAX_DRAFT, MAX_NEW = 0.35, 0.3, 9, 70


def sentence(context_ids, pass_index: int) -> Say:
    """A sentence of 1 to 7 words, some of them with a low confidence."""
    digest = hashlib.sha256(repr((pass_index, tuple(context_ids))).encode()).digest()
    rng = random.Random(digest)
    words = [" " + word for word in rng.sample(WORDS, rng.randint(1, 7))]
    choices = [THETA, 0.9] if rng.random() < 0.5 else [0.1, BETA, 0.32, THETA, 0.9]
    low = {word: rng.choice(choices) for word in words}
    return Say("".join(words) + ".", low=low)


def find(query: str, k: int) -> list[Passage]:
    """Passages that depend on the query and often recur."""
    rng = random.Random(query)
    return [Passage(f"p{n}", f"fact {WORDS[n]} {n}.", score=1.0)
            for n in rng.sample(range(5), rng.randint(0, k))]


class Finder(ScriptedRetriever):
    def search(self, queries, k, filter=None):
        self.searches.append((tuple(queries), k, filter))
        return [find(query, k) for query in queries]


class Naive:
    """FLARE-direct, word for word after design 3.1, on lists of ids."""

    def __init__(self, tokenizer, placement: str, draft_context: str, initial: bool) -> None:
        self.tokenizer, self.placement = tokenizer, placement
        self.sees_last, self.initial = draft_context == "last_evidence", initial
        self.answer: list[int] = []
        self.log: list[tuple] = []

    def encode(self, *pieces: str) -> list[int]:
        return [i for p in pieces for i in self.tokenizer.encode(p, parse_special=True)]

    def context(self, shown) -> list[int]:
        head, question, opening = ("<bos>HEAD\n",), ("Q: Why?\n",), ("A:",)
        if shown is None:
            return self.encode(*head, *question, *opening) + self.answer
        found, boundary = shown
        lines = [f"[{n}]: {p.text}\n" for n, p in enumerate(found, start=1)]
        if self.placement == "prefix":
            return self.encode(*head, "E:\n", *lines, *question, *opening) + self.answer
        if boundary == 0:
            return self.encode(*head, *question, "F:\n", *lines, *opening) + self.answer
        return (self.encode(*head, *question, *opening) + self.answer[:boundary]
                + self.encode("\nB:\n", *lines, "A (continued):") + self.answer[boundary:])

    def generate(self, shown, pass_index: int):
        say = sentence(self.context(shown), pass_index)
        limit = min(MAX_DRAFT, MAX_NEW - len(self.answer))
        ids = self.tokenizer.encode(say.text)
        ids = ids[:limit]
        probs = np.array([say.low.get(self.tokenizer.decode([i]), say.prob) for i in ids],
                         dtype=np.float32)
        return ids, probs

    def ordered(self, found, shown):
        before = [p.id for p in shown[0]] if shown else []
        return sorted(found, key=lambda p: before.index(p.id) if p.id in before else 99)

    def run(self) -> list[tuple]:
        shown = None
        if self.initial and find("Why?", 3):
            shown = (find("Why?", 3), 0)
        first = True
        while True:
            ids, probs = self.generate(shown if first or self.sees_last else None, 0)
            entry = ["draft", tuple(ids), None, ()]
            if (probs < np.float32(THETA)).any():
                query, _ = mask_to_query(
                    [self.tokenizer.token_bytes(i) for i in ids], probs, BETA, unit="token")
                if not query.strip(" ."):
                    query = "Why?"
                found = find(query, 3)
                if first and self.initial and query == "Why?":
                    found, query = [], None
                entry[2], entry[3] = query, tuple(p.id for p in found)
                if found:
                    shown = (self.ordered(found, shown), len(self.answer))
                    ids, probs = self.generate(shown, 1)
                    entry[0] = "regenerated"
            self.answer += ids
            self.log.append((*entry, tuple(ids)))
            first = False
            if len(self.answer) >= MAX_NEW:
                return self.log


@pytest.mark.parametrize(("placement", "draft_context", "initial"), itertools.product(
    ("prefix", "boundary"), ("none", "last_evidence"), (True, False)))
def test_the_loop_equals_the_naive_loop(placement, draft_context, initial):
    engine = ScriptedEngine(None)
    engine.script = lambda context, pass_index: sentence(
        engine.calls[-1].context_ids, pass_index)
    flare = Flare(engine, Finder(), FlareConfig(
        theta=THETA, beta=BETA, mask_unit="token", k=3, placement=placement,
        draft_context=draft_context, initial_retrieval=initial, max_draft_tokens=MAX_DRAFT,
        max_new_tokens=MAX_NEW, template=PAPER))
    result = flare.generate("Why?")
    engine.check_integrity()
    log = [(s.outcome, s.draft.token_ids,
            s.retrievals[0].query if s.retrievals else None,
            tuple(p.id for p in s.retrievals[0].passages) if s.retrievals else (), s.token_ids)
           for s in result.trace.sentences]
    assert log == Naive(engine.tokenizer, placement, draft_context, initial).run()
    stats = result.stats
    assert stats.num_regenerations >= 3 and stats.num_drafts > stats.num_triggers
    naive = sum(len(c.context_ids) for c in engine.calls)
    assert stats.num_prefilled + stats.num_reused == naive
    assert stats.num_prefilled < naive / 2


@pytest.mark.parametrize("speculative", [True, False])
def test_every_request_gets_the_same_answer_each_time(speculative):
    answers = []
    for _ in range(2):
        engine = ScriptedEngine(None)
        engine.script = lambda context, pass_index, engine=engine: sentence(
            engine.calls[-1].context_ids, pass_index)
        flare = Flare(engine, Finder(), FlareConfig(
            theta=THETA, beta=BETA, template=PAPER, speculative=speculative))
        answers += [flare.generate("Why?").token_ids, flare.generate("Why?").token_ids]
    assert len(set(answers)) == 1 and len(answers[0]) > 20
