"""Events and traces as JSON, and what an answer's text is made of."""

from __future__ import annotations

import dataclasses
import json

import pytest
from scripted_model import FakeClock, Lists, Say, ScriptedEngine, ScriptedRetriever, passages
from test_controller import LOW, PAPER, run

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.events import Event, Finished, SentenceAccepted
from flarecore.flare import Flare
from flarecore.result import FlareResult
from flarecore.retrieval.passage import Passage
from flarecore.trace import FlareStats, Trace


def answer(filter=None, found=None, **options):
    script = Lists([Say(" One."), Say(" In 1913 年.", low=LOW), Say(stop="eos")],
                   [Say(" In 1912.")])
    found = found or passages("Q.", "R.", "Q.")
    return run(script, ScriptedRetriever(found), initial_retrieval=True,
               request={"filter": filter or {"tags": ("a", "b")}, "scope": "then"}, **options)


def test_every_event_round_trips_through_one_line_of_json():
    _, _, events = answer()
    assert len({type(e) for e in events}) == 6
    for event in events:
        line = event.to_json()
        assert "\n" not in line and json.loads(line)["event"] == type(event).__name__
        assert Event.from_json(line) == event


def test_the_trace_round_trips_through_json():
    result, _, _ = answer()
    trace = result.trace
    assert Trace.from_json(trace.to_json()) == trace
    assert Trace.from_json(trace.to_json(indent=2)) == trace
    assert json.loads(trace.to_json())["flarecore_trace"] == 1
    assert trace.config["k"] == 3 and trace.text == result.text
    assert trace.initial_retrieval.filter == {"tags": ["a", "b"]}
    assert FlareConfig.from_dict(dict(trace.config)) == FlareConfig(template=PAPER)


def test_a_filter_that_json_does_not_know_is_shown_as_text():
    result, _, _ = answer(filter={"at_most": [float("inf"), float("nan")], "kind": Lists})
    assert Trace.from_json(result.trace.to_json()) == result.trace
    shown = result.trace.initial_retrieval.filter
    assert shown == {"at_most": ["Infinity", "NaN"], "kind": str(Lists)}


def test_a_set_in_a_filter_is_shown_in_one_order():
    result, _, _ = answer(filter={"lang": {"zh", "en", "de"}, "n": frozenset({2, 1})})
    assert result.trace.initial_retrieval.filter == {"lang": ["de", "en", "zh"], "n": [1, 2]}


_NESTED: list = []
_NESTED.append(_NESTED)


@pytest.mark.parametrize("filter", [{"n": {"lt": 10**5000}}, {"a": _NESTED}])
def test_a_filter_that_no_trace_can_hold_is_refused_before_any_work(filter):
    engine, retriever = ScriptedEngine(None), ScriptedRetriever()
    with pytest.raises(ConfigError, match="filter: cannot be written as JSON"):
        Flare(engine, retriever).stream("Why?", filter=filter)
    assert not engine.num_opened and not retriever.searches


def test_half_a_surrogate_pair_of_a_retriever_does_no_harm():
    """JSON files can hold one, so passages and filters can; UTF-8 files cannot."""
    odd = Passage("p\ud800", "Rome \udfff 1912.", title="\udc00", score=1.0)
    result, _, events = answer(
        found=[odd], filter={"\ud800": "\udfff\ud800"})
    text = result.trace.to_json()
    assert Trace.from_json(text.encode("utf-8")) == result.trace
    assert result.trace.initial_retrieval.passages[0].text == odd.text
    assert "[U+DFFF]" in result.trace.to_html() and result.trace.to_html().encode("utf-8")
    for event in events:
        assert Event.from_json(event.to_json().encode("utf-8")) == event


@pytest.mark.parametrize(("change", "message"), [
    (lambda d: d.pop("text"), "trace: field 'text' is missing"),
    (lambda d: d.update(flarecore_trace=2), "must be 1, got 2"),
    (lambda d: d.pop("flarecore_trace"), "must be 1, got None"),
    (lambda d: d.update(extra=1), "trace: unknown field 'extra'"),
    (lambda d: d["sentences"][0].update(indx=1), r"sentences\[0\]: unknown field 'indx'.*'index'"),
    (lambda d: d["sentences"][0]["draft"].update(probs=["a"]), r"draft.probs\[0\] must be .*float"),
    (lambda d: d["sentences"][0]["draft"]["low"].__setitem__(0, 1), r"low\[0\] must be .*bool"),
    (lambda d: d["stats"].update(num_drafts=True), "num_drafts must be of type int"),
    (lambda d: d["stats"].update(draft_ms=float("inf")), "draft_ms must be a finite number"),
    (lambda d: d.update(sentences={}), "sentences must be a list"),
    (lambda d: d.update(config=[]), "config must be an object"),
    (lambda d: d["initial_retrieval"]["passages"].__setitem__(0, 3), "must be an object")])
def test_a_damaged_trace_is_refused_with_the_place(change, message):
    data = json.loads(answer()[0].trace.to_json())
    change(data)
    with pytest.raises(ConfigError, match=message):
        Trace.from_dict(data)


def test_result_and_stats_round_trip_through_json():
    result, _, events = answer()
    assert FlareResult.from_json(result.to_json()) == result
    data = json.loads(result.to_json())
    assert Trace.from_dict(data["trace"]) == result.trace and data["text"] == result.text
    assert FlareStats.from_dict(json.loads(json.dumps(result.stats.to_dict()))) == result.stats
    assert events[-1].to_dict()["stats"] == result.stats.to_dict()
    for change, message in ((lambda d: d.pop("text"), "result: field 'text' is missing"),
                            (lambda d: d.pop("trace"), "result: field 'trace' is missing"),
                            (lambda d: d["trace"].pop("flarecore_trace"), "must be 1, got None"),
                            (lambda d: d["sentences"][0].update(text=1), r"sentences\[0\].text")):
        damaged = json.loads(result.to_json())
        change(damaged)
        with pytest.raises(ConfigError, match=message):
            FlareResult.from_dict(damaged)


@pytest.mark.parametrize("read", [
    Event.from_dict, Event.from_json, Trace.from_dict, Trace.from_json, FlareStats.from_dict,
    FlareResult.from_dict, FlareResult.from_json])
def test_what_is_no_object_is_refused(read):
    for wrong in (None, 5, [1]):
        with pytest.raises(ConfigError, match=r"must be an object, got|is not valid JSON"):
            read(wrong)


def test_what_is_no_event_is_refused():
    for text, message in (("[]", "must be a JSON object"), ("{", "not valid JSON"),
                          ('{"event": "Finish"}', "did you mean 'Finished'"),
                          ('{"event": "DraftStarted"}', "is missing"), ("[" * 9999, "JSON")):
        with pytest.raises(ConfigError, match=message):
            Event.from_json(text)
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        Finished("", "eos", FlareStats(draft_ms=float("nan"))).to_json()


def test_the_trace_tells_what_happened():
    result, _, _ = answer()
    trace = result.trace
    first, second, last = trace.sentences
    assert [s.outcome for s in trace.sentences] == ["draft", "regenerated", "nothing"]
    assert first.draft.passage_ids == ("p0", "p1") and second.draft.passage_ids == ()
    assert second.draft.probs[1] == pytest.approx(0.1) and second.draft.low[1]
    assert "".join(second.draft.tokens) == second.draft.text == " In 1913 年."
    assert last.stop_reason == "eos"
    (search,) = second.retrievals
    assert search.query.startswith("then In") and search.query_source == "mask"
    assert len(search.kept) == len(second.draft.token_ids) and not search.kept[1]
    # p2 has the text of p0: not used
    assert [p.num_tokens > 0 for p in search.passages] == [True, True, False]
    assert search.num_evidence_tokens == sum(p.num_tokens for p in search.passages)
    (again,) = second.regenerations
    assert again.pass_index == 1 and again.passage_ids == ("p0", "p1")
    assert again.num_context == again.num_reused + again.num_prefilled
    assert len(trace.retrievals) == 2 and trace.passage_overlap == 1.0
    assert trace.stats.num_sentences == 2 and trace.stats.trigger_rate == pytest.approx(1 / 3)
    assert trace.stats.num_tokens == len(result.token_ids)
    assert dataclasses.replace(trace, initial_retrieval=None).passage_overlap is None


def test_times_are_by_phase_and_leave_the_consumer_out():
    clock = FakeClock()

    def wait(seconds):
        def before():
            clock.now += seconds
        return before

    class Slow(ScriptedRetriever):
        def search(self, queries, k, filter=None):
            clock.now += 0.5
            return super().search(queries, k, filter)

    script = Lists([Say(" In 1913.", low=LOW, before=wait(1)), Say(stop="eos", before=wait(1))],
                   [Say(" In 1912.", before=wait(4))])

    def trigger(candidate):
        clock.now += 0.25
        return "1913" in candidate.text

    flare = Flare(ScriptedEngine(script), Slow(passages("P.")),
                  FlareConfig(template=PAPER, initial_retrieval=False, trigger=trigger),
                  clock=clock)
    stream = flare.stream("Who?")
    clock.now += 50  # before the first event the answer has not begun
    for _ in stream:
        clock.now += 100
    stats = stream.result.stats
    assert (stats.draft_ms, stats.retrieve_ms, stats.regenerate_ms, stats.other_ms) == (
        2000.0, 500.0, 4000.0, 250.0)
    assert stats.total_ms == 6750.0
    sentence = stream.result.trace.sentences[0]
    assert (sentence.draft.time_ms, sentence.retrievals[0].time_ms) == (1000.0, 500.0)


def accepted(script, **options):
    result, _, events = run(script, **options)
    return result, [(e.text, e.source) for e in events if isinstance(e, SentenceAccepted)]


def test_a_character_split_over_sentences_is_shown_whole():
    whole = "年。".encode()
    result, texts = accepted(
        Lists([Say(b"In " + whole[:2]), Say(whole[2:4]), Say(whole[4:], stop="eos")]))
    assert result.text == "In 年。"
    assert texts == [("In ", "draft"), ("年", "draft"), ("。", "draft")]


def test_an_incomplete_character_at_the_end_is_replaced():
    result, texts = accepted(Lists([Say(b"In \xe5\xb9"), Say(stop="eos")]))
    assert texts == [("In ", "draft"), ("\ufffd", "remainder")]
    assert result.text == "In \ufffd" and result.sentences[1].token_ids == ()
    assert result.stats.num_sentences == 1


def test_a_stop_string_over_a_sentence_boundary_is_cut_off():
    script = Lists([Say(" One."), Say("\n"), Say("\nQuestion: Who?")])
    result, texts = accepted(script, stop=["\n\nQuestion:"])
    assert (result.text, result.stop_reason) == (" One.", "stop_string")
    assert texts == [(" One.", "draft"), ("", "draft")]
    script = Lists([Say(" One."), Say("\n"), Say("\nQuestionable."), Say(" \n", stop="eos")])
    result, texts = accepted(script, stop=["\n\nQuestion:", " \n#"])
    assert result.text == " One.\n\nQuestionable. \n"
    assert texts[1:] == [("", "draft"), ("\n\nQuestionable.", "draft"), ("", "draft"),
                         (" \n", "remainder")]
    script = Lists([Say(" One. E"), Say("ND and more.")])
    result, texts = accepted(script, stop=["more!", "END"])
    assert (result.text, result.stop_reason, texts) == (
        " One. ", "stop_string", [(" One. ", "draft")])


def test_a_stop_string_within_a_sentence_ends_the_answer_and_no_word_does():
    script = Lists([Say(" He abandoned it (1). [1] done."), Say(" And so on.###")])
    result, _ = accepted(script, stop=["###", "(2"])
    assert result.text == " He abandoned it (1). [1] done. And so on."
    assert result.stop_reason == "stop_string"
    assert result.trace.sentences[1].stop_reason == "stop_string"


def test_sentences_join_as_they_were_generated():
    texts = [" The Penn", "sylvania", "\n\nNew line.", "  Two", " words", ".5", " [Search(x)]"]
    script = Lists([Say(text) for text in texts] + [Say(stop="eos")])
    result, _ = accepted(script)
    assert result.text == "".join(texts)
