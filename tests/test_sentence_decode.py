"""Decoding sentence by sentence on the real model: nothing lost, nothing drawn twice."""

import pytest
from helpers import TinyLlama, open_engine, random_ids, result_bits, smollm2_engine

from flarecore.sampling import SamplingParams

PROMPT = "<|im_start|>user\nTell me about the city of Paris.<|im_end|>\n<|im_start|>assistant\n"


def test_sentences_join_to_the_whole():
    """Decoding sentence by sentence gives the tokens of decoding at once."""
    engine = smollm2_engine("int8")
    prompt = engine.tokenizer.encode(PROMPT, parse_special=True)
    whole = engine.sequence(prompt).decode(160, until="eos")
    for change in (False, True):
        sequence = engine.sequence(prompt)
        tokens, probs, sentences = [], b"", 0
        while len(tokens) < 60:
            decoded = sequence.decode(60, until="sentence")
            if decoded.stop_reason == "eos":
                break
            assert decoded.stop_reason == "sentence"
            tokens += decoded.token_ids
            probs += decoded.probs.tobytes()
            sentences += 1
            assert sequence.token_ids == prompt + tokens, "the looked-ahead token is in the list"
            if change:  # drops the looked-ahead token
                sequence.extend([5])
                sequence.truncate(len(prompt) + len(tokens))
        assert sentences >= 3
        assert tuple(tokens) == whole.token_ids[: len(tokens)]
        assert probs == whole.probs[: len(tokens)].tobytes()


def test_looked_ahead_token_is_not_used_for_another_draw():
    """Other sampling, another pass or a rollback must not get the token of the first decode."""
    engine = smollm2_engine("int8")
    prompt = engine.tokenizer.encode(PROMPT, parse_special=True)
    hot = SamplingParams(temperature=0.7, seed=8)
    sequence = engine.sequence(prompt)
    checkpoint = sequence.checkpoint()
    first = sequence.decode(60, sampling=hot)
    assert first.stop_reason == "sentence"
    after = prompt + list(first.token_ids)
    for options in (
        {"sampling": hot},
        {"sampling": hot, "pass_index": 1},
        {"sampling": SamplingParams(temperature=0.7, seed=9)},
        {"sampling": SamplingParams()},
    ):
        fresh = engine.sequence(after).decode(12, **options)
        assert result_bits(sequence.fork().decode(12, **options)) == result_bits(fresh), options
    at_end = sequence.checkpoint()
    second = sequence.decode(60, sampling=hot)
    sequence.rollback(at_end)
    assert result_bits(sequence.decode(60, sampling=hot)) == result_bits(second)
    sequence.rollback(checkpoint)
    assert result_bits(sequence.decode(60, sampling=hot)) == result_bits(first)


@pytest.mark.parametrize("options", [{"stop": [" "]}, {"ignore_eos": False}], ids=["stop", "eos"])
def test_what_lies_behind_a_dropped_token_is_dropped_with_it(options):
    """Of several looked-ahead tokens one ends the next decode; those after it are not reached."""
    spec = TinyLlama()
    end_of_text = spec.vocab_size - 1
    num_cases = 0
    with open_engine(spec) as engine:
        dot, space, letter = (engine.tokenizer.encode(char)[0] for char in ". A")
        for seed in range(150):
            bias = {dot: 7.0, space: 7.0, letter: 6.0, end_of_text: 5.0}
            sampling = SamplingParams(temperature=1.0, seed=seed, logit_bias=bias)
            plain = {"sampling": sampling, "ignore_eos": True}
            sequence = engine.sequence(random_ids(5, seed=seed))
            sequence.decode(12, **plain)
            fork = sequence.fork()
            ended = sequence.decode(8, **{**plain, **options})
            if ended.stop_reason not in ("eos", "stop_string"):
                continue
            # Without a forward, the token that was dropped and the next one: both were held.
            held = fork.decode(len(ended.token_ids) + 2, until="eos", **plain)
            num_cases += held.stats.num_steps == 0
            with engine.sequence(sequence.token_ids) as fresh:
                expected = result_bits(fresh.decode(8, until="eos", **plain))
            assert result_bits(sequence.decode(8, until="eos", **plain)) == expected
    assert num_cases > 0, "no decode looked two tokens ahead"


def test_end_of_text_is_not_in_the_sequence():
    engine = smollm2_engine("int8")
    prompt = engine.tokenizer.encode(
        "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\nYes.", parse_special=True
    )
    sequence = engine.sequence(prompt)
    bias = SamplingParams(logit_bias={min(engine.tokenizer.eos_token_ids): 100.0})
    decoded = sequence.decode(10, sampling=bias)
    assert decoded.stop_reason == "eos"
    assert decoded.token_ids == () and decoded.text == "" and decoded.min_prob == 1.0
    assert sequence.token_ids == prompt


def test_stop_strings():
    engine = smollm2_engine("int8")
    prompt = engine.tokenizer.encode(PROMPT, parse_special=True)
    whole = engine.sequence(prompt).decode(60, until="eos").text
    # A stop string over the border of two tokens, found from the text itself.
    begin = whole.index(" ", 20) - 2
    stop = whole[begin : begin + 5]
    sequence = engine.sequence(prompt)
    decoded = sequence.decode(60, until="eos", stop=["never in the text", stop])
    assert decoded.stop_reason == "stop_string"
    assert decoded.text == whole[: whole.index(stop)]
    kept = engine.tokenizer.decode_bytes(decoded.token_ids)
    assert decoded.text_bytes.startswith(kept) or kept.startswith(decoded.text_bytes)
    assert sequence.token_ids == prompt + list(decoded.token_ids)
    engine.check_integrity()
