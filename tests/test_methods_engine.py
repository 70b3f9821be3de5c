"""The methods on a real engine: cache, speculation, asyncio and company change nothing.

The model is random, so its text holds calls and markers only because they are spelled shorter here
and its alphabet is small.
"""

from __future__ import annotations

import asyncio

import pytest
from helpers import TinyLlama, open_engine, smollm2_engine

from flarecore.config import FlareConfig
from flarecore.engine import Engine
from flarecore.methods import METHODS, decomposition, instruct, make_method, marker
from flarecore.methods.brackets import BracketSyntax
from flarecore.retrieval.passage import Passage
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate

TINY = TinyLlama(vocab_size=935, context_length=4096)
TEMPLATE = PromptTemplate.base(head="Be brief.\n", stop=("\nQ",))
CALL = BracketSyntax(b"[", b"]")
NAMES = sorted(METHODS)
SHORT = pytest.mark.usefixtures("short_spellings")


@pytest.fixture(scope="module")
def engine():
    with open_engine(TINY) as opened:
        yield opened
        opened.check_integrity()


@pytest.fixture
def short_spellings(monkeypatch):
    monkeypatch.setattr(instruct, "CALL", CALL)
    monkeypatch.setattr(marker, "MARKER", BracketSyntax(b"[", b"]", ends_with_text=True))
    monkeypatch.setattr(decomposition, "SUB_QUESTION_LABEL", "a")


class FewPassages:
    """Passages that depend on the query; every fifth query finds nothing."""

    def search(self, queries, k, filter=None):
        def find(query):
            number = sum(query.encode())
            return [] if number % 5 == 0 else [
                Passage(f"p{n % 7}", f"passage {n % 7} of seven") for n in (number, number + 3)][:k]
        return [find(query) for query in queries]


class Forgetful:
    """An engine without memory: every pass starts from nothing, on an engine of its own."""

    def __init__(self, engine):
        self.engine, self.model, self.tokenizer = engine, engine.model, engine.tokenizer

    def sequence(self):
        return self

    fork = sequence
    num_tokens, token_ids = 0, ()

    def truncate(self, num_tokens):
        assert num_tokens == 0

    def close(self):
        pass

    def regenerate_async(self, evidence_ids, **options):
        self.last = Engine(self.model, compute=self.engine.compute, kv_cache_bytes=2**25)
        self.sequence_at_work = self.last.sequence()
        return self.sequence_at_work.regenerate_async(evidence_ids, **options)


def sampling_of(tokenizer, seed):
    table = tokenizer.token_table
    alphabet = [table.index(data.encode()) for data in " ab.[]\n"]
    return SamplingParams(temperature=1.2, seed=seed, logit_bias=dict.fromkeys(alphabet, 60.0))


def method_of(name, engine, seed, **options):
    if "theta" in METHODS[name].options:
        options["theta"] = 1e-5
    config = FlareConfig(
        template=TEMPLATE, max_new_tokens=70, max_draft_tokens=20, max_passage_tokens=12,
        sampling=sampling_of(engine.tokenizer, seed), **options)
    return make_method(name, engine, FewPassages(), METHODS[name].narrowed(config))


def decisions(result):
    """What must not depend on how it was computed."""
    return (result.text, result.token_ids, result.stop_reason, [
        (s.draft.token_ids, s.draft.probs, s.token_ids, s.outcome, s.unsupported_because,
         [r.queries for r in s.retrievals], [p.token_ids for p in s.regenerations])
        for s in result.trace.sentences])


@SHORT
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [1, 2])
def test_cache_and_speculation_change_nothing(engine, name, seed):
    method = method_of(name, engine, seed)
    first = method.generate("Who?")
    assert first.stats.num_decoded > 20
    assert decisions(method.generate("Who?")) == decisions(first)
    plain = method_of(name, engine, seed, speculative=False).generate("Who?")
    assert decisions(plain) == decisions(first) and plain.stats.num_proposed == 0
    forgetful = method_of(name, Forgetful(engine), seed).generate("Who?")
    assert decisions(forgetful) == decisions(first)
    # the fast path was taken
    assert forgetful.stats.num_prefilled > 1.2 * first.stats.num_prefilled
    engine.check_integrity()
    if METHODS[name].needs_retriever:
        assert first.stats.num_retrievals > 0


@SHORT
def test_methods_and_questions_run_at_the_same_time(engine):
    methods = [method_of(name, engine, 3) for name in NAMES]
    expected = [decisions(m.generate(q)) for m in methods for q in ("Who?", "Where is b?")]

    async def all_at_once():
        return await asyncio.gather(*(
            m.agenerate(q) for m in methods for q in ("Who?", "Where is b?")))

    assert [decisions(r) for r in asyncio.run(all_at_once())] == expected
    engine.check_integrity()


@SHORT
def test_calls_leave_the_text_of_a_real_vocabulary(engine):
    num_calls = 0
    for seed in range(6):
        result = method_of("flare-instruct", engine, seed).generate("Who?")
        pieces = [s for s in result.trace.sentences if s.draft.stop_reason == "call"]
        num_calls += len(pieces)
        for piece in pieces:
            data = b"".join(map(engine.tokenizer.token_bytes, piece.draft.token_ids))
            call = CALL.find(data + b"]")
            kept = b"".join(map(engine.tokenizer.token_bytes, piece.token_ids))
            assert kept == data[:call.begin].rstrip(b" ")
        others = [s for s in result.trace.sentences if s.draft.stop_reason in ("sentence", "eos")]
        assert all(CALL.find(s.text.encode()) is None for s in others)
    assert num_calls > 3


class Searched:
    def __init__(self):
        self.queries = []

    def search(self, queries, k, filter=None):
        self.queries += queries
        return [[Passage("p", "Foo is a film of 1912.")] for _ in queries]


@pytest.fixture(scope="module")
def smollm2():
    opened = smollm2_engine("int8")  # shared with other tests: stays open
    yield opened
    opened.check_integrity()


@pytest.mark.parametrize(("line", "query", "before"), [
    (" Foo is [Search(Foo (film))] good.", "Foo (film)", " Foo is"),
    (" Łódź liegt in [Search(Łódź 北京?)] Polen.", "Łódź 北京?", " Łódź liegt in"),
    (" He said [Search(Who is he? A\nman.)] so.", "Who is he? A man.", " He said"),
    ("[Search(What?)] It is [1] so.", "What?", ""),
])
def test_calls_as_a_real_model_spells_them(smollm2, line, query, before):
    # The model copies what it has seen a few times.
    prompt = smollm2.tokenizer.encode(f"A:{line}\n" * 4 + "A:")
    retriever = Searched()
    method = make_method("flare-instruct", smollm2, retriever, FlareConfig(
        initial_retrieval=False, max_new_tokens=25, stop=("\nB:",)))
    result = method.generate(prompt, question="Foo?", num_head_tokens=0)
    assert retriever.queries[0] == query
    first = result.trace.sentences[0]
    assert first.stop_reason == "call" and first.text == before
    assert b"".join(map(smollm2.tokenizer.token_bytes, first.token_ids)).decode() == before
    assert "[Search" not in result.text[:len(before) + 8]
    assert result.trace.sentences[1].draft.passage_ids == ("p",)


def test_a_marker_as_a_real_model_spells_it(smollm2):
    line = " Foo was made in [UNCERTAIN: Foo film year], by Bar."
    prompt = smollm2.tokenizer.encode(f"A:{line}\n" * 4 + "A:")
    retriever = Searched()
    result = make_method("marker", smollm2, retriever, FlareConfig(
        initial_retrieval=False, max_sentences=1)).generate(prompt, question="Foo?")
    assert retriever.queries == ["Foo film year"]
    assert result.trace.sentences[0].regenerations and "UNCERTAIN" not in result.text


@pytest.mark.parametrize("seed", range(4, 8))
def test_text_without_calls_has_the_tokens_of_a_plain_decode(engine, monkeypatch, seed):
    monkeypatch.setattr(instruct, "CALL", BracketSyntax(b"[[[[", b"]"))
    method = method_of("flare-instruct", engine, seed, initial_retrieval=False)
    result = method.generate("Who?")
    assert "]" in result.text and result.stats.num_triggers == 0
    assert result.stats.num_accepted > 0  # the second look verified what was there
    sampling = instruct.BracketTokens(engine.tokenizer).biased(method.config.sampling, 2.0)
    with engine.sequence(result.trace.prompt_token_ids) as sequence:
        plain = sequence.decode(70, sampling=sampling, until="eos", stop=["\nQ"])
    assert 40 < len(result.token_ids) <= 70
    assert plain.token_ids[:len(result.token_ids)] == result.token_ids
