"""Questions on the real engine: forks share the cache, and their steps run in the same forwards."""

from __future__ import annotations

from helpers import TinyLlama, open_engine

from flarecore.config import FlareConfig
from flarecore.events import DraftFinished, RetrievalStarted
from flarecore.flare import Flare
from flarecore.retrieval.passage import Passage
from flarecore.templates import PromptTemplate

SPEC = TinyLlama(context_length=2048, vocab_size=935)
TEMPLATE = PromptTemplate.base(head="Answer.\n", stop=())
OPTIONS = dict(
    query="question", theta=1.0, beta=0.9, span_gap=0, max_draft_tokens=48, max_new_tokens=60,
    max_query_tokens=10, initial_retrieval=False, template=TEMPLATE)


class Finder:
    def search(self, queries, k, filter=None):
        return [[Passage("a", "some text")] for _ in queries]


def test_questions_of_a_sentence_are_decoded_together_and_as_if_alone():
    with open_engine(SPEC, kv_cache_bytes=2**26) as engine:
        steps, marks = [], []
        flare = Flare(engine, Finder(), FlareConfig(**OPTIONS))
        with flare.stream("Who?") as stream:
            for event in stream:
                if isinstance(event, (DraftFinished, RetrievalStarted)):
                    marks.append(type(event))
                    steps.append(engine.stats().num_steps)
            result = stream.result
        engine.check_integrity()
        assert engine.stats().num_sequences == 0
        first = result.trace.sentences[0]
        assert marks[:2] == [DraftFinished, RetrievalStarted]
        assert len(first.asked) >= 4, "a random model is sure of nothing"
        alone = sum(a.num_decoded for a in first.asked)
        assert alone > 20 and steps[1] - steps[0] < alone / 2, "one forward serves many questions"
        draft = [*result.trace.prompt_token_ids, *first.draft.token_ids]
        for asked in first.asked:
            # only the request was prefilled
            assert asked.num_reused >= len(draft) - 1
            request = TEMPLATE.question_query.replace("{span}", asked.span).replace(
                "{sentence}", first.draft.text.strip())
            fresh = engine.sequence([*draft, *engine.tokenizer.encode(request)])
            same = fresh.decode(OPTIONS["max_query_tokens"], until="sentence")
            assert same.text == asked.text
            fresh.close()
        assert result.stats.num_asked == sum(len(s.asked) for s in result.trace.sentences)
        assert result.stats.query_ms > 0.0
