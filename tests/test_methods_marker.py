"""Marked doubt over a scripted engine, and brackets as bytes."""

from __future__ import annotations

import pytest
from helpers_methods import run_method
from scripted_model import Lists, Say, ScriptedRetriever, WordTokenizer, passages

from flarecore.methods.brackets import CALL, MARKER, cut_out


def test_a_marked_sentence_is_looked_up_and_written_again():
    retriever = ScriptedRetriever(passages("P zero."))
    result, engine, _ = run_method(
        "marker", Lists([Say(" He was born in [UNCERTAIN: birth year] 1913.", prob=0.1),
                         Say(" He died.", prob=0.1), Say(stop="eos")],
                        [Say(" He was born in 1912.")]), retriever)
    assert retriever.queries == ["birth year"]
    assert result.text == " He was born in 1912. He died."
    assert engine.contexts(1)[0].endswith("E:\n[1]: P zero.\nQ: Who?\nA:")
    assert "HEAD" in engine.contexts(0)[0] and "[UNCERTAIN: keywords" in engine.contexts(0)[0]
    assert result.sentences[0].unsupported_because is None


def test_a_marker_in_the_regeneration_is_removed_and_flagged():
    retriever = ScriptedRetriever(passages("P zero."))
    result, engine, _ = run_method(
        "marker", Lists([Say(" Born in [UNCERTAIN: year] 1913."), Say(stop="eos")],
                        [Say(" Born in [UNCERTAIN: year] 1912.")]), retriever)
    assert result.text == " Born in 1912."
    assert result.sentences[0].unsupported_because == "marked_again"
    assert engine.contexts(0)[1].endswith("A: Born in 1912.")


@pytest.mark.parametrize("placement", ["prefix", "boundary"])
def test_markers_leave_the_text_also_where_nothing_is_found(placement):
    result, _, _ = run_method(
        "marker", Lists([Say(" Born [UNCERTAIN: a], in [UNCERTAIN: b [c] (d)] 1913."),
                         Say(" See [1] and [UNCERTAIN list]."), Say(stop="eos")]),
        ScriptedRetriever(), placement=placement)
    assert result.text == " Born, in 1913. See [1] and [UNCERTAIN list]."
    assert [s.unsupported_because for s in result.sentences] == ["no_evidence", None]


def test_several_markers_are_searched_together_and_an_open_one_ends_with_its_sentence():
    retriever = ScriptedRetriever(passages("P zero."))
    result, _, _ = run_method(
        "marker", Lists([Say(" [UNCERTAIN: 北京] is [UNCERTAIN: who? what"), Say(stop="eos")],
                        [Say(" It is [UNCERTAIN: x")]), retriever)
    assert retriever.searches[0][0] == ("北京", "who? what")
    assert result.text == " It is"


def test_a_marker_without_keywords_searches_the_question():
    retriever = ScriptedRetriever(passages("P zero."))
    run_method("marker", Lists([Say(" It is [UNCERTAIN: ] so."), Say(stop="eos")],
                               [Say(" It is.")]), retriever)
    assert retriever.queries == ["Who?"]


@pytest.mark.parametrize(("text", "call"), [
    ("a [Search(Foo)] b", (2, 15, "Foo")),
    ("a [Search(Foo (film))] b", (2, 22, "Foo (film)")),
    ("[Search(a [b (c)] d)]", (0, 21, "a [b (c)] d")),
    ("[Search(two\nlines)]", (0, 19, "two\nlines")),
    ("[Search(open [Search(b)]", (13, 24, "b")),
    ("[Search()]", (0, 10, "")),
    ("[1] [Search (x)] [search(x)] (y)]", None),
    ("[Search(never", None),
    ("[Search(x) ]", None),
    ("", None),
])
def test_what_is_a_call(text, call):
    found = CALL.find(text.encode())
    assert call == (found and (found.begin, found.end, found.content))


def test_where_a_bracket_may_still_begin():
    assert CALL.open_at(b"a [Search(b") == 2 and CALL.open_at(b"a [Sea") == 2
    assert CALL.open_at(b"a [b") is None and CALL.open_at(b"") is None
    assert MARKER.open_at(b"[") == 0


@pytest.mark.parametrize(("text", "left"), [
    ("in [UNCERTAIN: y] 1913.", "in 1913."), ("in [UNCERTAIN: y].", "in."),
    ("([UNCERTAIN: y]1913)", "(1913)"), ("a [UNCERTAIN: y]b", "a b"),
    ("[UNCERTAIN: y] a", " a"), ("ź[UNCERTAIN: 北]é", "źé"), ("\n[UNCERTAIN: y] a", "\n a"),
])
def test_what_is_cut_out_leaves_the_rest_byte_for_byte(text, left):
    tokenizer = WordTokenizer()
    ids, data = tokenizer.encode(text), text.encode()
    spans = [(m.begin, m.end) for m in MARKER.find_all(data)]
    kept, rest = cut_out(tokenizer, ids, data, spans)
    assert rest.decode() == left
    assert b"".join(tokenizer.token_bytes(i) for i in kept) == rest
