"""Passages as values, and what a retriever has to return."""

from dataclasses import dataclass

import pytest
from helpers_retrieval import WordEncoder

from flarecore.errors import ConfigError, RetrievalError
from flarecore.retrieval.hnsw import HnswRetriever
from flarecore.retrieval.passage import Passage, Retriever, check_results


def test_check_results():
    good = [[Passage("a", "x", score=1.0)], []]
    assert isinstance(HnswRetriever.build([], WordEncoder()), Retriever)
    assert check_results(good, 2, 1) == good
    for results, message in [
        (None, "NoneType"), ([[]], "1 lists for 2"), ([None, []], "query 0.*NoneType"),
        ([good[0] * 2, []], "2 passages, at most k = 1"), ([["a"], []], "result 0.*got str"),
        ([[Passage("a", None)], []], "NoneType"), ([[Passage("a", "x", title=None)], []], "title"),
        ([[Passage("a", "x", score=float("nan"))], []], "finite"),
        ([[Passage("a", "x", score="1")], []], "finite"),
    ]:
        with pytest.raises(RetrievalError, match=message):
            check_results(results, 2, 1)


def test_another_score_keeps_everything_else():
    @dataclass(frozen=True)
    class Numbered(Passage):
        page: int = 0

    for passage in (Passage("a", "x", "t", 0.5, {"y": [1]}), Numbered("a", "x", page=7)):
        scored = passage.with_score(0.25)
        assert type(scored) is type(passage) and scored.metadata is passage.metadata
        assert vars(scored) == {**vars(passage), "score": 0.25}


def test_passage_json_round_trip():
    passage = Passage("a", "text", "title", 0.5, {"x": [1, "é"]})
    assert Passage.from_json(passage.to_json()) == passage
    assert hash(passage) == hash(passage.with_score(0.5))
    for bad in ({"id": "a"}, {"id": 1, "text": "x"}, {"id": "a", "text": "x", "other": 1}):
        with pytest.raises(ConfigError, match="passage"):
            Passage.from_json(bad)
