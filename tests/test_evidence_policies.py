"""Which passages stay in view, what is cut, and passages that a sentence has seen already."""

from __future__ import annotations

import pytest
from scripted_model import Lists, Say, ScriptedEngine, ScriptedRetriever
from test_controller import LOW, PAPER, run
from test_evidence import make

from flarecore.config import FlareConfig
from flarecore.flare import Flare
from flarecore.retrieval.passage import Passage
from flarecore.sampling import SamplingParams
from flarecore.trace import Trace


def named(*ids, words=""):
    return [Passage(i, f"text of {i}{words}.", score=1.0) for i in ids]


def story(searches, *, policy, num=None, **options):
    """Sentences that each search once; what was in view of every regeneration."""
    num = len(searches) - 1 if num is None else num
    script = Lists([Say(f" {n} 1913.", low=LOW) for n in range(num)] + [Say(stop="eos")],
                   [Say(f" {n} 1912.") for n in range(num)])
    result, engine, _ = run(
        script, ScriptedRetriever(*searches), initial_retrieval=True, k=5,
        evidence_policy=policy,
        # sampled: the first sentence is written again also if its passages are the question's
        sampling=SamplingParams(temperature=1.0), **options)
    return [p.passage_ids for s in result.trace.sentences for p in s.regenerations], result, engine


SEARCHES = [named("a", "b"), named("c", "a"), named("d", "c"), named("b")]


@pytest.mark.parametrize(("policy", "expected"), [
    ("replace", [("a", "c"), ("c", "d"), ("b",)]),
    ("keep_first", [("a", "b", "c"), ("a", "b", "c", "d"), ("a", "b")]),
    ("sticky", [("a", "b", "c"), ("a", "b", "c", "d"), ("a", "b", "c", "d")])])
@pytest.mark.parametrize("placement", ["prefix", "boundary"])
def test_which_passages_stay(policy, expected, placement):
    seen, result, _ = story(SEARCHES, policy=policy, placement=placement)
    assert seen == expected
    assert Trace.from_json(result.trace.to_json()) == result.trace
    # a search that found something has its tokens told, also what had been there before
    (last,) = result.trace.sentences[2].retrievals
    assert [p.num_tokens > 0 for p in last.passages] == [True]


@pytest.mark.parametrize("policy", ["keep_first", "sticky"])
def test_a_longer_list_of_passages_recomputes_only_what_is_new(policy):
    _, _, engine = story([named("a", "b"), named("c"), named("c", "d")], policy=policy,
                         placement="prefix")
    first, second = (c for c in engine.calls if c.pass_index == 1)
    encode = engine.tokenizer.encode
    asked = "Q: Who?\nA: 0 1912."
    assert second.num_given == len(encode("[4]: text of d.\n" + asked)), "a, b and c stay cached"
    assert first.num_given == len(encode("[3]: text of c.\nQ: Who?\nA:"))


@pytest.mark.parametrize(("policy", "drafts"), [
    ("replace", ["a b", "c a", "d"]), ("keep_first", ["a b", "a b c", "a b d"]),
    ("sticky", ["a b", "a b c", "a b c d"])])
def test_drafts_see_what_stays_if_they_see_passages_at_all(policy, drafts):
    searches = [named("a", "b"), named("c", "a"), named("d")]
    for context, expected in (("last_evidence", drafts), ("none", ["a b", "", ""])):
        _, result, _ = story(searches, policy=policy, draft_context=context)
        seen = [" ".join(sorted(s.draft.passage_ids)) for s in result.trace.sentences]
        assert seen == [" ".join(sorted(e.split())) for e in expected]


def test_nothing_found_keeps_the_passages_and_is_no_evidence():
    for policy in ("keep_first", "sticky"):
        _, result, _ = story([named("a"), []], policy=policy, num=0)
        script = Lists([Say(" 0 1913.", low=LOW), Say(" 1.", stop="eos")])
        result, _, _ = run(script, ScriptedRetriever(named("a"), []), initial_retrieval=True,
                           evidence_policy=policy, draft_context="last_evidence")
        assert result.sentences[0].unsupported_because == "no_evidence"
        assert result.trace.sentences[1].draft.passage_ids == ("a",)


# ---- the budget (each passage here has 8 tokens: "[1]:" has 4, three words, the newline) ----


def ids(evidence):
    return () if evidence is None else evidence.passage_ids


def three(*names):
    return [Passage(n, f"{n}1 {n}2 {n}3", score=1.0) for n in names]


def full(*names):
    return "".join(f"[{n}]: {x}1 {x}2 {x}3\n" for n, x in enumerate(names, start=1))


@pytest.mark.parametrize(("budget", "text"), [
    (32, full("a", "b", "c", "d")),
    (31, "[1]: a1 a2 a3\n[2]: b1 b2 b3\n[3]: c1 c2 c3\n[4]: d1 d2\n"),
    (24, full("a", "b", "c")),                       # worst rank first: the step's own d
    (23, "[1]: a1 a2 a3\n[2]: b1 b2\n[3]: c1 c2 c3\n"),  # then the question's b
    (16, full("a", "c")), (15, "[1]: a1 a2 a3\n[2]: c1 c2\n"), (8, full("a"))])
def test_the_questions_passages_and_the_steps_share_the_budget_by_rank(budget, text):
    options = {"evidence_policy": "keep_first", "max_evidence_tokens": budget}
    first = make(three("a", "b"), evidence_policy="keep_first")[0]
    evidence, shown, _ = make(three("c", "d"), first, step=2, first=first, **options)
    assert shown == text and evidence.num_tokens <= budget


@pytest.mark.parametrize(("budget", "expected"), [
    (40, "abcde"), (32, "acde"), (24, "cde"), (16, "de"), (8, "d")])
def test_the_longest_unseen_goes_first_if_all_stay(budget, expected):
    options = {"evidence_policy": "sticky"}
    first = make(three("a", "b"), **options)[0]
    second = make(three("c"), first, step=2, **options)[0]
    evidence, _, _ = make(three("d", "e"), second, step=3, max_evidence_tokens=budget, **options)
    assert "".join(ids(evidence)) == expected


def test_a_passage_that_is_found_again_is_as_new_as_the_search():
    options = {"evidence_policy": "sticky"}
    first = make(three("a", "b"), **options)[0]
    second = make(three("c", "a"), first, step=2, **options)[0]
    assert ids(second) == ("a", "b", "c")
    assert [(i.found_step, i.since_step, i.rank) for i in second.items] == [
        (2, 1, 1), (1, 1, 1), (2, 2, 0)]
    third = make(three("d"), second, step=3, max_evidence_tokens=24, **options)[0]
    assert ids(third) == ("a", "c", "d"), "b was found longest ago"


def test_a_staying_passage_keeps_its_text_and_takes_a_new_one():
    options = {"evidence_policy": "sticky"}
    first = make(three("a"), max_evidence_tokens=7, **options)[0]
    assert first.items[0].text == "a1 a2"
    same = make(three("a", "b"), first, step=2, **options)[0]
    assert [i.text for i in same.items] == ["a1 a2", "b1 b2 b3"], "the cached prefix holds"
    changed = [Passage("a", "other words")]
    assert make(changed, first, step=2, **options)[0].items[0].text == "other words"


def test_the_same_text_under_another_id_is_not_shown_twice():
    for policy in ("keep_first", "sticky"):
        first = make(three("a"), evidence_policy=policy)[0]
        twin = [Passage("z", " a1\n a2 a3 "), *three("b")]
        evidence = make(twin, first, step=2, first=first, evidence_policy=policy)[0]
        assert ids(evidence) == ("a", "b")


def test_where_the_context_is_full_the_questions_passages_go_last():
    first = make(three("a", "b"))[0]
    evidence, _, maker = make(three("c", "d"), first, step=2, first=first,
                              evidence_policy="keep_first")
    left = []
    while evidence is not None:
        evidence = maker.without_oldest(evidence)
        left.append("".join(ids(evidence)))
    assert left == ["abc", "ab", "a", ""]
    sticky = {"evidence_policy": "sticky"}
    evidence, _, maker = make(three("b", "d"), make(three("a", "b"), **sticky)[0], step=2, **sticky)
    left = []
    while evidence is not None:
        evidence = maker.without_oldest(evidence)
        left.append("".join(ids(evidence)))
    assert left == ["bd", "d", ""]


def test_a_long_answer_with_all_passages_staying_never_overflows():
    searches = [named(f"p{n}", f"q{n}", words=" w" * 20) for n in range(12)]
    seen, _, engine = story(searches, policy="sticky", max_evidence_tokens=60)
    prompt = len(engine.calls[0].context_ids)
    assert len(seen) == 11 and all(1 <= len(s) <= 3 for s in seen)
    assert max(len(c.context_ids) for c in engine.calls) < prompt + 60 + 12 * 4 + 5


# ---- passages that the sentence has seen already ----


def unchanged(placement="prefix", temperature=0.0, searches=None, regenerations=(), **options):
    script = Lists([Say(" In 1913.", low=LOW), Say(" On 1913.", low=LOW), Say(stop="eos")],
                   [Say(text) for text in regenerations])
    retriever = ScriptedRetriever(*(searches or [named("a", "b")]))
    return run(script, retriever, placement=placement, draft_context="last_evidence",
               initial_retrieval=True, sampling=SamplingParams(temperature=temperature), **options)


@pytest.mark.parametrize("placement", ["prefix", "boundary"])
def test_the_very_passages_of_a_greedy_draft_accept_it_without_decoding(placement):
    result, engine, _ = unchanged(placement)
    assert result.text == " In 1913. On 1913."
    assert [c.pass_index for c in engine.calls] == [0, 0, 0], "no regeneration was decoded"
    assert result.stats.num_unchanged == 2 and result.stats.num_regenerations == 0
    assert result.stats.num_retrievals == 3 and result.stats.num_triggers == 2
    assert result.stats.num_decoded == sum(
        len(s.draft.token_ids) for s in result.trace.sentences)
    for sentence in result.trace.sentences[:2]:
        assert sentence.outcome == "draft" and sentence.unsupported_because is None
        assert sentence.retrievals[0].is_unchanged and sentence.regenerations == ()
        assert all(p.num_tokens > 0 for p in sentence.retrievals[0].passages)
    assert [s.passage_ids for s in result.sentences] == [("a", "b")] * 2
    assert not result.trace.initial_retrieval.is_unchanged
    assert Trace.from_json(result.trace.to_json()) == result.trace


def test_a_sampled_draft_is_written_again():
    result, engine, _ = unchanged(temperature=0.5, regenerations=[" In 1912.", " On 1912."])
    assert result.text == " In 1912. On 1912." and result.stats.num_unchanged == 0
    assert [c.pass_index for c in engine.calls] == [0, 1, 0, 1, 0]
    assert engine.calls[0].context_ids == engine.calls[1].context_ids
    assert all(s.retrievals[0].is_unchanged for s in result.trace.sentences[:2])


@pytest.mark.parametrize("second", [named("b", "a", "c"), named("a"), named("a", "b", words="!")])
def test_any_other_list_is_written_with(second):
    result, engine, _ = unchanged(
        searches=[named("a", "b"), second], regenerations=[" In 1912."])
    assert [s.retrievals[0].is_unchanged for s in result.trace.sentences[:2]] == [False, True]
    assert engine.calls[1].pass_index == 1 and result.text == " In 1912. On 1913."


def test_another_order_of_the_same_passages_is_the_same_list():
    result, _, _ = unchanged(searches=[named("a", "b"), named("b", "a")])
    assert result.stats.num_unchanged == 2, "recurring passages keep their order"


def test_a_draft_that_saw_no_passages_is_written_with_them():
    script = Lists([Say(" One."), Say(" In 1913.", low=LOW), Say(stop="eos")], [Say(" In 1912.")])
    result, _, _ = run(script, ScriptedRetriever(named("a")), initial_retrieval=True,
                       draft_context="none")
    assert result.text == " One. In 1912." and result.stats.num_unchanged == 0


def test_a_regeneration_is_not_written_again_with_what_it_was_written_with():
    script = Lists([Say(" In 1913 he left.", low=LOW), Say(stop="eos")],
                   [Say(" On 1913 he left.", low=LOW)])
    retriever = ScriptedRetriever(named("a"))
    result, engine, _ = run(script, retriever, max_retrievals_per_sentence=3)
    assert retriever.queries == ["In he left.", "On he left."]
    assert [c.pass_index for c in engine.calls] == [0, 1, 0]
    assert [r.is_unchanged for r in result.trace.sentences[0].retrievals] == [False, True]
    assert result.sentences[0].source == "regenerated" and result.stats.num_unchanged == 1


def test_a_stopped_draft_with_its_own_passages_is_written_to_its_end():
    script = Lists([Say(" In 1913 he left.", low=LOW)] * 2 + [Say(stop="eos")])
    result, engine, _ = run(script, ScriptedRetriever(named("a")), initial_retrieval=True,
                            trigger="token")
    assert result.text == " In 1913 he left." and result.stats.num_unchanged == 1
    assert [c.pass_index for c in engine.calls] == [0, 0, 0]
    assert result.trace.sentences[0].completion.text == " In 1913 he left."


def test_the_unchanged_passages_of_a_boundary_stay_where_they_are():
    # sampled, so that the second sentence is written again: in the place it was drafted in
    _, engine, _ = unchanged("boundary", 0.5, regenerations=[" In 1912.", " On 1912."])
    drafts, again = engine.contexts(0), engine.contexts(1)
    assert drafts[1] == again[1] == (
        "<bos>HEAD\nQ: Who?\nF:\n[1]: text of a.\n[2]: text of b.\nA: In 1912.")


def test_every_policy_round_trips_as_an_option():
    for policy in ("replace", "keep_first", "sticky"):
        config = FlareConfig(evidence_policy=policy, template=PAPER)
        assert FlareConfig.from_dict(config.to_dict()) == config
        engine = ScriptedEngine(Lists([Say(" A.", stop="eos")]))
        assert Flare(engine, ScriptedRetriever(), config).generate("Who?").text == " A."
