"""Queries that the model writes: spans, questions, keywords, forks; what several queries find."""

from __future__ import annotations

import asyncio
import dataclasses
import re

import numpy as np
import pytest
from scripted_model import Lists, Say, ScriptedEngine, ScriptedRetriever, passages
from test_controller import PAPER, run

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError, ContextOverflowError, DeadlineExceeded, OutOfBlocksError
from flarecore.events import RetrievalFinished, RetrievalStarted
from flarecore.flare import Flare
from flarecore.loop.candidate import Candidate
from flarecore.loop.searching import interleaved
from flarecore.loop.spans import low_texts
from flarecore.retrieval.passage import Passage
from flarecore.templates import PromptTemplate
from flarecore.trace import Trace

ASK = dataclasses.replace(PAPER, question_query="\nASK[{span}]", keyword_query="\nKEYS")
DRAFT = Say(" Ann met Bob in Rome on Monday.", low={" Bob": 0.2, " Monday": 0.3, ".": 0.1})


class Asking(Lists):
    """A script that also answers requests for queries, by what they ask for."""

    def __init__(self, drafts, regenerations=(), answers=None):
        super().__init__(drafts, regenerations)
        self.answers = answers or {}
        self.asked = []

    def __call__(self, context, pass_index):
        request = re.search(r"ASK\[([^]]*)\]|KEYS", context)
        if request is None:
            return super().__call__(context, pass_index)
        assert pass_index == 0
        self.asked.append(request.group(1) or "KEYS")
        answer = self.answers[self.asked[-1]]
        return answer if isinstance(answer, Say) else Say(answer)


def ask(answers, *, drafts=(DRAFT,), retriever=None, engine=None, kind="question", **options):
    script = Asking([*drafts, Say(stop="eos")], [Say(" Ann met Cy.")], answers)
    retriever = retriever or ScriptedRetriever(passages("P."))
    engine = engine or ScriptedEngine(script)
    if engine.script is None:
        engine.script = script
    options = {"query": kind, "span_gap": 2, "template": ASK} | options
    result, engine, _ = run(script, retriever, engine=engine, **options)
    assert Trace.from_json(result.trace.to_json()) == result.trace
    return result, engine, retriever, script


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
    assert low_of([' "', "Rome", '",'], [.1, .1, .9]) == [("Rome", 1, 2)]
    # authors' code: equal to beta is low, too
    assert low_of([" a", " b"], [.4, .9]) == []
    assert low_of([" a", " b"], [.4, .9], beta_inclusive=True) == [("a", 0, 1)]


# ---- questions ----


def test_a_question_for_each_span_at_once_on_forks():
    result, engine, retriever, script = ask(
        {"Bob": " Whom did Ann meet?", "Monday": " When did Ann meet Bob?"})
    assert script.asked == ["Bob", "Monday"], "pure punctuation is no span"
    assert retriever.searches[0][0] == ("Whom did Ann meet?", "When did Ann meet Bob?")
    assert engine.most_running == 2, "both were running at the same time"
    asks = [c for c in engine.calls if "ASK" in c.context]
    trunk = "<bos>HEAD\nQ: Who?\nA: Ann met Bob in Rome on Monday."
    assert [c.context for c in asks] == [trunk + "\nASK[Bob]", trunk + "\nASK[Monday]"]
    encode = engine.tokenizer.encode
    assert [c.num_given for c in asks] == [len(encode("\nASK[Bob]")), len(encode("\nASK[Monday]"))]
    assert engine.num_opened == 1, "the request is all that is prefilled"
    for call in asks:
        assert call.options["sampling"].temperature == 0.0 and call.max_tokens == 64
        assert call.options["stop"] == ()
    assert result.text == " Ann met Cy."
    assert result.stats.num_asked == 2
    first, second = result.trace.sentences[0].asked
    assert (first.purpose, first.span, first.text, first.is_used) == (
        "questions", "Bob", " Whom did Ann meet?", True)
    draft = result.trace.sentences[0].draft
    assert "".join(draft.tokens[second.begin:second.end]) == " Monday"
    assert first.num_context == first.num_reused + first.num_prefilled
    assert result.stats.num_prefilled == sum(c.num_given for c in engine.calls)
    (search,) = result.trace.sentences[0].retrievals
    assert search.query_source == "questions" and search.kept is None
    assert search.query == "Whom did Ann meet? | When did Ann meet Bob?"


def test_questions_keep_the_cached_draft_and_leave_nothing_behind():
    num_open = []
    script = Asking(
        [DRAFT, Say(stop="eos", before=lambda: num_open.append(engine.num_open))],
        [Say(" Ann met Cy.", before=lambda: num_open.append(engine.num_open))],
        {"Bob": Say(" Who?", before=lambda: num_open.append(engine.num_open)),
         "Monday": " When?"})
    engine = ScriptedEngine(script)
    run(script, engine=engine, query="question", span_gap=2, template=ASK)
    assert num_open == [3, 2, 2], "two forks, closed again"
    assert engine.num_lookaheads_lost <= 2, "only the forks lost the token looked at"


@pytest.mark.parametrize(("written", "kept"), [
    (" When was it?", "When was it?"), (" 何时？", "何时？"), (' "When was it?"\n', "When was it?"),
    (" Question: When\nwas it?", "When was it?"), (" When was it? ", "When was it?"),
    (" It was on Monday.", None), ("", None), (" When was it", None), ("?", None)])
def test_only_what_ends_in_a_question_mark_is_a_question(written, kept):
    draft = Say(" Ann met Bob on Monday.", low={" Monday": 0.3})
    result, _, retriever, _ = ask({"Monday": written}, drafts=[draft])
    assert retriever.searches[0][0] == (
        (kept,) if kept else ("Ann met Bob on Monday.",)), "else the whole sentence"
    assert result.trace.sentences[0].asked[0].is_used == (kept is not None)
    assert result.trace.sentences[0].retrievals[0].query_source == (
        "questions" if kept else "sentence")


def test_without_a_span_the_whole_sentence_is_the_query():
    # the sentence triggers by theta, but nothing in it is below beta
    draft = Say(" Ann met Bob.", prob=0.7)
    result, _, retriever, script = ask({}, drafts=[draft])
    assert script.asked == [] and retriever.queries == ["Ann met Bob."]
    assert result.stats.num_asked == 0


def test_equal_questions_are_one_and_scope_goes_before_each():
    script = Asking([DRAFT, Say(stop="eos")], [Say(" Ann met Cy.")],
                    {"Bob": " Who?", "Monday": " Who?"})
    retriever = ScriptedRetriever(passages("P."))
    run(script, retriever, query="question", span_gap=2, template=ASK,
        request={"scope": "Acme", "filter": {"lang": "en"}})
    assert retriever.searches == [(("Acme Who?",), 3, {"lang": "en"})]


def test_a_question_that_was_searched_for_the_gap_is_not_searched_again():
    script = Asking([DRAFT, Say(stop="eos")],
                    [Say(" Ann met Cy in Rome on Monday.", low={" Cy": 0.2, " Monday": 0.2})],
                    {"Bob": " Who?", "Monday": " When?", "Cy": " Who?"})
    retriever = ScriptedRetriever(passages("P."))
    result, _, _ = run(script, retriever, query="question", span_gap=2, template=ASK,
                       max_retrievals_per_sentence=3)
    assert [queries for queries, _, _ in retriever.searches] == [("Who?", "When?")]
    assert result.sentences[0].unsupported_because == "repeated_query"
    assert len(result.trace.sentences[0].asked) == 4
    assert {a.pass_index for a in result.trace.sentences[0].asked} == {0, 1}
    # one new question of two: only that one is searched
    script = Asking([DRAFT, Say(stop="eos")],
                    [Say(" Ann met Cy in Rome on Monday.", low={" Cy": 0.2, " Monday": 0.2}),
                     Say(" Ann met Cy.")],
                    {"Bob": " Who?", "Monday": " When?", "Cy": " Which Cy?"})
    retriever = ScriptedRetriever(passages("P."), passages("Q.", first_id=5))
    run(script, retriever, query="question", span_gap=2, template=ASK,
        max_retrievals_per_sentence=2)
    assert [queries for queries, _, _ in retriever.searches] == [
        ("Who?", "When?"), ("Which Cy?",)]


def test_a_chat_model_is_asked_in_a_turn_of_its_own():
    template = PromptTemplate.chat(head="", question_query="ASK[{span}] of {sentence} ({question})")
    script = Asking([dataclasses.replace(DRAFT, text=DRAFT.text.lstrip()), Say(stop="eos")],
                    [Say("Ann met Cy.")], {"Bob": "Who?", "Monday": "When?"})
    engine = ScriptedEngine(script, chat=True)
    run(script, engine=engine, query="question", span_gap=2, template=template)
    sentence = "Ann met Bob in Rome on Monday."
    assert [c.context for c in engine.calls if "ASK" in c.context] == [
        "<bos><|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n" + sentence
        + f"<|im_end|>\n<|im_start|>user\nASK[{span}] of {sentence} (Who?)<|im_end|>\n"
          "<|im_start|>assistant\n" for span in ("Bob", "Monday")]


def test_special_token_text_in_a_span_stays_text():
    engine = ScriptedEngine(None)
    eos = engine.tokenizer.encode("<eos>", parse_special=True)[0]
    draft = Say(" Say <eos> now.", low={"eos": 0.1, " now": 0.1, " Say": 0.1})
    ask({"Say <eos> now": " What?"}, drafts=[draft], engine=engine, span_gap=9)
    assert not any(eos in c.context_ids for c in engine.calls)


def test_default_requests_fit_their_kind_of_model():
    base, chat = PromptTemplate.base(), PromptTemplate.chat()
    for template in (base, chat):
        assert "{span}" in template.question_query and "{span}" not in template.keyword_query
        assert template.question_query == template.question_query.rstrip()
    # a base model goes on with the question in the form that its exemplars have
    assert base.question_query.endswith("\nQuestion:")
    for piece in ("question_query", "keyword_query"):
        with pytest.raises(ConfigError, match=f"{piece}: unexpected placeholder"):
            PromptTemplate.base(**{piece: "{span} {passages}"})
    with pytest.raises(ConfigError, match=r"question_query must hold \{span\} exactly once"):
        PromptTemplate.base(question_query="Ask!")


# ---- keywords ----


@pytest.mark.parametrize(("written", "query"), [
    (" Ann Bob meeting Rome", "Ann Bob meeting Rome"), (" 1. Ann, Rome; Ann,", "Ann Rome"),
    (" 1912 Ann", "1912 Ann"), ('\nKeywords: "Ann Rome"', "Ann Rome"),
    ("", "Ann met Bob in Rome on Monday."), (" ...", "Ann met Bob in Rome on Monday.")])
def test_the_model_writes_keywords(written, query):
    result, engine, retriever, script = ask({"KEYS": written}, kind="keywords")
    assert script.asked == ["KEYS"] and retriever.queries == [query]
    (asked,) = result.trace.sentences[0].asked
    assert asked.purpose == "keywords" and asked.is_used == (not query.endswith("."))
    assert (asked.begin, asked.end) == (0, len(result.trace.sentences[0].draft.token_ids))
    assert engine.calls[1].num_given == len(engine.tokenizer.encode("\nKEYS"))


# ---- faults ----


@pytest.mark.parametrize("kind", ["error", "deadline", "ctrl-c"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_question_that_fails_takes_the_others_along(kind, is_async):
    failing = {"error": Say(error=OutOfBlocksError("full")),
               "deadline": Say(error=DeadlineExceeded("late")), "ctrl-c": Say(hang=True)}[kind]
    script = Asking([Say(" One."), DRAFT], [], {"Bob": failing, "Monday": " When?"})
    engine = ScriptedEngine(script)
    flare = Flare(engine, ScriptedRetriever(passages("P.")), FlareConfig(
        query="question", span_gap=2, template=ASK, initial_retrieval=False))

    async def cancelled():
        task = asyncio.create_task(flare.agenerate("Who?"))
        while len(engine.operations) < 4:
            await asyncio.sleep(0.001)
        task.cancel()
        await task

    def answer():
        return asyncio.run(flare.agenerate("Who?")) if is_async else flare.generate("Who?")

    if kind == "ctrl-c":
        error = asyncio.CancelledError if is_async else KeyboardInterrupt
        with pytest.raises(error):
            asyncio.run(cancelled()) if is_async else flare.generate("Who?")
    elif kind == "error":
        with pytest.raises(OutOfBlocksError) as caught:
            answer()
        assert caught.value.partial.text == " One."
    else:
        result = answer()
        assert (result.text, result.stop_reason) == (" One.", "deadline")
    assert all(operation.done() for operation in engine.operations)
    engine.check_integrity()


def test_a_fork_that_is_refused_takes_the_others_along():
    script = Asking([DRAFT], [], {"Bob": " Who?", "Monday": " When?"})
    engine = ScriptedEngine(script)
    flare = Flare(engine, ScriptedRetriever(passages("P.")), FlareConfig(
        query="question", span_gap=2, template=ASK, initial_retrieval=False))
    real = engine.script

    def refuse(context, pass_index):
        if "ASK[Monday]" in context:
            raise OutOfBlocksError("no block for the second one")
        return real(context, pass_index)

    engine.script = refuse
    with pytest.raises(OutOfBlocksError):
        flare.generate("Who?")
    assert engine.operations[-1].was_cancelled
    engine.check_integrity()


def test_room_for_requests_is_checked_before_any_work_and_never_an_error_later():
    def flare(context_length, script=None, **options):
        engine = ScriptedEngine(script or Asking([]), context_length=context_length)
        return engine, Flare(engine, ScriptedRetriever(passages("P.")), FlareConfig(
            template=ASK, initial_retrieval=False, span_gap=2, max_query_tokens=8,
            max_new_tokens=12, max_evidence_tokens=8, **options))

    def fits(**options):
        for length in range(20, 200):
            try:
                flare(length, **options)[1].stream("Who?")
            except ContextOverflowError as error:
                assert ("writing a query" in str(error)) == (options["query"] != "mask")
            else:
                return length
        raise AssertionError

    plain, asking = fits(query="mask"), fits(query="question")
    tokens = len(ScriptedEngine(None).tokenizer.encode("\nASK[]"))
    assert asking == plain + tokens + 2 * 8
    # a context that is too small for the request: the sentence is the query
    script = Asking([DRAFT, Say(stop="eos")], [Say(" Ann.")], {"Bob": " Who?", "Monday": " When?"})
    encode = ScriptedEngine(None).tokenizer.encode
    length = len(script_prompt()) + len(encode(DRAFT.text + "\nASK[Bob]")) + 8
    _, tight = flare(length, script, query="question", overflow="drop_oldest",
                          max_draft_tokens=9)
    result = tight.generate("Who?")
    assert script.asked == ["Bob", "Monday"]
    assert result.trace.sentences[0].retrievals[0].query_source == "questions"
    script = Asking([DRAFT, Say(stop="eos")], [Say(" Ann.")])
    _, tight = flare(length - 1, script, query="question", overflow="drop_oldest",
                          max_draft_tokens=9)
    result = tight.generate("Who?")
    assert script.asked == [] and result.stats.num_asked == 0
    assert result.trace.sentences[0].retrievals[0].query_source == "sentence"


def script_prompt():
    return ScriptedEngine(None).tokenizer.encode("<bos>HEAD\nQ: Who?\nA:", parse_special=True)


# ---- several queries ----


def found(*ids, text=None):
    return [Passage(i, text or f"text {i}", score=0.5) for i in ids]


def test_results_are_interleaved_by_rank_without_repeats():
    def ids(results, k):
        return [p.id for p in interleaved(results, k)]

    results = [found("a", "b", "c"), found("d", "a", "e"), found()]
    assert ids(results, 5) == ["a", "d", "b", "c", "e"]
    assert ids(results, 3) == ["a", "d", "b"]
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
