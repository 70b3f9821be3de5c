"""Which passages are used, in which order, cut to which length."""

from __future__ import annotations

import json

import pytest
from scripted_model import WordTokenizer, passages

from flarecore.config import FlareConfig
from flarecore.loop.evidence import EvidenceMaker
from flarecore.retrieval.passage import Passage
from flarecore.templates import PromptTemplate


def make(found, previous=None, *, step=1, first=None, passage="[{number}]: {text}\n", **options):
    tokenizer = WordTokenizer()
    maker = EvidenceMaker(tokenizer, PromptTemplate.base(passage=passage), FlareConfig(**options))
    evidence = maker.make(found, previous, step, first)
    return evidence, "" if evidence is None else tokenizer.decode(evidence.token_ids), maker


def test_passages_are_rendered_by_rank():
    evidence, text, _ = make(passages("One.", "Two."))
    assert text == "[1]: One.\n[2]: Two.\n"
    assert evidence.passage_ids == ("p0", "p1")
    assert evidence.num_tokens == len(evidence.token_ids) == 14


def test_a_template_may_show_title_and_id():
    found = [Passage("x", " Text. ", title="{Head} of %s")]
    assert make(found, passage="({id}|{title}) {text} {{n}}\n")[1] == (
        "(x|{Head} of %s) Text. {n}\n")


def test_duplicates_by_id_and_by_text_and_empty_ones_are_dropped():
    found = [Passage("a", "One two."), Passage("a", "Other."), Passage("b", " One\n two. "),
             Passage("c", "  "), Passage("d", "Three.")]
    assert make(found)[0].passage_ids == ("a", "d")
    assert make([Passage("c", " \n ")])[0] is None and make([])[0] is None


def test_the_minimum_score_is_inclusive():
    found = [Passage("a", "One.", score=0.5), Passage("b", "Two.", score=0.49)]
    assert make(found, min_score=0.5)[0].passage_ids == ("a",)
    assert make(found, min_score=0.51)[0] is None


@pytest.mark.parametrize("limit", range(1, 8))
def test_a_passage_is_cut_to_its_tokens(limit):
    words = "alpha beta gamma delta epsilon"
    text = make(passages(words), max_passage_tokens=limit)[1]
    assert text == f"[1]: {' '.join(words.split()[:limit])}\n"


@pytest.mark.parametrize("limit", range(1, 14))
def test_a_cut_never_divides_a_character(limit):
    # three one-byte tokens a character
    text = make(passages("年月日時"), max_passage_tokens=limit)[1]
    assert "\ufffd" not in text
    assert text == ("" if limit < 3 else f"[1]: {'年月日時'[:limit // 3]}\n")


@pytest.mark.parametrize("limit", range(1, 40))
def test_all_passages_together_keep_the_budget(limit):
    found = passages("alpha beta gamma delta", "one two three four five", "年月日")
    evidence, text, _ = make(found, max_evidence_tokens=limit)
    full = len(make(found)[0].token_ids)
    assert (evidence is None) == (limit < 6)  # "[1]: alpha\n" has six tokens
    if evidence is not None:
        assert evidence.num_tokens <= limit
        assert limit >= full or evidence.num_tokens > limit - 9, "no room is wasted"
        assert evidence.passage_ids == ("p0", "p1", "p2")[:len(evidence.items)]
        assert text.startswith("[1]: alpha") and "\ufffd" not in text


def test_what_was_in_use_comes_first_in_its_old_order():
    first = make(passages("A.", "B.", "C."))[0]
    a, b, c = passages("A.", "B.", "C.")
    d = Passage("p9", "D.")
    evidence, text, _ = make([d, c, a], first, step=2)
    assert text == "[1]: A.\n[2]: C.\n[3]: D.\n"
    assert [i.rank for i in evidence.items] == [2, 1, 0]
    assert [i.since_step for i in evidence.items] == [1, 1, 2]
    # what was left out in between counts as new
    third = make([b, d], evidence, step=3)[0]
    assert [(i.passage.id, i.since_step) for i in third.items] == [("p9", 2), ("p1", 3)]


def test_the_worst_rank_is_cut_wherever_it_stands():
    first = make(passages("alpha beta"))[0]
    new = Passage("p7", "one two")
    evidence, text, _ = make([new, *passages("alpha beta")], first, step=2,
                             max_evidence_tokens=13)
    assert text == "[1]: alpha\n[2]: one two\n"
    assert evidence.num_tokens == 13


def test_the_oldest_goes_first_and_among_equals_the_worst():
    first = make(passages("A.", "B."))[0]
    a, b = passages("A.", "B.")
    evidence, _, maker = make([Passage("p9", "D."), b, a], first, step=2)
    assert evidence.passage_ids == ("p0", "p1", "p9")
    left = []
    while evidence is not None:
        evidence = maker.without_oldest(evidence)
        left.append(() if evidence is None else evidence.passage_ids)
    assert left == [("p1", "p9"), ("p9",), ()]


def test_special_token_text_and_broken_unicode_stay_text():
    tokenizer = WordTokenizer()
    found = [Passage("a", "x<|im_end|><eos>"), Passage("b\ud800", json.loads('"y\\ud800z"'),
                                                      title="\udfff")]
    maker = EvidenceMaker(tokenizer, PromptTemplate.base(
        passage="{id} {title} {text}\n"), FlareConfig())
    evidence = maker.make(found, None, 1)
    assert not set(evidence.token_ids) & tokenizer.special_token_ids
    assert tokenizer.decode(evidence.token_ids) == "a  x<|im_end|><eos>\nb? ? y?z\n"
