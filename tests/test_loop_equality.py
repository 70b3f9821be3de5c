"""Guarantee 3: the whole loop equals the naive one, which starts every sentence from nothing."""

import dataclasses
import re

import numpy as np
import pytest
from helpers import (
    PROB_TOLERANCE,
    TinyLlama,
    open_engine,
    smollm2_engine,
    smollm2_transformers,
    tiny_llama_path,
)

from flarecore.config import FlareConfig
from flarecore.engine import Engine
from flarecore.flare import Flare
from flarecore.reference.decoder import ReferenceDecoder
from flarecore.reference.gguf_weights import load_llama_gguf
from flarecore.reference.naive_loop import NaiveOptions, naive_flare
from flarecore.reference.naive_prompt import NaivePrompt, base_prompt
from flarecore.reference.token_source import ReferenceTokenSource
from flarecore.retrieval.passage import Passage
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate

QUESTION = "When did the lighthouse of Marrow Point get an electric lamp, and who built the tower?"
FACTS = [
    "The lighthouse of Marrow Point was built by the mason Ellen Varga in 1871.",
    "In 1924 the oil lamp of the lighthouse was replaced by an electric lamp.",
    "Ellen Varga was born in the village of Tor in 1830 and died in 1902.",
    "Marrow Point is a cape on the north coast of the island of Hesk.",
    "The keeper of the lighthouse lives in a house of grey stone beside the tower.",
    "The tower of the lighthouse is forty metres high and painted white and red.",
    "The island of Hesk has a harbour, two schools and a small museum of the sea.",
    "Ships pass Marrow Point at a distance of three miles because of the rocks.",
    "The museum of Hesk shows the first lamp of the lighthouse, which burned whale oil.",
]
TEMPLATE = PromptTemplate.base(
    head="Answer in full sentences.\n\n"
    "Question: Where was the painter Ida Holm born?\n"
    "Answer: Ida Holm was a painter of landscapes. She was born in Bergen in 1861.\n\n",
    stop=(),
)
GREEDY = {}
# This small model likes to end after one sentence: without end-of-text tokens it goes on.
ENDLESS = {"logit_bias": {0: -100.0, 1: -100.0, 2: -100.0}}
SAMPLED = {**ENDLESS, "temperature": 0.8, "top_k": 50, "top_p": 0.95, "seed": 21, "stream": 2}
COMMON = {"max_draft_tokens": 24, "max_new_tokens": 60, "max_passage_tokens": 16}


class LexicalRetriever:
    """Passages by shared words, rare words counting more; a query without any finds nothing."""

    def __init__(self, texts, k):
        self.k = k
        self.passages = [Passage(f"p{n}", text) for n, text in enumerate(texts)]
        self.words = [set(re.findall(r"\w+", text.lower())) for text in texts]

    def find(self, query):
        wanted = set(re.findall(r"\w+", query.lower()))
        scores = [
            sum(1 / sum(word in other for other in self.words) for word in sorted(words & wanted))
            for words in self.words
        ]
        ranked = sorted(range(len(scores)), key=lambda n: (-scores[n], n))[: self.k]
        return [self.passages[n].with_score(scores[n]) for n in ranked if scores[n] > 0]

    def search(self, queries, k, filter=None):
        assert k == self.k and filter is None
        return [self.find(query) for query in queries]


class FreshEngines:
    """A new engine for every sentence, asked for one token at a time."""

    def __init__(self, engine, sampling):
        self.engine, self.sampling = engine, SamplingParams(**sampling)
        self.last = None

    def stream(self, token_ids, pass_index, attached=None):
        if self.last is not None:
            self.last.close()
        self.last = fresh = Engine(
            self.engine.model, compute=self.engine.compute, kv_cache_bytes=2**27
        )
        if attached is None:
            sequence = fresh.sequence(token_ids)
        else:
            sequence = fresh.sequence(
                num_head_tokens=attached.num_head, num_reserved=attached.num_reserved)
            sequence.extend(token_ids)
            sequence.attach([sequence.encode_passage(run) for run in attached.passages],
                            from_token=attached.sees_from)

        def next_token():
            decoded = sequence.decode(1, sampling=self.sampling, until="eos", pass_index=pass_index)
            if decoded.stop_reason == "eos":
                return None, decoded.eos_prob
            return decoded.token_ids[0], decoded.probs[0]

        return next_token


def options_of(retriever, sampling, **options):
    return NaiveOptions(
        search=retriever.find,
        greedy=not sampling.get("temperature"),
        **{**COMMON, **options},
    )


def run_loop(engine, retriever, sampling, template=TEMPLATE, **options):
    config = FlareConfig(
        k=retriever.k,
        template=template,
        sampling=SamplingParams(**sampling),
        **{**COMMON, **options},
    )
    return Flare(engine, retriever, config).generate(QUESTION)


def same_pass(ours, naive, atol):
    """A draft or regeneration of the trace against the naive one."""
    assert ours.token_ids == naive.token_ids
    np.testing.assert_allclose(np.float32(ours.probs), naive.probs, atol=atol, rtol=0)
    assert ours.stop_reason == naive.stop_reason


def assert_equal_answers(result, naive, atol=0.0):
    """Same drafts, triggers, queries, passages, sentences."""
    for sentence, expected in zip(result.trace.sentences, naive.sentences, strict=True):
        same_pass(sentence.draft, expected.draft, atol)
        assert sentence.draft.triggered == expected.triggered
        assert [r.query for r in sentence.retrievals] == (
            [expected.query] if expected.query is not None else []
        )
        used = [p.passage_ids for p in sentence.regenerations]
        assert used == ([expected.passage_ids] if expected.regenerated else [])
        for regeneration in sentence.regenerations:
            same_pass(regeneration, expected.regenerated, atol)
        assert sentence.token_ids == expected.token_ids
    assert list(result.token_ids) == naive.token_ids
    assert result.text == naive.text.decode("utf-8", "replace")
    assert result.stop_reason == naive.stop_reason


def chat_prompt(tokenizer, template):
    """The chat of a question, cut where evidence can stand, with the evidence turn after it."""

    def render(*contents, evidence=None):
        messages = [{"role": "system", "content": template.head}]
        roles = ("user", "assistant") * 2
        messages += [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
        return tokenizer.render_chat(messages, add_generation_prompt=True)

    def encode(text):
        return tokenizer.encode(text, parse_special=True)

    def block(piece, close="", reopen=""):
        before, after = piece.split("{passages}")
        return (
            encode(close) + tokenizer.encode(before),
            tokenizer.encode(after) + encode(reopen),
        )

    head, opening = render("@Q@").split("@Q@")
    close, reopen = render("@Q@", "@A@", "@E@").split("@A@")[1].split("@E@")
    return NaivePrompt(
        head=encode(head),
        asked=tokenizer.encode(template.question.format(question=QUESTION)),
        opening=encode(opening),
        prefix_block=block(template.prefix_evidence),
        first_block=block(template.first_evidence),
        boundary_block=block(template.boundary_evidence, close, reopen),
        passage=template.passage,
        question=QUESTION,
        reopens_turn=True,
    )


# Name: (sampling, options).
SETTINGS = {
    "prefix, to the end": (GREEDY, {"theta": 0.5, "placement": "prefix"}),
    "prefix": (ENDLESS, {"theta": 0.5, "placement": "prefix"}),
    "prefix, always": (ENDLESS, {"theta": 1.0, "placement": "prefix", "mask_unit": "token"}),
    "never": (ENDLESS, {"theta": 0.0, "placement": "prefix"}),
    "boundary": (ENDLESS, {"theta": 0.5, "placement": "boundary"}),
    "sampled prefix": (SAMPLED, {"theta": 0.5, "placement": "prefix"}),
    "sampled boundary, always": (SAMPLED, {"theta": 1.0, "placement": "boundary", "beta": 0.7}),
    "sampled boundary, evidence stays": (
        SAMPLED, {"theta": 0.6, "placement": "boundary", "draft_context": "last_evidence"},
    ),
    "sampled prefix, no initial": (
        SAMPLED,
        {"theta": 0.6, "placement": "prefix", "initial_retrieval": False, "max_sentences": 3},
    ),
    "mean, the question's passages stay": (
        ENDLESS, {"theta": 0.8, "trigger": "mean", "evidence_policy": "keep_first"},
    ),
    "sampled token, all passages stay": (
        SAMPLED,
        {"theta": 0.4, "trigger": "token", "evidence_policy": "sticky", "placement": "boundary"},
    ),
    "parallel": (ENDLESS, {"theta": 0.5, "placement": "parallel", "recompute_tokens": 1}),
    "sampled parallel, some recomputed": (
        SAMPLED, {"theta": 0.6, "placement": "parallel", "recompute_tokens": 12},
    ),
    "sampled parallel, all recomputed, always": (
        SAMPLED, {"theta": 1.0, "placement": "parallel", "recompute_tokens": None},
    ),
    "sampled parallel, evidence stays": (
        SAMPLED, {"theta": 0.6, "placement": "parallel", "draft_context": "last_evidence",
                  "evidence_policy": "sticky", "recompute_tokens": 1},
    ),
    "parallel, all recomputed, evidence stays, token": (
        ENDLESS, {"theta": 0.4, "trigger": "token", "placement": "parallel",
                  "recompute_tokens": None, "draft_context": "last_evidence"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_smollm2_equals_the_naive_loop(setting):
    """Bit for bit: the naive loop draws its tokens from engines without a cache."""
    engine = smollm2_engine("int8")
    retriever = LexicalRetriever(FACTS, k=2)
    sampling, options = SETTINGS[setting]
    result = run_loop(engine, retriever, sampling, **options)
    naive = naive_flare(
        FreshEngines(engine, sampling),
        engine.tokenizer,
        base_prompt(engine.tokenizer, TEMPLATE, QUESTION),
        options_of(retriever, sampling, **options),
    )
    assert_equal_answers(result, naive)
    engine.check_integrity()
    # Not vacuous: the setting did what its name says, and the cache was of use.
    num_triggers = sum(s.triggered for s in naive.sentences)
    assert num_triggers >= (options["theta"] > 0.0) and (
        options["theta"] > 0.0 or num_triggers == 0
    )
    if sampling is not GREEDY:
        assert len(naive.sentences) >= 3
        assert result.stats.num_prefilled < 0.7 * naive.num_prefilled
    if options["theta"] == 1.0:
        assert num_triggers == len(naive.sentences)


@pytest.mark.parametrize("placement", ["prefix", "boundary", "parallel"])
def test_chat_equals_the_naive_loop(placement):
    engine = smollm2_engine("int8")
    template = PromptTemplate.chat()
    retriever = LexicalRetriever(FACTS, k=3)
    options = {"theta": 0.7, "placement": placement}
    result = run_loop(engine, retriever, ENDLESS, template=template, **options)
    naive = naive_flare(
        FreshEngines(engine, ENDLESS),
        engine.tokenizer,
        chat_prompt(engine.tokenizer, template),
        options_of(retriever, ENDLESS, **options),
    )
    assert_equal_answers(result, naive)
    assert sum(s.regenerated is not None for s in naive.sentences) >= 2


@pytest.mark.parametrize("placement", ["prefix", "parallel"])
def test_speculation_changes_nothing(placement):
    engine = smollm2_engine("int8")
    retriever = LexicalRetriever(FACTS, k=2)
    for sampling in (ENDLESS, SAMPLED):
        on, off = (
            run_loop(engine, retriever, sampling, theta=1.0, placement=placement,
                     speculative=speculative)
            for speculative in (True, False)
        )
        assert on.token_ids == off.token_ids and on.text == off.text
        assert [[p.probs for p in (s.draft, *s.regenerations)] for s in on.trace.sentences] == [
            [p.probs for p in (s.draft, *s.regenerations)] for s in off.trace.sentences
        ]
        assert on.stats.num_proposed > 0 and off.stats.num_proposed == 0


@pytest.mark.parametrize("placement", ["prefix", "parallel"])
def test_smollm2_equals_the_naive_loop_on_transformers(placement):
    """Nothing of ours below the loop: transformers, the reference sampler, the reference text."""
    engine = smollm2_engine("float32")
    retriever = LexicalRetriever(FACTS, k=2)
    options = {"theta": 0.5, "placement": placement, "max_sentences": 2}
    result = run_loop(engine, retriever, ENDLESS, **options)
    source = ReferenceTokenSource(smollm2_transformers(), engine.tokenizer.eos_token_ids, ENDLESS)
    naive = naive_flare(
        source,
        engine.tokenizer,
        base_prompt(engine.tokenizer, TEMPLATE, QUESTION),
        options_of(retriever, ENDLESS, **options),
    )
    assert_equal_answers(result, naive, atol=PROB_TOLERANCE)
    assert any(s.regenerated for s in naive.sentences)


TINY = TinyLlama(context_length=2048, vocab_size=935)
TINY_TEMPLATE = dataclasses.replace(TEMPLATE, head="Answer.\n")


@pytest.mark.parametrize(
    "placement, sampling",
    [("prefix", GREEDY), ("boundary", {"temperature": 0.8, "top_p": 0.9, "seed": 3}),
     ("parallel", {"temperature": 0.8, "top_p": 0.9, "seed": 3})],
    ids=["greedy prefix", "sampled boundary", "sampled parallel"],
)
def test_tiny_equals_the_naive_loop_in_float64(placement, sampling):
    """Random bytes for text: cut characters, sentences that end at the limit only."""
    engine = open_engine(TINY)
    retriever = LexicalRetriever([fact[:40] for fact in FACTS], k=2)
    options = {
        "theta": 0.6, "placement": placement, "beta": 0.2, "max_draft_tokens": 9,
        "max_new_tokens": 27,
    }  # fmt: skip
    result = run_loop(engine, retriever, sampling, template=TINY_TEMPLATE, **options)
    decoder = ReferenceDecoder(load_llama_gguf(tiny_llama_path(TINY)))
    naive = naive_flare(
        ReferenceTokenSource(decoder, engine.tokenizer.eos_token_ids, sampling),
        engine.tokenizer,
        base_prompt(engine.tokenizer, TINY_TEMPLATE, QUESTION),
        options_of(retriever, sampling, **options),
    )
    assert_equal_answers(result, naive, atol=PROB_TOLERANCE)
    assert any(s.triggered for s in naive.sentences)
