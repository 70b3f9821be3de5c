"""Where a run of decode steps ends: sentences, stop strings, budgets, low confidence, any row."""

import pytest
from helpers import open_engine, random_ids, result_bits
from helpers_gpu import MARKS, SMALL, gpu_engine, gpu_model, runner_of
from helpers_gpu_runs import PAIRS, PROMPT, check_twin, script, waits
from triton_env import DEVICE

from flarecore.sampling import SamplingParams

pytestmark = MARKS


@pytest.fixture(scope="module")
def model():
    return gpu_model()


@pytest.mark.parametrize(
    ("ids", "sentence", "num_looks"),
    [
        ([*b"He said", PAIRS[b'."'], *b"\n", PAIRS[b"\n\n"], *b"So"], 'He said."\n\n\n', 1),
        ([*b"Wait", *b"...", *b' "', *b"No"], "Wait...", 1),
        ([*"雨。山".encode()], "雨。", 4),  # bytes of 雨 and 。 may be the last ones of other marks
        ([*"Vraiment ‽ Oui".encode()], "Vraiment ‽", 2),  # so may a byte of ‽
        ([*b"Yes", PAIRS[b". "], *b"No"], "Yes. ", 1),
        ([*b"in the U.S. He went"], "in the U.S.", 4),  # whether behind U. or S., and two for He
    ],
)  # fmt: skip
def test_ends_that_take_several_tokens(model, ids, sentence, num_looks):
    """White space, quotes, characters in three tokens, words that must be known whole."""
    (out,), (count,) = check_twin(model, ids, 1, max_tokens=30)
    assert out.text == sentence and out.stop_reason == "sentence"
    assert count == num_looks


def test_end_of_text_and_budget_stop_in_the_middle_of_a_replay(model):
    eos = [*b"So be it", 268]
    (out,), counts = check_twin(model, eos, 1, max_tokens=30)
    assert out.stop_reason == "eos" and out.text == "So be it" and counts == [1]
    ours, counts = check_twin(model, b"abcdefghijklma. Op", 3, max_tokens=6)
    assert [out.text for out in ours] == ["abcdef", "ghijkl", "ma."]
    assert [out.stop_reason for out in ours] == ["max_tokens", "max_tokens", "sentence"]
    assert counts == [1, 1, 1], "a budget leaves nothing to look at"


@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        (b"one two STOP three. Four", ["STOP"], "one two "),
        (b"It rains. The sun", [". Th"], "It rains"),
        (b"It rains. The sun", [". Tx"], "It rains."),
        (b"aab aabc aabd", ["aabd", "bd"], "aab aabc "),
    ],
)
def test_stop_strings_over_several_tokens(model, text, stop, kept):
    (out,), (count,) = check_twin(model, text, 1, max_tokens=30, stop=stop)
    assert out.text == kept
    assert count < len(out.token_ids)


def test_low_confidence_stops_at_once(model):
    """All tokens are low; punctuation alone does not count, so that the host looks once more."""
    (out,), (count,) = check_twin(model, b",,abc. The", 1, max_tokens=30, stop_below=1.0)
    assert out.text == ",,a" and out.stop_reason == "low_confidence" and count == 3
    (out,), (count,) = check_twin(model, b"abc. The", 1, max_tokens=9, stop_below=1e-9)
    assert out.text == "abc." and count == 1


def test_rows_stop_at_different_steps(model):
    """Each gives what it gives alone, and none waits for the longest of them."""
    text = b"Ab. Cdefgh. Ijklmnopqrstuvw. Xyz"
    prompts = [PROMPT, [*PROMPT, *text[:3]], [*PROMPT, *text[:11]]]  # each at another place
    wanted = ["Ab.", " Cdefgh.", " Ijklmnopqrstuvw."]
    with gpu_engine(model) as engine:
        script(engine, text)
        sampling = SamplingParams(temperature=0.3, seed=8)
        alone = []
        for ids in prompts:
            with engine.sequence(ids) as sequence:
                alone.append(result_bits(sequence.decode(30, sampling=sampling)))
        before = waits(engine)
        sequences = [engine.sequence(ids) for ids in prompts]
        operations = [s.decode_async(30, sampling=sampling) for s in sequences]
        results = [operation.result() for operation in operations]
        assert [out.text for out in results] == wanted
        assert [result_bits(out) for out in results] == alone
        assert waits(engine) - before <= 2 * len(prompts)
        assert any(rows > 1 for rows in runner_of(engine)._buckets), "no run had two rows"
        for sequence in sequences:
            sequence.close()
        engine.check_integrity()


def test_three_sets_of_stop_strings_at_once(model):
    """The third has no bit: its row is looked at after every replay, and ends as it should."""
    text = b"abcdefghijklmnopqrstuvwxyz"
    stops = ["hi", "no", "uv"]
    with gpu_engine(model) as engine:
        script(engine, text)
        sequences = [engine.sequence(PROMPT) for _ in stops]
        operations = [s.decode_async(40, stop=[stop])
                      for s, stop in zip(sequences, stops, strict=True)]
        for operation, stop in zip(operations, stops, strict=True):
            assert operation.result().text.encode() == text[: text.index(stop.encode())]


@pytest.mark.skipif(DEVICE != "cpu", reason="exact in float32, in the interpreter")
def test_sentences_of_the_cpu_engine(model):
    """Short ones with false alarms, stop strings and a budget, one after the other."""
    bias = {ord("."): 3.5, PAIRS[b" A"]: 4.0, PAIRS[b"\n\n"]: 2.0, ord("1"): 2.5, ord("\n"): 1.0}
    options = {"max_tokens": 24, "stop": [" A A", "|"],
               "sampling": SamplingParams(temperature=1.2, seed=21, logit_bias=bias)}  # fmt: skip
    found = []
    with open_engine(SMALL) as cpu, gpu_engine(model) as gpu:
        for engine in (cpu, gpu):
            with engine.sequence(random_ids(5, seed=4)) as sequence:
                results = [sequence.decode(**options) for _ in range(4)]
                found.append([(out.token_ids, out.text_bytes, out.stop_reason) for out in results])
                found[-1].append(sequence.token_ids)
        assert found[0] == found[1]
        num_tokens = sum(len(ids) for ids, _, _ in found[0][:-1])
        assert waits(gpu) < num_tokens and num_tokens > 20
        assert {reason for _, _, reason in found[0][:-1]} == {
            "sentence", "stop_string", "max_tokens"}  # fmt: skip
