"""Faults of other FLARE implementations, one test each: this loop has none of them."""

from __future__ import annotations

import numpy as np
import pytest
from scripted_model import Lists, Say, ScriptedEngine, ScriptedRetriever, passages
from test_controller import LOW, PAPER, run

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.flare import Flare
from flarecore.retrieval.passage import Passage
from flarecore.text import split_sentences


def test_no_space_is_put_where_parts_are_joined_and_no_newline_lost():
    parts = [" The Penn", "sylvania Rail", "road.\n", "\n", "- one\n", "北", "京。"]
    result, _, _ = run(Lists([Say(part) for part in parts] + [Say(stop="eos")]))
    assert result.text == "".join(parts)


def test_a_word_that_contains_an_end_mark_does_not_end_the_answer():
    script = Lists([Say(" He abandoned it."), Say(" [Search(x)] [1] (done)."), Say(stop="eos")])
    result, _, _ = run(script, stop=["###", "done!"])
    assert result.text == " He abandoned it. [Search(x)] [1] (done)."
    assert result.stop_reason == "eos"


def test_a_stop_string_is_not_a_list_of_characters():
    with pytest.raises(ConfigError, match="wrap a single string in a list"):
        FlareConfig(stop="\n(")
    result, engine, _ = run(Lists([Say(" A (b).\n"), Say(stop="eos")]), stop=["\n("])
    assert result.text == " A (b).\n" and engine.calls[0].options["stop"] == ("\n(",)


def test_the_end_of_the_text_is_seen_in_drafts_and_in_regenerations():
    result, engine, _ = run(Lists([Say(" A.", stop="eos")]))
    assert result.stop_reason == "eos" and len(engine.calls) == 1
    result, engine, _ = run(Lists([Say(" In 1913.", low=LOW)], [Say(" In 1912.", stop="eos")]))
    assert result.stop_reason == "eos" and len(engine.calls) == 2


class Odd(ScriptedEngine):
    """Spoils the confidences of every pass."""

    def __init__(self, script, spoil):
        super().__init__(script)
        self.spoil = spoil

    def sequence(self):
        sequence = super().sequence()
        finish = sequence.finish

        def spoiled(*arguments):
            decoded = finish(*arguments)
            decoded.probs = self.spoil(decoded.probs)
            return decoded

        sequence.finish = spoiled
        return sequence


@pytest.mark.parametrize("spoil", [
    lambda probs: np.full_like(probs, -100.0), lambda probs: np.log(probs),
    lambda probs: probs[1:], lambda probs: np.append(probs, 0.5), lambda probs: probs * np.nan,
    lambda probs: probs[:, None]],
    ids=["-100", "logarithms", "shifted", "one more", "nan", "two axes"])
def test_confidences_belong_to_the_tokens_and_are_probabilities(spoil):
    engine = Odd(Lists([Say(" In 1913.")]), spoil)
    flare = Flare(engine, ScriptedRetriever(), FlareConfig(initial_retrieval=False))
    with pytest.raises(ConfigError, match=r"a probability in \[0, 1\] for each of the 3 tokens"):
        flare.generate("Who?")
    engine.check_integrity()


def test_confidences_are_those_of_the_generated_tokens():
    # one word in three tokens, with nothing to encode it again into one
    script = Lists([Say(b" Penn sylvania", low={"y": 0.1}), Say(stop="eos")], [Say(" It is.")])
    result, _, _ = run(script)
    draft = result.trace.sentences[0].draft
    assert [t for t, low in zip(draft.tokens, draft.low, strict=True) if low] == ["y"]
    assert len(draft.probs) == len(draft.token_ids) == 14


@pytest.mark.parametrize(("text", "num"), [
    ("J. R. R. Tolkien wrote it.", 1), ("The U.S. Senate met.", 1), ("Acme Inc. in 1990 grew.", 1),
    ("At 5 p.m. on Monday it rained.", 1), ("他出生于北京。他死于上海。", 2)])
def test_a_sentence_ends_where_a_reader_would_end_it(text, num):
    assert len(split_sentences(text)) == num


@pytest.mark.parametrize("token", [" 1913", " Constantinople", "x", " 年"])
def test_a_low_token_of_any_length_triggers(token):
    draft = Say(f" In,{token}.", low={token: 0.1, "\ufffd": 0.1})
    script = Lists([draft, Say(stop="eos")], [Say(" Then.")])
    assert run(script)[0].stats.num_triggers == 1


def test_passages_of_many_searches_never_fill_the_context():
    def found(query):
        return [Passage(f"{query} {n}", "word " * 50 + query) for n in range(9)]

    class Generous(ScriptedRetriever):
        def search(self, queries, k, filter=None):
            return [found(query)[:k] for query in queries]

    script = Lists([Say(f" {n} 1913.", low=LOW) for n in range(4)] + [Say(stop="eos")],
                   [Say(f" {n} 1912.") for n in range(4)])
    _, engine, _ = run(script, Generous(), k=9, query=lambda c: [f"q{n}" for n in range(9)],
                       evidence_policy="sticky", max_evidence_tokens=80)
    assert max(len(c.context_ids) for c in engine.calls) < 80 + 40


def test_an_accepted_sentence_never_changes_when_a_later_one_is_looked_up():
    script = Lists([Say(" Rome is in Italy."), Say(" It fell in 1913.", low=LOW), Say(stop="eos")],
                   [Say(" It fell in 476.")])
    result, engine, events = run(script, ScriptedRetriever(passages("P.")))
    assert result.text == " Rome is in Italy. It fell in 476."
    assert [s.text for s in result.sentences] == [" Rome is in Italy.", " It fell in 476."]
    (again,) = (c for c in engine.calls if c.pass_index == 1)
    assert again.context.endswith("A: Rome is in Italy."), "written on, not again"
    shown = [type(e).__name__ for e in events]
    assert shown.index("SentenceAccepted") < shown.index("RetrievalStarted")


def test_a_template_is_data_and_braces_in_texts_are_text():
    script = Lists([Say(" In {1913}.", low={"1913": 0.1}), Say(stop="eos")], [Say(" {0} {x!r}.")])
    result, engine, _ = run(
        script, ScriptedRetriever([Passage("a", "{question} %s {0}")]), template=PAPER)
    assert result.text == " {0} {x!r}." and "{question} %s {0}" in engine.contexts(1)[0]
