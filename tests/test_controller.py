"""The FLARE-direct loop, branch by branch, over a scripted engine."""

from __future__ import annotations

import pytest
from scripted_model import FakeClock, Lists, Say, ScriptedEngine, ScriptedRetriever, passages

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.events import (
    DraftFinished,
    DraftStarted,
    Event,
    Finished,
    RetrievalFinished,
    RetrievalStarted,
    SentenceAccepted,
)
from flarecore.flare import Flare
from flarecore.templates import PromptTemplate
from flarecore.trace import Trace

BASE = PromptTemplate.base(head="", stop=())
PAPER = PromptTemplate.base(
    head="HEAD\n", question="Q: {question}\n", answer="A:", passage="[{number}]: {text}\n",
    prefix_evidence="E:\n{passages}", first_evidence="F:\n{passages}",
    boundary_evidence="\nB:\n{passages}A (continued):", stop=())
LOW = {" 1913": 0.1}


def run(script, retriever=None, *, engine=None, prompt="Who?", request=None, **options):
    """Writes an answer and checks what holds for every answer; returns it with the engine."""
    engine = engine or ScriptedEngine(script)
    options.setdefault("template", PAPER)
    options.setdefault("initial_retrieval", False)
    flare = Flare(engine, retriever or ScriptedRetriever(passages("P zero.", "P one.")),
                  FlareConfig(**options), clock=FakeClock())
    with flare.stream(prompt, **(request or {})) as stream:
        events = list(stream)
        result = stream.result
    engine.check_integrity()
    accepted = [e for e in events if isinstance(e, SentenceAccepted)]
    assert isinstance(events[-1], Finished) and events[-1].text == result.text
    assert "".join(e.text for e in accepted) == result.text
    assert tuple(accepted) == result.sentences
    assert [s.token_ids for s in accepted if s.token_ids] == [
        s.token_ids for s in result.trace.sentences if s.outcome in ("draft", "regenerated")]
    assert not isinstance(script, Lists) or script.is_used_up
    assert Trace.from_json(result.trace.to_json()) == result.trace
    assert [Event.from_json(e.to_json()) for e in events] == events
    return result, engine, events


def test_a_confident_draft_is_accepted_and_nothing_is_computed_again():
    script = Lists([Say(" He was born."), Say(" He died.", stop="eos")])
    result, engine, _ = run(script)
    assert result.text == " He was born. He died."
    assert result.stop_reason == "eos"
    assert [c.num_given for c in engine.calls] == [len(engine.calls[0].context_ids), 0]
    assert engine.num_opened == 1 and engine.num_forked == 0
    assert engine.num_lookaheads_lost == 0
    assert result.stats.num_prefilled == len(engine.calls[0].context_ids)
    assert result.stats.num_reused == len(engine.calls[1].context_ids)
    assert result.stats.num_triggers == result.stats.num_retrievals == 0


def test_a_low_token_masks_the_query_and_the_sentence_is_written_again():
    script = Lists([Say(" He was born in 1913.", low=LOW), Say(stop="eos")],
                   [Say(" He was born in 1912.")])
    retriever = ScriptedRetriever(passages("Born in 1912.", "Other."))
    result, engine, events = run(script, retriever, placement="prefix")
    assert retriever.queries == ["He was born in"]
    assert result.text == " He was born in 1912."
    assert engine.contexts(0)[0] == "<bos>HEAD\nQ: Who?\nA:"
    assert engine.contexts(1) == [
        "<bos>HEAD\nE:\n[1]: Born in 1912.\n[2]: Other.\nQ: Who?\nA:"]
    # the next draft continues the accepted sentence and sees no passages
    assert engine.contexts(0)[1] == "<bos>HEAD\nQ: Who?\nA: He was born in 1912."
    kinds = [type(e) for e in events]
    assert kinds == [DraftStarted, DraftFinished, RetrievalStarted, RetrievalFinished,
                     SentenceAccepted, DraftStarted, DraftFinished, Finished]
    draft = events[1]
    assert draft.is_draft and draft.triggered
    assert draft.tokens == (" He", " was", " born", " in", " 1913", ".")
    assert draft.low == (False,) * 4 + (True, False)
    assert events[2].kept == (True,) * 4 + (False, False)
    assert events[4].source == "regenerated" and events[4].unsupported_because is None
    assert events[4].passage_ids == ("p0", "p1")


def test_lineages_share_their_prefix_and_recompute_only_what_differs():
    script = Lists([Say(" He was born in 1913.", low=LOW), Say(" She is 1913.", low=LOW),
                    Say(stop="eos")],
                   [Say(" He was born in 1912."), Say(" She is 1914.")])
    _, engine, _ = run(script, placement="prefix")
    _, regenerated, second, again, last = engine.calls
    size = engine.tokenizer.encode
    # evidence forks the draft lineage at the head
    assert len(regenerated.context_ids) - regenerated.num_given == len(size("<bos>HEAD\n",
                                                                            parse_special=True))
    # the draft lineage is extended from the first token that the regeneration changed
    assert second.num_given == len(size(" 1912."))
    # same passages: the evidence lineage is a prefix of its next context but for the sentence
    assert again.num_given == 0
    assert last.num_given == len(size(" 1914."))
    assert engine.num_opened == 1 and engine.num_forked == 1


@pytest.mark.parametrize("answer_before", [False, True])
def test_boundary_placement_prefills_the_evidence_only(answer_before):
    first = [Say(" One.")] if answer_before else []
    script = Lists([*first, Say(" Born in 1913.", low=LOW), Say(stop="eos")],
                   [Say(" Born in 1912.")])
    result, engine, _ = run(script, placement="boundary")
    (call,) = [c for c in engine.calls if c.pass_index == 1]
    if answer_before:
        assert call.context == ("<bos>HEAD\nQ: Who?\nA: One.\nB:\n[1]: P zero.\n[2]: P one.\n"
                                "A (continued):")
        assert call.num_given == len(engine.tokenizer.encode(
            "\nB:\n[1]: P zero.\n[2]: P one.\nA (continued):"))
    else:
        assert call.context == "<bos>HEAD\nQ: Who?\nF:\n[1]: P zero.\n[2]: P one.\nA:"
        assert call.num_given == len(engine.tokenizer.encode(
            "F:\n[1]: P zero.\n[2]: P one.\nA:"))
    assert engine.contexts(0)[-1] == "<bos>HEAD\nQ: Who?\nA:" + result.text


@pytest.mark.parametrize(("placement", "num_kept"), [("prefix", 2), ("boundary", 1)])
def test_an_evidence_lineage_is_kept_only_where_it_is_of_use(placement, num_kept):
    num_open = []
    script = Lists(
        [Say(" One."), Say(" In 1913.", low=LOW),
         Say(stop="eos", before=lambda: num_open.append(engine.num_open))],
        [Say(" In 1912.", before=lambda: num_open.append(engine.num_open))])
    engine = ScriptedEngine(script)
    run(script, engine=engine, placement=placement)
    assert num_open == [2, num_kept]


@pytest.mark.parametrize("placement", ["prefix", "boundary"])
def test_initial_retrieval_is_in_view_of_the_first_draft_only(placement):
    script = Lists([Say(" One."), Say(" Two."), Say(stop="eos")])
    retriever = ScriptedRetriever(passages("P zero."))
    result, engine, events = run(
        script, retriever, placement=placement, initial_retrieval=True)
    assert retriever.queries == ["Who?"]
    assert isinstance(events[0], RetrievalStarted) and events[0].is_initial
    assert events[0].query_source == "question"
    first, second, third = engine.contexts(0)
    assert "P zero." in first
    assert second == "<bos>HEAD\nQ: Who?\nA: One." and third == second + " Two."
    assert result.sentences[0].passage_ids == ("p0",)
    assert result.sentences[1].passage_ids == ()
    assert result.trace.initial_retrieval.query == "Who?"
    assert engine.calls[1].num_given < len(engine.calls[1].context_ids), "the head is shared"


@pytest.mark.parametrize("placement", ["prefix", "boundary"])
def test_drafts_see_the_last_evidence_in_the_authors_way(placement):
    script = Lists([Say(" One."), Say(" Two 1913.", low=LOW), Say(" Three."), Say(stop="eos")],
                   [Say(" Two 1912.")])
    retriever = ScriptedRetriever(passages("Old."), passages("New.", first_id=5))
    _, engine, _ = run(script, retriever, placement=placement, initial_retrieval=True,
                       draft_context="last_evidence")
    drafts = engine.contexts(0)
    assert all("Old." in c and "New." not in c for c in drafts[:2])
    (regeneration,) = engine.contexts(1)
    assert "New." in regeneration and "Old." not in regeneration
    assert all("New." in c and "Old." not in c for c in drafts[2:])
    assert drafts[2] == regeneration + " Two 1912." and drafts[3] == drafts[2] + " Three."
    assert engine.num_opened == 1 and engine.num_forked == 0


def test_everything_masked_falls_back_to_the_question():
    script = Lists([Say(" Born.", prob=0.1), Say(stop="eos")], [Say(" Dead.")])
    retriever = ScriptedRetriever(passages("P."))
    result, _, events = run(script, retriever, prompt="Who was he?")
    assert retriever.queries == ["Who was he?"]
    assert events[2].query_source == "question" and events[2].kept is None
    assert result.text == " Dead."


def test_everything_masked_keeps_the_draft_in_the_authors_way():
    script = Lists([Say(" Born.", prob=0.1), Say(stop="eos")])
    retriever = ScriptedRetriever(passages("P."))
    result, engine, _ = run(
        script, retriever, **FlareConfig.authors_code().to_dict() | {
            "sampling": FlareConfig().sampling, "template": PAPER})
    assert retriever.queries == ["Who?"], "only the initial search"
    assert result.text == " Born."
    assert result.sentences[0].unsupported_because == "empty_query"
    assert all("P." in c for c in engine.contexts(0)), "the old passages stay"


def test_the_same_query_for_the_same_gap_is_not_searched_again():
    # The first draft has seen the question's passages; falling back to the question gains nothing.
    script = Lists([Say(" Born.", prob=0.1), Say(stop="eos")])
    retriever = ScriptedRetriever(passages("P."))
    result, _, _ = run(script, retriever, initial_retrieval=True)
    assert retriever.queries == ["Who?"]
    assert result.sentences[0].unsupported_because == "repeated_query"
    # The regeneration masks to the same query as the draft did.
    script = Lists([Say(" In 1913.", low=LOW), Say(stop="eos")],
                   [Say(" In 1914.", low={" 1914": 0.1})])
    retriever = ScriptedRetriever(passages("P."))
    result, _, _ = run(script, retriever, max_retrievals_per_sentence=3)
    assert retriever.queries == ["In"]
    assert result.text == " In 1914." and result.sentences[0].source == "regenerated"


def test_a_sentence_may_be_revised_more_than_once():
    script = Lists(
        [Say(" In 1913 he left.", low=LOW), Say(stop="eos")],
        [Say(" In 1914 she left.", low={" 1914": 0.1}), Say(" In 1915 she left.", prob=0.1)])
    retriever = ScriptedRetriever(passages("One."), passages("Two.", first_id=3))
    result, engine, _ = run(script, retriever, max_retrievals_per_sentence=2)
    assert retriever.queries == ["In he left.", "In she left."]
    assert [c.pass_index for c in engine.calls] == [0, 1, 2, 0]
    assert result.text == " In 1915 she left."
    assert result.sentences[0].unsupported_because is None
    assert [p.triggered for p in result.trace.sentences[0].regenerations] == [True, None]


def test_fewer_than_k_passages_are_used_as_they_are():
    script = Lists([Say(" In 1913.", low=LOW), Say(stop="eos")], [Say(" In 1912.")])
    retriever = ScriptedRetriever(passages("Only one."))
    result, engine, events = run(script, retriever, k=5)
    assert retriever.searches[0][1] == 5
    assert len(events[3].passages) == 1 and events[3].passages[0].num_tokens > 0
    assert "[1]: Only one.\nQ:" in engine.contexts(1)[0]
    assert result.text == " In 1912."


@pytest.mark.parametrize(("policy", "text", "reason"), [
    ("accept_draft", " One. In 1913. End.", "eos"),
    ("omit", " One. End.", "eos"),
    ("stop", " One.", "no_evidence"),
    (lambda candidate: "omit" if "1913" in candidate.text else "stop", " One. End.", "eos"),
])
def test_no_passage_found_follows_the_policy(policy, text, reason):
    script = Lists([Say(" One."), Say(" In 1913.", low=LOW)]
                   + ([Say(" End.", stop="eos")] if reason == "eos" else []))
    result, engine, _ = run(script, ScriptedRetriever(), no_evidence=policy)
    assert result.text == text and result.stop_reason == reason
    if reason == "eos":
        # also a sentence left out stays in the model's context, else it would come again
        assert engine.contexts(0)[-1].endswith(" One. In 1913.")
    outcome = result.trace.sentences[1]
    assert outcome.unsupported_because == "no_evidence"
    assert outcome.outcome == {"accept_draft": "draft", "stop": "nothing"}.get(policy, "omitted")
    if policy == "accept_draft":
        assert result.sentences[1].unsupported_because == "no_evidence"


def test_passages_below_the_minimum_score_are_not_evidence():
    script = Lists([Say(" In 1913.", low=LOW), Say(stop="eos")])
    result, _, events = run(script, ScriptedRetriever(passages("P.")), min_score=1.5)
    assert [p.num_tokens for p in events[3].passages] == [0]
    assert result.sentences[0].unsupported_because == "no_evidence"


def test_initial_retrieval_without_a_result():
    script = Lists([Say(" One.", stop="eos")])
    result, engine, _ = run(script, ScriptedRetriever(), initial_retrieval=True)
    assert result.text == " One." and engine.contexts(0) == ["<bos>HEAD\nQ: Who?\nA:"]
    result, engine, _ = run(Lists([]), ScriptedRetriever(), initial_retrieval=True,
                            no_evidence="stop")
    assert (result.text, result.stop_reason, engine.calls) == ("", "no_evidence", [])


def test_scope_and_filter_reach_the_retriever_whatever_the_draft_says():
    script = Lists([Say(" In 1913.", low=LOW), Say(" No.", prob=0.1), Say(stop="eos")],
                   [Say(" In 1912."), Say(" Yes.")])
    retriever = ScriptedRetriever(passages("P."), passages("Q.", first_id=1))
    allowed = {"tenant": "a", "year": {"gte": 2024}}
    result, _, _ = run(script, retriever, initial_retrieval=True,
                       request={"scope": "2024 policy", "filter": allowed})
    assert retriever.queries == ["2024 policy Who?", "2024 policy In", "2024 policy Who?"]
    assert all(f == allowed for _, _, f in retriever.searches)
    assert result.trace.initial_retrieval.filter == allowed


@pytest.mark.parametrize("speculative", [True, False])
def test_the_draft_is_the_proposal(speculative):
    script = Lists([Say(" He was born in 1913.", low=LOW), Say(stop="eos")],
                   [Say(" He was born in 1912.")])
    result, engine, _ = run(script, speculative=speculative)
    call = engine.calls[1]
    assert call.proposal == (result.trace.sentences[0].draft.token_ids if speculative else ())
    assert result.stats.num_proposed == (6 if speculative else 0)
    assert result.stats.num_accepted == (4 if speculative else 0)
    lookup = engine.tokenizer.encode("[1]: P zero.\n[2]: P one.\nQ: Who?\n")
    assert call.options["lookup"] == (tuple(lookup) if speculative else ())
    assert engine.calls[0].proposal == engine.calls[0].options["lookup"] == ()


def test_a_stream_belongs_to_one_thread_at_a_time():
    class Waiting:
        """A retriever that lets the other thread try while it is being asked."""

        def search(self, queries, k, filter=None):
            with pytest.raises(ConfigError, match="another thread"):
                next(events)
            with pytest.raises(ConfigError, match="another thread"):
                events.close()
            return [[] for _ in queries]

    engine = ScriptedEngine(Lists([Say(" Yes.", stop="eos")]))
    events = Flare(engine, Waiting(), FlareConfig(template=PAPER)).stream("Is it so?")
    assert [type(event).__name__ for event in events][-1] == "Finished"
