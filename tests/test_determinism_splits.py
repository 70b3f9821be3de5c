"""Guarantee 1 where a context has several splits, and for rows that are not computed to the end."""

import pytest
from helpers import TinyLlama, open_engine, random_ids, result_bits
from helpers_gemma import TinyGemma, tiny_gemma_path
from test_determinism import COMPUTES, GREEDY, SAMPLED, SPEC, run

from flarecore import _C


@pytest.mark.parametrize("compute", COMPUTES)
def test_few_rows_are_rotated_and_stored_by_the_tasks_of_attention(compute):
    """Up to 32 rows of a sequence in one split of 512 tokens, or, with tiles, in 128 of them."""
    prompt, results = random_ids(681, 333, seed=6), []
    for max_batch_tokens in (1, 10, 20, 34):  # each feeds the 680 rows in whole steps
        engine = open_engine(SPEC, compute=compute, max_batch_tokens=max_batch_tokens)
        before = _C.testing.num_prepared_passes()
        sequence = engine.sequence(prompt)
        num_prepared = _C.testing.num_prepared_passes() - before
        ends = [(begin, begin + max_batch_tokens - 1) for begin in range(0, 680, max_batch_tokens)]
        step = 128 if _C.cpu_isa() == "amx" and compute == "int8" else 512
        in_one_step = sum(begin // step == last // step for begin, last in ends)
        assert num_prepared == (in_one_step if max_batch_tokens <= 32 else 0)
        results.append(run(sequence, GREEDY))
        engine.close()
    assert all(result == results[0] for result in results)


LONG_SPECS = {
    "head 32, 3 a group": SPEC,
    "head 24, 8 a group": TinyLlama(
        tensor_type="Q8_0", num_heads=8, num_kv_heads=1, hidden_size=192, ffn_size=96,
        context_length=1024, vocab_size=333),
    "head 128, 1 a group": TinyLlama(
        tensor_type="Q4_0", num_heads=2, num_kv_heads=2, hidden_size=256, ffn_size=96,
        context_length=1024, vocab_size=333),
    "a window of 70": tiny_gemma_path(TinyGemma(
        context_length=1024, vocab_size=333, window=70, tensor_types=("Q8_0", "Q4_0", "Q8_0"))),
    "a window of 300": tiny_gemma_path(TinyGemma(
        context_length=1024, vocab_size=333, window=300, tensor_types=("Q8_0", "Q4_0", "Q8_0"))),
}


def num_tile_attentions() -> int:
    counter = getattr(_C.testing, "num_amx_bands", None)  # not on every processor
    return counter(in_units=True) + counter(in_units=False) if counter else 0


@pytest.mark.parametrize("spec", LONG_SPECS.values(), ids=LONG_SPECS)
def test_earlier_splits_in_tiles_give_the_same_bits_in_any_chunks(spec):
    """Where the level has tiles, rows beyond 512 tokens take them, one row as well as many."""
    prompt, results = random_ids(930, 333, seed=9), []
    before = num_tile_attentions()
    for max_batch_tokens, threads in ((1000, 1), (100, 2), (33, 2), (7, 1), (1, 2)):
        engine = open_engine(
            spec, compute="int8", max_batch_tokens=max_batch_tokens, threads=threads)
        sequence = engine.sequence(prompt[:500])
        scored = sequence.score(prompt[500:900]).probs.tobytes()
        sequence.extend(prompt[500:800])
        sequence.truncate(701)
        sequence.extend(prompt[701:930])
        results.append((scored, run(sequence, SAMPLED)))
        engine.close()
    assert all(result == results[0] for result in results)
    if _C.cpu_isa() == "amx":
        assert num_tile_attentions() > before


@pytest.mark.parametrize("num_tokens", [120, 127, 128, 250, 500, 511, 512, 1000])
def test_proposals_across_the_end_of_a_split(num_tokens):
    prompt = random_ids(num_tokens, 333, seed=10)
    engine = open_engine(LONG_SPECS["head 24, 8 a group"], compute="int8")
    options = {"sampling": SAMPLED, "until": "eos", "ignore_eos": True}
    plain = engine.sequence(prompt).decode(20, **options)
    wrong = [*plain.token_ids[:9], (plain.token_ids[9] + 1) % 333, *plain.token_ids[10:]]
    for proposal in (plain.token_ids, wrong):
        decoded = engine.sequence(prompt).decode(20, proposal=list(proposal), **options)
        assert result_bits(decoded) == result_bits(plain)
        assert decoded.stats.num_steps < 20
    engine.close()


@pytest.mark.parametrize("compute", COMPUTES)
def test_rows_without_logits_end_with_their_last_keys_and_values(compute):
    """A long prefill against one token at a time, for what is scored and what comes after."""
    prompt, results = random_ids(121, 333, seed=8), []
    for max_batch_tokens in (1, 40, 120):
        engine = open_engine(SPEC, compute=compute, max_batch_tokens=max_batch_tokens)
        before = _C.testing.num_dropped_rows()
        sequence = engine.sequence(prompt[:41])
        scored = sequence.score(prompt[41:]).probs.tobytes()
        num_dropped = _C.testing.num_dropped_rows() - before
        assert num_dropped == {1: 0, 40: 40, 120: 40}[max_batch_tokens]
        results.append((scored, run(sequence, GREEDY)))
        engine.close()
    assert all(result == results[0] for result in results)
