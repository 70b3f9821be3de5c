"""Passages as values, and what a retriever has to return."""

import inspect
from dataclasses import dataclass

import pytest
from helpers_retrieval import UncheckedPassage, WordEncoder

from flarecore.errors import ConfigError, RetrievalError
from flarecore.retrieval.hnsw import HnswRetriever
from flarecore.retrieval.passage import Passage, Retriever, check_results


def test_fields_of_a_passage_are_checked():
    for fields, message in (((None, "x"), "Passage.id.*NoneType"), (("a", None), "Passage.text"),
                            (("a", "x", 3), "Passage.title.*int"),
                            (("a", "x", "", 0.0, ["en"]), "Passage.metadata.*list")):
        with pytest.raises(ConfigError, match=message):
            Passage(*fields)


def test_an_async_search_is_told_its_name():
    async def search():
        return []

    found = search()
    with pytest.raises(RetrievalError, match="must be called asearch"):
        check_results(found, 1, 1)
    assert inspect.getcoroutinestate(found) == inspect.CORO_CLOSED, "it will warn"


def test_check_results():
    good = [[Passage("a", "x", score=1.0)], []]
    assert isinstance(HnswRetriever.build([], WordEncoder()), Retriever)
    assert check_results(good, 2, 1) == good
    for results, message in [
        (None, "NoneType"), ([[]], "1 lists for 2"), ([None, []], "query 0.*NoneType"),
        ([good[0] * 2, []], "2 passages, at most k = 1"), ([["a"], []], "result 0.*got str"),
        ([[UncheckedPassage("a", None)], []], "NoneType"),
        ([[UncheckedPassage("a", "x", title=None)], []], "title"),
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
