"""`stop_below`: a decode that ends at its first low token, against a sentence cut by hand."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import TinyLlama, open_engine, random_ids, smollm2_engine

from flarecore.errors import ConfigError
from flarecore.reference.query_mask import is_punctuation_or_space
from flarecore.sampling import SamplingParams

TINY = TinyLlama(vocab_size=935)
PROMPTS = ["The lighthouse of Marrow Point was built by", "Dr. A. Smith of the U.S. Senate said:",
           "1. First, write", "Wow! He said", "北京是", "In 1923 the city of"]


@pytest.fixture(scope="module")
def engine():
    with open_engine(TINY) as opened:
        yield opened
        opened.check_integrity()


def low_end(tokenizer, decoded, below, *, at_punctuation=False):
    """Tokens up to the first low one, its last character whole; 0 if there is none."""
    pieces = [b"" if i in tokenizer.special_token_ids else tokenizer.token_bytes(i)
              for i in decoded.token_ids]
    ends = np.cumsum([0, *map(len, pieces)]).tolist()
    text = b"".join(pieces)
    for n, prob in enumerate(decoded.probs):
        if prob >= np.float32(below):
            continue
        begin, end = ends[n], ends[n + 1]
        if begin < end:
            while begin > 0 and ends[n] - begin < 3 and text[begin] & 0xC0 == 0x80:
                begin -= 1
            lead = next((at for at in range(end - 1, max(end - 4, -1), -1)
                         if text[at] & 0xC0 != 0x80), end)
            size = 1 if lead == end or text[lead] < 0xC0 else (
                2 if text[lead] < 0xE0 else 3 if text[lead] < 0xF0 else 4)
            while end < min(lead + size, len(text)) and text[end] & 0xC0 == 0x80:
                end += 1
        if at_punctuation or not is_punctuation_or_space(text[begin:end]):
            return max(n + 1, next(k for k, e in enumerate(ends) if e >= end))
    return 0


def compare(engine, ids, below, **options):
    """Whether the decode was cut; it equals the whole sentence or its start up to the low token."""
    at_punctuation = options.pop("at_punctuation", False)
    whole = engine.sequence(ids).decode(24, **options)
    sequence = engine.sequence(ids)
    cut = sequence.decode(
        24, stop_below=below, stop_at_punctuation=at_punctuation, **options)
    end = low_end(engine.tokenizer, whole, below, at_punctuation=at_punctuation)
    if cut.stop_reason == "low_confidence":
        assert end > 0 and cut.token_ids == whole.token_ids[:end]
        assert cut.probs.tobytes() == whole.probs[:end].tobytes()
        assert whole.text_bytes.startswith(cut.text_bytes)
        assert sequence.token_ids == [*ids, *cut.token_ids]
        return True
    assert (cut.token_ids, cut.stop_reason) == (whole.token_ids, whole.stop_reason)
    # a low token in a whole sentence: the end was in sight, or a stop string, when it came
    assert end == 0 or whole.stop_reason in ("sentence", "stop_string", "max_tokens")
    if end > 0 and whole.stop_reason == "sentence":
        text = b"".join(map(engine.tokenizer.token_bytes, whole.token_ids[:end]))
        assert any(mark in text for mark in (b".", b"?", b"!", b"\n", "。".encode()))
    return False


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.9, seed=4)],
                         ids=["greedy", "sampled"])
def test_real_text_is_cut_at_its_first_low_token(sampling):
    engine = smollm2_engine("int8")
    cuts = [compare(engine, engine.tokenizer.encode(prompt), below, sampling=sampling)
            for prompt in PROMPTS for below in (1e-3, 0.5)]
    assert any(cuts) and not all(cuts)


def test_random_bytes_are_cut_at_whole_characters(engine):
    for seed in range(40):
        for below in (0.02, 0.1, 0.5):
            compare(engine, random_ids(12, 935, seed=seed), below, at_punctuation=seed % 3 == 0,
                    until="sentence" if seed % 2 else "eos",
                    sampling=SamplingParams(temperature=1.0, seed=seed))


def test_a_confidence_equal_to_the_threshold_does_not_stop():
    engine = smollm2_engine("int8")
    ids = engine.tokenizer.encode(PROMPTS[0])
    whole = engine.sequence(ids).decode(12, until="eos")
    # White space and punctuation stop nothing.
    counts = [any(c.isalnum() for c in engine.tokenizer.decode([t])) for t in whole.token_ids]
    lowest = int(np.argmin(np.where(counts, whole.probs, 2)))
    at, above = whole.probs[lowest], np.nextafter(whole.probs[lowest], np.float32(2))
    assert engine.sequence(ids).decode(12, until="eos", stop_below=float(at)).token_ids \
        == whole.token_ids
    cut = engine.sequence(ids).decode(12, until="eos", stop_below=float(above))
    assert cut.token_ids == whole.token_ids[:lowest + 1] and cut.stop_reason == "low_confidence"
    first = engine.sequence(ids).decode(12, stop_below=1.5)
    assert first.token_ids == whole.token_ids[:1], "above 1 every token stops"
    assert engine.sequence(ids).decode(12, until="eos", stop_below=0.0).token_ids \
        == whole.token_ids


def test_what_follows_is_decoded_as_if_nothing_had_stopped(engine):
    for seed in range(12):
        options = {"sampling": SamplingParams(temperature=1.0, seed=seed), "until": "eos",
                   "pass_index": 0}
        ids = random_ids(9, 935, seed=seed)
        whole = engine.sequence(ids).decode(24, **options)
        sequence, tokens = engine.sequence(ids), []
        while len(tokens) < len(whole.token_ids):
            part = sequence.decode(24 - len(tokens), stop_below=0.3, **options)
            tokens += part.token_ids
        assert tuple(tokens) == whole.token_ids


def test_speculation_changes_nothing():
    engine = smollm2_engine("int8")
    for prompt in PROMPTS[:3]:
        ids = engine.tokenizer.encode(prompt)
        proposal = engine.sequence(ids).decode(20, until="eos").token_ids
        plain, guessed = (engine.sequence(ids).decode(
            20, until="eos", stop_below=0.4, proposal=given) for given in ((), proposal))
        assert plain.token_ids == guessed.token_ids and plain.stop_reason == guessed.stop_reason
        assert plain.probs.tobytes() == guessed.probs.tobytes()


def test_a_low_token_behind_the_end_belongs_to_the_next_sentence():
    engine = smollm2_engine("int8")
    ids = engine.tokenizer.encode("Ida Holm was a painter. She was born in Bergen. She painted")
    sequence = engine.sequence(ids)
    first = sequence.decode(40)
    assert first.stop_reason == "sentence"
    # the token looked at to find the end is low: it must not cut the sentence before it
    other = engine.sequence(ids)
    same = other.decode(40, stop_below=min(float(first.min_prob), 1.0))
    assert same.token_ids == first.token_ids and same.stop_reason == "sentence"
    second = sequence.decode(40)
    cut = other.decode(40, stop_below=1.5)
    assert cut.token_ids == second.token_ids[:1] and cut.stop_reason == "low_confidence"


@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_what_is_no_threshold_is_refused(engine, value):
    with pytest.raises(ConfigError, match="stop_below must be"):
        engine.sequence([1, 2]).decode(3, stop_below=value)
    with pytest.raises(ConfigError, match="beta must be"):
        engine.sequence([1, 2]).decode(3, beta=value)
