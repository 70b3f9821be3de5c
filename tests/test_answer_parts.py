"""Small parts of the loop by themselves: joints, lineages, queries, pieces of tokens."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
from scripted_model import Lists, Say, ScriptedEngine, ScriptedRetriever, WordTokenizer, passages
from test_controller import LOW, run

from flarecore.config import FlareConfig
from flarecore.loop.answer_text import AnswerText, token_pieces
from flarecore.loop.candidate import Candidate
from flarecore.loop.joint import Joint
from flarecore.loop.lineage import Lineages, common_prefix
from flarecore.loop.query import QueryMaker
from flarecore.templates import PromptTemplate

CHAT = PromptTemplate.chat(head="")


def test_common_prefix():
    assert common_prefix([], [1]) == common_prefix([1], []) == common_prefix([1], [2]) == 0
    assert common_prefix([1, 2, 3], [1, 2]) == common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2 and common_prefix([5, 2], [1, 2]) == 0


def test_lineages_follow_any_contexts_and_reuse_the_longest_prefix():
    rng = random.Random(7)
    engine = ScriptedEngine(lambda context, pass_index: Say("x"))
    lineages = Lineages(engine)
    held: dict[str, list[int]] = {}
    for _ in range(200):
        name = rng.choice(["draft", "evidence"])
        ids = [rng.randint(0, 1) for _ in range(rng.randint(1, 6))]
        shared = max((common_prefix(h, ids) for h in held.values()), default=0)
        stats = (line := lineages.take(name, ids)).align(ids)
        assert (stats.num_reused, list(stats.rest)) == (shared, ids[shared:])
        decoded = line.decode(max_tokens=5, pass_index=0).result()
        held[name] = ids + list(decoded.token_ids)
        assert engine.calls[-1].context_ids == tuple(ids)
        assert engine.num_open == len(held)
    lineages.release("draft")
    assert engine.num_open == 1
    lineages.close()
    lineages.close()
    engine.check_integrity()


def test_closing_goes_on_after_one_that_fails():
    engine = ScriptedEngine(lambda context, pass_index: Say("x"))
    lineages = Lineages(engine)
    for name in ("a", "b", "c"):
        lineages.take(name, [1])
    broken = lineages._open["b"]
    close, broken.close = broken.close, lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        lineages.close()
    assert engine.num_open == 1
    close()


@pytest.mark.parametrize(("draft", "sentence", "joined"), [
    (" He", "She is", " She is"), ("\n\nHe", "She", "\n\nShe"), ("He", "She", "She"),
    (" He", " She", " She"), ("年", "月", "月"), (" He", "年", " 年"), ("", "She", "She"),
    (" ", "She", " She"), ("  He", "She", "  She")])
def test_the_draft_tells_how_a_sentence_joins(draft, sentence, joined):
    tokenizer = WordTokenizer(words=" She")
    ids, text = Joint(tokenizer).attach(
        draft.encode(), tokenizer.encode(sentence), sentence.encode())
    assert text.decode() == joined == tokenizer.decode(ids)
    if (draft, sentence) == (" He", "She is"):
        assert ids == tuple(tokenizer.encode(" She is")), "one token with its space"


def test_a_joint_in_a_vocabulary_without_the_spaced_word():
    tokenizer = WordTokenizer(words="He")
    he = tokenizer.encode("He")
    assert Joint(tokenizer).attach(b" She", he, b"He") == ((32, *he), b" He")


def test_a_proposal_for_a_new_turn_begins_without_space():
    tokenizer = WordTokenizer(words="He is")
    joint = Joint(tokenizer)
    assert joint.detach(tokenizer.encode(" He is")) == tuple(tokenizer.encode("He is"))
    assert joint.detach(tokenizer.encode("\n He is")) == tuple(tokenizer.encode("He is"))
    for unchanged in ("He is", " Unseen is", ""):
        assert joint.detach(tokenizer.encode(unchanged)) == tuple(tokenizer.encode(unchanged))


@pytest.mark.parametrize("say", ["He was born in 1912.", " He was born in 1912."])
def test_a_chat_model_continues_in_a_new_turn(say):
    script = Lists([Say("One."), Say(" He was born in 1913.", low=LOW), Say(stop="eos")],
                   [Say(say)])
    engine = ScriptedEngine(script, chat=True, words=" He He")
    result, engine, _ = run(script, engine=engine, placement="boundary", template=CHAT)
    assert result.text == "One. He was born in 1912."
    assert engine.contexts(1)[0].endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert engine.contexts(0)[2].endswith("<|im_start|>assistant\nOne. He was born in 1912.")
    encode = engine.tokenizer.encode
    assert engine.calls[2].proposal == tuple(encode("He was born in 1913."))
    assert result.token_ids == tuple(encode("One.") + encode(" He was born in 1912."))


def test_a_base_model_that_begins_without_a_space_is_joined_too():
    script = Lists([Say(" In 1913.", low=LOW), Say(" In 1913.", low=LOW), Say(stop="eos")],
                   [Say("Then 1."), Say("Then 2.")])
    result, _, _ = run(script, placement="boundary")
    assert result.text == "Then 1. Then 2.", "there is nothing to join the first one to"
    script = Lists([Say("One."), Say(" In 1913.", low=LOW), Say(stop="eos")], [Say("Then 2.")])
    result, _, _ = run(script, placement="prefix")
    assert result.text == "One.Then 2.", "it continued the answer itself, and stays as it is"


def test_a_sentence_cut_inside_a_word_goes_on_without_a_space():
    script = Lists([Say("The Penn", stop="max_tokens"), Say("sylvania fell in 1913.", low=LOW),
                    Say(stop="eos")], [Say("sylvania fell in 1912.")])
    engine = ScriptedEngine(script, chat=True)
    result, _, _ = run(script, engine=engine, placement="boundary", template=CHAT)
    assert result.text == "The Pennsylvania fell in 1912."


def candidate(text: str, low=(), prob=0.9):
    tokenizer = WordTokenizer()
    ids = tokenizer.encode(text)
    data = tuple(tokenizer.token_bytes(i) for i in ids)
    return tokenizer, Candidate(
        text, tuple(ids), data, (False,) * len(ids),
        np.array([0.1 if d.decode("latin-1") in low else prob for d in data], np.float32),
        "sentence")


def test_queries():
    tokenizer, draft = candidate(" In 1913 he  left .", low=(" 1913",))

    def make(draft=draft, question="Why?", scope=None, **options):
        maker = QueryMaker(tokenizer, FlareConfig(**options), question, scope, asker=None)
        steps = maker.from_step(SimpleNamespace(current=SimpleNamespace(candidate=draft)))
        with pytest.raises(StopIteration) as made:
            next(steps)
        query = made.value.value
        return query and SimpleNamespace(
            text=" | ".join(query.texts), source=query.source, kept=query.kept)

    assert make().text == "In he left ." and make().source == "mask"
    assert make(query="sentence").text == "In 1913 he left ."
    assert make(query="sentence").kept is None
    assert make(beta=0.1).text == "In 1913 he left .", "equal to beta is not below it"
    assert make(beta=0.1, beta_inclusive=True).text == "In he left ."
    assert make(max_query_tokens=3).text == "left ."
    assert make(max_query_tokens=3, scope="acme 2024").text == "acme 2024 left ."
    assert make(beta=0.95).text == "Why?" and make(beta=0.95).source == "question"
    assert make(beta=0.95, scope="acme").text == "acme Why?"
    assert make(beta=0.95, empty_query="accept_draft") is None
    assert make(beta=0.95, question=None) is None
    assert make(query=lambda c: " a\nb ").text == "a b"
    assert make(query=lambda c: " ?! ").source == "question"
    assert make(query=lambda c: ["a", " ", "b", " a"], scope="x").text == "x a | x b"
    assert make(query=lambda c: []).source == "question"
    # a cut query never begins with a part of a character
    assert make(query=lambda c: "年月日", max_query_tokens=4).text == "日"


@pytest.mark.parametrize("stops", [(), ("END",), ("\n\n#", "xx"), ("年x",)])
def test_released_text_does_not_depend_on_how_the_bytes_come(stops):
    data = "a年b\n\n# xEN年 ENx 年END".encode() + b"\xe5\xb9 z"
    whole = AnswerText(stops)
    expected = whole.feed(data)[0] + whole.flush()
    cut = [data.find(s.encode()) for s in stops if s.encode() in data]
    assert expected == data[:min(cut)].decode("utf-8", "replace") if cut else True
    for first, second in itertools.combinations(range(len(data) + 1), 2):
        text, shown = AnswerText(stops), []
        for part in (data[:first], data[first:second], data[second:]):
            released, stop_at = text.feed(part)
            shown.append(released)
            if stop_at is not None:
                break
        shown.append(text.flush())
        assert "".join(shown) == expected == text.text


def test_pieces_of_tokens_show_a_character_at_its_last_token():
    assert token_pieces([b"a", b"\xe5", b"\xb9\xb4b", b"\xe5"]) == ("a", "", "年b", "\ufffd")
    assert token_pieces([]) == ()


def test_passages_of_many_spans_never_overflow_the_budget():
    script = Lists([Say(" In 1913.", low=LOW), Say(stop="eos")], [Say(" In 1912.")])
    retriever = ScriptedRetriever(passages(*(f"text {n} " * 40 for n in range(20))))
    _, engine, _ = run(script, retriever, k=20, max_evidence_tokens=50)
    assert len(engine.calls[1].context_ids) < len(engine.calls[0].context_ids) + 50 + 10
