"""Placement ``parallel``: what a retrieval costs, what is shared, what is refused, what is told."""

import asyncio
import contextlib
import threading
from dataclasses import replace

import pytest
from helpers import TinyLlama, open_engine, smollm2_engine, smollm2_path
from scripted_model import ScriptedEngine
from test_loop_equality import (
    ENDLESS,
    FACTS,
    QUESTION,
    SAMPLED,
    TEMPLATE,
    LexicalRetriever,
    run_loop,
)

from flarecore.cli.numbers import rows
from flarecore.config import FlareConfig
from flarecore.errors import ConfigError, ContextOverflowError, UnsupportedError
from flarecore.flare import Flare
from flarecore.loop.attaching import Attached
from flarecore.loop.evidence import EvidenceMaker
from flarecore.loop.lineage import Lineage
from flarecore.methods import METHODS, make_method
from flarecore.retrieval.passage import Passage
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate
from flarecore.trace import Trace
from flarecore.trace_html import trace_page

PARALLEL = {"theta": 1.0, "placement": "parallel", "recompute_tokens": 1}
TINY = TinyLlama(context_length=2048, vocab_size=935)


def tiny_config(**options):
    defaults = {
        "theta": 1.0, "placement": "parallel", "recompute_tokens": 5, "k": 2, "template": TEMPLATE,
        "max_draft_tokens": 12, "max_new_tokens": 60, "max_passage_tokens": 16}
    return FlareConfig(**defaults | options)


def passes(result):
    """(draft passes, regenerations) of an answer."""
    sentences = result.trace.sentences
    return [s.draft for s in sentences], [p for s in sentences for p in s.regenerations]


def words_of(result):
    """Everything an answer is judged by."""
    drafts, regenerations = passes(result)
    return [(p.token_ids, p.probs, p.passage_ids) for p in (*drafts, *regenerations)]


# ---- what it costs ----

@pytest.mark.parametrize("sampling", [ENDLESS, SAMPLED], ids=["greedy", "sampled"])
def test_known_passages_cost_no_prefill_however_long_the_answer_is(sampling):
    engine = open_engine(smollm2_path(), compute="int8", threads=2)
    with engine:
        retriever = LexicalRetriever(FACTS, k=2)
        first = run_loop(engine, retriever, sampling, **PARALLEL)
        again = run_loop(engine, retriever, sampling, **PARALLEL)
        assert words_of(again) == words_of(first)
        drafts, regenerations = passes(again)
        assert len(regenerations) >= 2
        # Not one token of evidence, question or answer: the last token's row brings the first new
        # token, as in any decode.
        assert [p.num_prefilled for p in regenerations] == [0] * len(regenerations)
        assert again.stats.num_encoded == 0 < first.stats.num_encoded
        evidence = sum(r.num_evidence_tokens for r in again.trace.retrievals)
        assert evidence > 50
        # Drafts prefill the sentence before them, once it was written again, and nothing else; the
        # first that sees no passages also the prompt's last token.
        for number, (draft, sentence) in enumerate(
                zip(drafts[1:], again.trace.sentences, strict=False)):
            assert draft.num_prefilled <= len(sentence.token_ids) + (number == 0)
        # Every passage was encoded once.
        used = {i for one in passes(first) for p in one for i in p.passage_ids}
        assert first.stats.num_encoded == len(used) == engine.passages.stats().num_passages
        engine.check_integrity()
        assert engine.stats().num_held_blocks == 0


@pytest.mark.parametrize("num_recomputed", [2, 20])
def test_recomputing_a_few_tokens_costs_the_same_for_every_sentence(num_recomputed):
    engine = smollm2_engine("int8")
    retriever = LexicalRetriever(FACTS, k=2)
    options = {**PARALLEL, "recompute_tokens": num_recomputed}
    run_loop(engine, retriever, ENDLESS, **options)
    result = run_loop(engine, retriever, ENDLESS, **options)
    _, regenerations = passes(result)
    assert len(regenerations) >= 2
    assert {p.num_prefilled for p in regenerations} == {num_recomputed - 1}


def test_recomputing_all_costs_question_and_answer_but_no_evidence():
    engine = smollm2_engine("int8")
    retriever = LexicalRetriever(FACTS, k=2)
    options = {**PARALLEL, "recompute_tokens": None}
    run_loop(engine, retriever, ENDLESS, **options)
    result = run_loop(engine, retriever, ENDLESS, **options)
    num_head = len(engine.tokenizer.encode(TEMPLATE.head))
    num_asked = len(result.trace.prompt_token_ids) - num_head
    length = 0
    for sentence in result.trace.sentences:
        for again in sentence.regenerations:
            assert again.num_prefilled == num_asked + length - 1
        length += len(sentence.token_ids)
    assert result.stats.num_regenerations >= 2


def test_answers_at_once_encode_a_passage_once():
    engine = open_engine(TINY)
    retriever = LexicalRetriever([fact[:40] for fact in FACTS], k=2)
    flare = Flare(engine, retriever, tiny_config())
    expected = words_of(Flare(open_engine(TINY), retriever, tiny_config()).generate(QUESTION))
    results = []
    threads = [threading.Thread(target=lambda: results.append(flare.generate(QUESTION)))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [words_of(result) for result in results] == [expected] * 4
    stats = engine.passages.stats()
    assert stats.num_encoded == stats.num_passages

    async def together():
        return await asyncio.gather(*(flare.agenerate(QUESTION) for _ in range(4)))

    engine.passages.clear()
    assert [words_of(result) for result in asyncio.run(together())] == [expected] * 4
    engine.check_integrity()
    assert engine.stats().num_held_blocks == 0


@pytest.mark.parametrize("budget", [0, 1 << 15, None])
def test_the_answer_does_not_depend_on_the_budget(budget):
    retriever = LexicalRetriever([fact[:40] for fact in FACTS], k=2)
    expected = words_of(Flare(open_engine(TINY), retriever, tiny_config()).generate(QUESTION))
    with open_engine(TINY, passage_cache_bytes=budget, max_batch_tokens=9) as engine:
        for _ in range(2):
            assert words_of(Flare(engine, retriever, tiny_config()).generate(QUESTION)) == expected


# ---- the other parts of the loop ----

@pytest.mark.parametrize("query", ["question", "keywords"])
@pytest.mark.parametrize("draft_context", ["none", "last_evidence"])
def test_queries_of_the_model_see_what_the_sentence_saw(query, draft_context):
    retriever = LexicalRetriever(FACTS, k=2)
    options = {**PARALLEL, "query": query, "beta": 0.5, "draft_context": draft_context,
               "max_retrievals_per_sentence": 2}
    cold = open_engine(smollm2_path(), compute="int8", threads=2)
    result = run_loop(cold, retriever, ENDLESS, **options)
    again = run_loop(cold, retriever, ENDLESS, **options)
    asked = [a for s in result.trace.sentences for a in s.asked]
    assert len(asked) >= 2
    # Keywords may stay the same when the sentence is written again, and are then not asked for.
    assert query == "keywords" or any(a.pass_index > 0 for a in asked)
    assert [a.text for a in asked] == [a.text for s in again.trace.sentences for a in s.asked]
    assert words_of(again) == words_of(result)
    # The context is cached, passages included: only the request is prefilled.
    assert all(a.num_prefilled < a.num_context / 2 for a in asked)
    cold.close()


@pytest.mark.parametrize("name", [n for n, s in METHODS.items() if "placement" in s.options])
def test_every_method_that_places_evidence_can_attach_it(name):
    """Cold and warm alike: a piece that is written on sees what it saw before."""
    engine = open_engine(smollm2_path(), compute="int8", threads=2)
    with engine:
        method = make_method(name, engine, LexicalRetriever(FACTS, k=2), FlareConfig(
            k=2, max_new_tokens=24, max_passage_tokens=16, placement="parallel",
            recompute_tokens=4))
        cold, warm = method.generate(QUESTION), method.generate(QUESTION)
        assert words_of(cold) == words_of(warm)
        assert cold.trace.is_approximate
        assert cold.stats.num_encoded > 0 == warm.stats.num_encoded
        engine.check_integrity()
        assert engine.stats().num_held_blocks == 0


def test_a_lineage_keeps_what_other_passages_do_not_touch():
    engine = open_engine(TINY)
    ids = list(range(40, 80))
    sequence = engine.sequence(ids, num_head_tokens=8, num_reserved=32)
    passages = [sequence.encode_passage(range(n, n + 20)) for n in (100, 200)]
    line = Lineage(sequence)
    one, two = Attached((passages[0],), 30), Attached((passages[1],), 35)
    assert line.num_shared(ids) == 40
    assert line.num_shared(ids, one) == 30
    assert line.align(ids, one).num_reused == 30
    line.decode(max_tokens=2).result()
    assert line.num_shared(ids, one) == 40
    assert line.num_shared(ids, two) == line.num_shared(ids) == 30
    assert line.fork().num_shared(ids, one) == 40
    assert line.align(ids).num_reused == 30


def test_an_answer_that_is_cancelled_leaves_nothing_behind():
    engine = open_engine(TINY, max_batch_tokens=4)
    flare = Flare(engine, LexicalRetriever(FACTS, k=2), tiny_config(max_new_tokens=400))

    async def run(seconds):
        task = asyncio.create_task(flare.agenerate(QUESTION))
        await asyncio.sleep(seconds)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    for seconds in (0.0, 0.01, 0.05):
        asyncio.run(run(seconds))
    with flare.stream(QUESTION) as events:
        next(events)
    engine.check_integrity()
    assert engine.stats().num_sequences == 0


def test_a_deadline_ends_the_answer():
    engine = open_engine(TINY, max_batch_tokens=1)
    flare = Flare(engine, LexicalRetriever(FACTS, k=2), tiny_config(deadline_ms=1.0))
    assert flare.generate(QUESTION).stop_reason == "deadline"
    engine.check_integrity()


# ---- prompts, templates and room ----

def test_every_kind_of_prompt_works():
    engine = open_engine(TINY)
    retriever = LexicalRetriever(FACTS, k=2)
    for ids, num_head in (([5, 6, 7, 8], None), ([5, 6, 7, 8], 0), ([5, 6, 7, 8], 2),
                          ([5, 6, 7, 8], 4), ([5], None), ([TINY.vocab_size - 2], None)):
        result = Flare(engine, retriever, tiny_config(max_new_tokens=20)).generate(
            ids, question=QUESTION, num_head_tokens=num_head)
        first = result.trace.sentences[0].draft
        assert len(first.passage_ids) == 2 and first.num_context > len(ids) + 10
    engine.check_integrity()


def test_passages_fit_the_positions_that_are_kept_for_them():
    engine = open_engine(TINY)
    template = replace(TEMPLATE, parallel_passage="About {title}: {text}\n")
    config = tiny_config(template=template, max_passage_tokens=20, max_evidence_tokens=200)
    maker = EvidenceMaker(engine.tokenizer, template, config)
    limit = maker.max_rendered_tokens
    assert 20 < limit < 80
    passages = [
        Passage("a", "a b c d " * 40, "T"), Passage("b", "a b", "long title " * 9),
        Passage("c", "ä" * 60, "名前" * 5), Passage("d", "x", "much too long a title " * 30)]
    evidence = maker.make(passages, None, 1)
    assert evidence.passage_ids[0] == "a" and "d" not in evidence.passage_ids
    assert all(1 <= len(item.token_ids) <= limit for item in evidence.items)
    flare = Flare(engine, LexicalRetriever(FACTS, k=2), config)
    assert flare.generate(QUESTION).stats.num_regenerations > 0
    small = EvidenceMaker(engine.tokenizer, template, replace(config, max_evidence_tokens=15))
    assert small.max_rendered_tokens == 15
    assert EvidenceMaker(engine.tokenizer, template, replace(
        config, placement="prefix")).max_rendered_tokens is None


def test_a_passage_is_rendered_without_a_number():
    with pytest.raises(ConfigError, match=r"parallel_passage.*\{number\}"):
        PromptTemplate.base(parallel_passage="[{number}]: {text}\n")
    with pytest.raises(ConfigError, match="parallel_passage"):
        PromptTemplate.chat(parallel_passage="{title}\n")
    assert PromptTemplate.from_dict({"kind": "base", "parallel_passage": "{text} "}).to_dict()[
        "parallel_passage"] == "{text} "


def test_room_is_checked_before_any_work():
    engine = open_engine(TinyLlama(context_length=256, vocab_size=935))
    retriever = LexicalRetriever(FACTS, k=2)
    question = QUESTION[:20]
    template = replace(TEMPLATE, head="Answer.\n")
    fits = {"template": template, "max_passage_tokens": 100, "max_new_tokens": 20}
    assert Flare(engine, retriever, tiny_config(**fits)).generate(question).text
    with pytest.raises(ContextOverflowError, match="positions for passages 1"):
        Flare(engine, retriever, tiny_config(
            **fits | {"max_new_tokens": 150})).generate(question)
    # Evidence takes no room of its own: dropping passages would gain nothing.
    result = Flare(engine, retriever, tiny_config(
        **fits | {"max_new_tokens": 150, "overflow": "drop_oldest"})).generate(question)
    assert result.stop_reason == "context_length"
    assert all(s.draft.num_context <= 256 for s in result.trace.sentences)
    engine.check_integrity()


def test_an_engine_without_passages_is_refused():
    with pytest.raises(UnsupportedError, match="no attribute passages"):
        Flare(ScriptedEngine(None), LexicalRetriever(FACTS, k=2), tiny_config())


# ---- what is told ----

def test_traces_say_which_placement_ran_and_what_is_approximate():
    engine = open_engine(TINY)
    retriever = LexicalRetriever(FACTS, k=2)
    for placement in ("prefix", "boundary", "parallel"):
        trace = Flare(engine, retriever, tiny_config(placement=placement)).generate(QUESTION).trace
        is_approximate = placement == "parallel"
        assert (trace.placement, trace.is_approximate) == (placement, is_approximate)
        assert Trace.from_json(trace.to_json()) == trace
        data = trace.to_dict()
        assert (data["placement"], data["is_approximate"]) == (placement, is_approximate)
        page = trace_page([trace])
        assert ("parallel (approximation)" in page) == is_approximate
        assert ("encoded on their own" in page) == is_approximate
        numbers = {name: (value, remark) for name, value, remark in rows(trace.stats, trace)}
        assert numbers["placement"][0] == placement
        assert ("approximation" in numbers["placement"][1]) == is_approximate
        assert ("passages encoded" in numbers) == is_approximate
        encoded = sum(p.num_encoded for s in trace.sentences for p in (s.draft, *s.regenerations))
        assert encoded == trace.stats.num_encoded
        assert (encoded > 0) == is_approximate


def test_sampled_answers_differ_with_the_seed_only():
    engine = open_engine(TINY)
    retriever = LexicalRetriever(FACTS, k=2)
    answers = [
        Flare(engine, retriever, tiny_config(
            sampling=SamplingParams(temperature=1.0, seed=seed), speculative=speculative)
        ).generate(QUESTION).token_ids
        for seed in (1, 2) for speculative in (True, False)]
    assert answers[0] == answers[1] != answers[2] == answers[3]
