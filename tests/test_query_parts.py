"""Spans that questions ask for, and what several queries of one sentence find together."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scripted_model import Lists, Say, ScriptedEngine, ScriptedRetriever
from test_controller import run

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.events import RetrievalFinished, RetrievalStarted
from flarecore.flare import Flare
from flarecore.loop.candidate import Candidate
from flarecore.loop.searching import interleaved
from flarecore.loop.spans import low_texts
from flarecore.retrieval.passage import Passage

# ---- spans ----


def spans(text, low, **options):
    pieces = re.findall(r" ?\w+|.", text)
    data = tuple(piece.encode() for piece in pieces)
    probs = np.array([0.1 if p in low else 0.9 for p in pieces], np.float32)
    candidate = Candidate(text, tuple(range(len(data))), data, (False,) * len(data), probs,
                          "sentence")
    return [(s.text, text_of(data, s)) for s in low_texts(candidate, FlareConfig(**options))]


def text_of(data, span):
    return b"".join(data[span.begin:span.end]).decode()


@pytest.mark.parametrize(("text", "low", "gap", "expected"), [
    (" Ann met Bob in Rome.", (" Ann", " Rome"), 3, ["Ann", "Rome"]),
    (" Ann met Bob in Rome.", (" Ann", " Bob"), 3, ["Ann met Bob"]),
    (" Ann met Bob in Rome.", (" Ann", " Bob"), 2, ["Ann", "Bob"]),
    (" Ann met Bob in Rome.", (" Ann", " Rome"), 5, ["Ann met Bob in Rome"]),
    (" Ann, Bob.", (",", "."), 5, []),
    (" Ann, met.", (" Ann", ","), 5, ["Ann"]),
    (" Ann met Ann.", (" Ann",), 1, ["Ann"]),
    (" Nothing.", (), 5, [])])
def test_spans_join_by_their_distance_and_leave_punctuation_out(text, low, gap, expected):
    assert [t for t, _ in spans(text, low, span_gap=gap)] == expected


def test_a_span_takes_its_whole_words_and_characters():
    def low_of(pieces, probs, **options):
        data = tuple(p if isinstance(p, bytes) else p.encode() for p in pieces)
        whole = b"".join(data).decode("utf-8", "replace")
        candidate = Candidate(whole, tuple(range(len(data))), data, (False,) * len(data),
                              np.array(probs, np.float32), "sentence")
        return [(s.text, s.begin, s.end) for s in low_texts(candidate, FlareConfig(**options))]

    assert low_of([" in", " Penn", "sylvania", "."], [.9, .1, .9, .9]) == [("Pennsylvania", 1, 2)]
    assert low_of([" in", " Penn", "sylvania", "."], [.9, .9, .1, .9]) == [("Pennsylvania", 2, 3)]
    assert low_of([" the", " U", ".", "S", ". Senate"], [.9, .1, .9, .1, .9], span_gap=1) == [
        ("U.S", 1, 2)], "both spans complete to one term"
    assert low_of(["在", "北", "京市", "。"], [.9, .1, .9, .9]) == [("北", 1, 2)]
    halves = ["年".encode()[:1], "年".encode()[1:], "月"]
    assert low_of(halves, [.1, .9, .9]) == [("年", 0, 1)]
    assert low_of(halves, [.9, .1, .9]) == [("年", 1, 2)]
    assert low_of([" in", " Rome),"], [.9, .1]) == [("Rome", 1, 2)]
    assert low_of([' "', "Rome", '",'], [.1, .1, .9]) == [("Rome", 1, 2)]
    # authors' code: equal to beta is low, too
    assert low_of([" a", " b"], [.4, .9]) == []
    assert low_of([" a", " b"], [.4, .9], beta_inclusive=True) == [("a", 0, 1)]


# ---- several queries ----


def found(*ids, text=None):
    return [Passage(i, text or f"text {i}", score=0.5) for i in ids]


def test_results_are_interleaved_by_rank_without_repeats():
    def ids(results, k):
        return [p.id for p in interleaved(results, k)]

    results = [found("a", "b", "c"), found("d", "a", "e"), found()]
    assert ids(results, 5) == ["a", "d", "b", "c", "e"]
    assert ids(results, 3) == ["a", "d", "b"]
    assert ids(results, 10**18) == ["a", "d", "b", "c", "e"]
    assert ids([found("a"), found("b", text="text\n a")], 3) == ["a"], "the same text"
    assert ids([found(), found()], 3) == []
    assert ids([found("a", "a", "b")], 2) == ["a", "a", "b"], "one query's list stays as it is"


def test_passages_of_many_queries_are_cut_to_k_and_to_the_budget():
    class Several(ScriptedRetriever):
        def search(self, queries, k, filter=None):
            self.searches.append((tuple(queries), k, filter))
            return [found(*(f"{q}{n}" for n in range(k))) for q in queries]

    retriever = Several()
    script = Lists([Say(" In 1913.", low={" 1913": 0.1}), Say(stop="eos")], [Say(" In 1912.")])
    result, _, events = run(
        script, retriever, k=3, query=lambda c: ["q", "r", "q", "s"], max_evidence_tokens=20)
    assert retriever.searches == [(("q", "r", "s"), 3, None)]
    started = next(e for e in events if isinstance(e, RetrievalStarted))
    finished = next(e for e in events if isinstance(e, RetrievalFinished))
    assert started.queries == finished.queries == ("q", "r", "s")
    assert [p.id for p in finished.passages] == ["q0", "r0", "s0"]
    assert result.trace.sentences[0].regenerations[0].passage_ids == ("q0", "r0", "s0")
    assert result.trace.sentences[0].retrievals[0].num_evidence_tokens <= 20


@pytest.mark.parametrize("made", [None, 3, ["a", 1], b"a", {"a": 1}])
def test_a_callable_that_makes_no_query(made):
    engine = ScriptedEngine(Lists([Say(" In 1913.", prob=0.1)]))
    flare = Flare(engine, ScriptedRetriever(), FlareConfig(
        query=lambda c: made, initial_retrieval=False))
    with pytest.raises(ConfigError, match="query: the callable must return a string or a sequence"):
        flare.generate("Who?")
    engine.check_integrity()
