"""Attached passages: the engine against one masked forward pass, and against itself."""

import numpy as np
import pytest
from helpers import (
    DECODE,
    PROB_TOLERANCE,
    TinyLlama,
    open_engine,
    random_ids,
    result_bits,
    smollm2_engine,
    smollm2_path,
    tiny_llama_path,
    transformers_decoder,
)
from helpers_gemma import TinyGemma, tiny_gemma_path
from helpers_passages import PASSAGES, QUESTION, RESERVED, bits, open_with, prompt_of

from flarecore import SamplingParams
from flarecore.reference.decoder import ReferenceDecoder
from flarecore.reference.gemma_weights import load_gemma_gguf
from flarecore.reference.gguf_weights import load_llama_gguf
from flarecore.reference.parallel import lay_out, parallel_logits
from flarecore.reference.sampler import confidences

DRAWN = SamplingParams(temperature=1.0, seed=5)


def greedy_of_reference(decoder, ids, num_head, passages, sees_from, chosen):
    """What greedy decoding gives after each prefix of `chosen`, and the probabilities."""
    logits = parallel_logits(decoder, [*ids, *chosen], num_head, RESERVED, passages, sees_from,
                             last=len(chosen) + 1)[:-1]
    return (logits.argmax(axis=-1).tolist(),
            confidences(logits)[np.arange(len(chosen)), chosen])


def test_layout_masks_positions_and_passages():
    laid = lay_out([1, 2, 3, 4], 2, 10, [[5, 6], [7]], sees_from=3)
    assert laid.token_ids == [1, 2, 5, 6, 7, 3, 4]
    assert laid.positions == [0, 1, 2, 3, 2, 12, 13]
    assert laid.visible.astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 1, 0],
        [1, 1, 1, 1, 1, 1, 1]]


DECODERS = {
    "llama": lambda: (open_engine(TinyLlama()), transformers_decoder(
        load_llama_gguf(tiny_llama_path(TinyLlama())))),
    "llama, numpy": lambda: (open_engine(TinyLlama(num_kv_heads=1)), ReferenceDecoder(
        load_llama_gguf(tiny_llama_path(TinyLlama(num_kv_heads=1))), "float32")),
    **{f"gemma, window {window}": lambda window=window: (
        open_engine(tiny_gemma_path(TinyGemma(window=window))),
        transformers_decoder(load_gemma_gguf(tiny_gemma_path(TinyGemma(window=window)))))
       for window in (24, 60, 90, 130)},
}
# (tokens of the head, how many tokens at the end see the passages)
SHAPES = [(0, 1), (10, 1), (32, 3), (45, 40)]


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize(("num_head", "num_seeing"), SHAPES)
def test_float32_equals_one_masked_forward_pass(kind, num_head, num_seeing):
    engine, decoder = DECODERS[kind]()
    head, question = prompt_of(num_head)
    ids = [4 + i % 250 for i in [*head, *question]]
    head, question = ids[:num_head], ids[num_head:]
    passages = [[4 + i % 250 for i in p] for p in PASSAGES]
    sees_from = len(ids) - num_seeing
    with engine, open_with(engine, head, question, passages, sees_from) as sequence:
        decoded = sequence.decode(24, until="eos", ignore_eos=True)
        plain = engine.sequence(ids).decode(24, until="eos", ignore_eos=True)
    chosen = list(decoded.token_ids)
    expected, probs = greedy_of_reference(decoder, ids, num_head, passages, sees_from, chosen)
    assert chosen == expected
    np.testing.assert_allclose(decoded.probs, probs, atol=PROB_TOLERANCE, rtol=0)
    assert len(set(chosen)) > 3
    assert not np.allclose(plain.probs, decoded.probs, atol=1e-3), "passages must matter"


def test_a_gap_alone_equals_later_positions():
    head, question = prompt_of(20)
    engine = open_engine(TinyLlama())
    decoder = transformers_decoder(load_llama_gguf(tiny_llama_path(TinyLlama())))
    sequence = open_with(engine, head, question)
    chosen = sequence.decode(12, until="eos", ignore_eos=True)
    expected, probs = greedy_of_reference(
        decoder, [*head, *question], 20, [], 60, list(chosen.token_ids))
    assert list(chosen.token_ids) == expected
    np.testing.assert_allclose(chosen.probs, probs, atol=PROB_TOLERANCE, rtol=0)


def test_smollm2_equals_one_masked_forward_pass():
    engine = smollm2_engine()
    encode = engine.tokenizer.encode
    head = encode("Answer the question in a full sentence.\n\n")
    passages = [encode("The Zorvex museum was opened in 1987 in the city of Lund.\n"),
                encode("Lund is a city in the south of Sweden.\n")]
    question = encode("Question: In which year was the Zorvex museum opened?\nAnswer:")
    sequence = open_with(engine, head, question, passages, len(head))
    decoded = sequence.decode(24, until="eos", ignore_eos=True)
    assert "1987" in decoded.text
    decoder = transformers_decoder(load_llama_gguf(smollm2_path()))
    expected, probs = greedy_of_reference(
        decoder, [*head, *question], len(head), passages, len(head), list(decoded.token_ids))
    assert list(decoded.token_ids) == expected
    np.testing.assert_allclose(decoded.probs, probs, atol=PROB_TOLERANCE, rtol=0)


def story(engine, *, head=37, speculate=False, noise=None):
    """Bits of a few operations on a sequence with passages."""
    head, question = prompt_of(head)
    others = [engine.sequence(random_ids(50, seed=900 + i)) for i in range(noise or 0)]
    running = [other.decode_async(40, **DECODE) for other in others]
    found = []
    with open_with(engine, head, question, PASSAGES[:3], len(head) + 20) as sequence:
        options = {"sampling": DRAWN, "until": "eos", "ignore_eos": True}
        first = sequence.decode(20, **options)
        if speculate:
            sequence.truncate(len(head) + len(question))
            again = sequence.decode(
                20, **options, proposal=[*first.token_ids[:12], 3, *first.token_ids[13:]],
                lookup=PASSAGES[0])
            assert again.stats.num_accepted >= 12
            assert result_bits(again) == result_bits(first)
        found.append(result_bits(first))
        found.append(sequence.score(QUESTION).probs.tobytes())
        sequence.attach([sequence.encode_passage(PASSAGES[3])])
        found.append(result_bits(sequence.decode(10, **options)))
    for operation in running:
        operation.result()
    for other in others:
        other.close()
    return found


@pytest.mark.parametrize("compute", ["int8", "float32"])
def test_bits_do_not_depend_on_anything_else(compute):
    spec = TinyLlama(tensor_type="Q4_1", num_layers=2)
    with open_engine(spec, compute=compute) as engine:
        expected = story(engine)
        assert story(engine) == expected, "warm"
        assert story(engine, speculate=True) == expected
        assert story(engine, noise=3) == expected
        engine.check_integrity()
        assert engine.stats().num_held_blocks == 0
    for options in ({"threads": 3}, {"max_batch_tokens": 7}, {"sampler": "reference"}):
        with open_engine(spec, compute=compute, **options) as engine:
            got = story(engine)
            same = [g[0] for g in got] if "sampler" in options else got
            assert same == ([g[0] for g in expected] if "sampler" in options else expected), options


@pytest.mark.parametrize("window", [24, 90])
def test_bits_of_gemma_do_not_depend_on_batching(window):
    path = tiny_gemma_path(TinyGemma(window=window, tensor_types=("Q8_0", "Q5_0", "Q4_1")))
    results = []
    for options in ({}, {"threads": 2}, {"max_batch_tokens": 5}):
        with open_engine(path, compute="int8", **options) as engine:
            results.append(story(engine, noise=2))
    assert results[0] == results[1] == results[2]


def test_fork_rollback_and_fresh_sequences_agree():
    engine = open_engine(TinyLlama(), compute="int8")
    head, question = prompt_of(21)
    sequence = open_with(engine, head, question, PASSAGES[:2])
    checkpoint = sequence.checkpoint()
    with sequence.fork() as fork:
        expected = bits(fork)
        assert (fork.num_head_tokens, fork.num_reserved) == (21, RESERVED)
    sequence.detach()
    without = bits(sequence)
    assert without != expected
    sequence.rollback(checkpoint)
    assert bits(sequence) == expected
    plain = engine.sequence(random_ids(3))
    plain.rollback(checkpoint)
    assert (plain.num_head_tokens, plain.num_reserved) == (21, RESERVED)
    assert bits(plain) == expected
    assert bits(open_with(engine, head, question)) == without
    engine.check_integrity()


def test_reattaching_the_same_keeps_what_was_computed():
    engine = open_engine(TinyLlama())
    head, question = prompt_of(33)
    sequence = open_with(engine, head, question, PASSAGES[:2])
    passages = [sequence.encode_passage(PASSAGES[0])]
    sequence.attach(passages)
    first = sequence.decode(4, **DECODE)
    sequence.attach(passages, from_token=len(head) + len(question) - 1)
    again = sequence.decode(4, **DECODE)
    assert first.stats.num_prefilled == 0
    assert again.stats.num_prefilled == 0
