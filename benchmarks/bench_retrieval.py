"""Retrieval under pytest-benchmark: the cases of ``flarecore bench retrieval``, one by one."""

import pytest

from flarecore.bench.questions import SourceTexts
from flarecore.bench.retrieval import (
    Indexes,
    RetrievalOptions,
    asks_before,
    decodes_before,
    own_asks,
    prove,
    question_case,
)
from flarecore.retrieval import SentenceEncoder


@pytest.fixture(scope="module")
def asked(session, source):
    """The questions, and flarecore's ways to treat one by name."""
    options, texts = RetrievalOptions(source), SourceTexts.read(source)
    encoder = SentenceEncoder.load(options.encoder, threads=session.threads)
    indexes = Indexes.build(texts.passages, encoder)
    questions = texts.questions[:options.num_questions]
    prove(indexes, questions, options.k)
    return questions, own_asks(indexes, options.k)


@pytest.mark.parametrize("state", ["in a row", "after decoding"])
@pytest.mark.parametrize("way", ["embedding + HNSW", "embedding + exact search", "embedding",
                                 "HNSW", "exact search"])
def test_retrieval(session, asked, time_case, way, state):
    questions, asks = asked
    ask = asks.get(f"flarecore {way}")
    if ask is None:
        pytest.skip("the size of the corpus decides between a graph and exact search")
    before = asks_before(questions, ask) if state == "in a row" else decodes_before(session)
    time_case(question_case(way, questions, ask, before), f"a question {state}")
