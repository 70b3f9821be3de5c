"""Guarantee 1 for models with sliding windows: the same bits, however the tokens are computed.

The window is a mask over the whole KV cache, so that a rollback never finds a key missing.
"""

import asyncio

import numpy as np
import pytest
from helpers import open_engine
from helpers_gemma import TinyGemma, tiny_gemma_path

from flarecore.sampling import SamplingParams

# A window of more than one block and no whole number of them; k-quants need 256 columns.
SPEC = TinyGemma(
    num_heads=6, num_kv_heads=2, hidden_size=96, ffn_size=352, context_length=2048, window=75,
    tensor_types=("Q8_0", "Q5_0", "Q4_1"),
)  # fmt: skip
SAMPLED = SamplingParams(temperature=0.9, top_k=60, top_p=0.95, seed=11, stream=4)
COMPUTES = ["float32", "int8"]
NUM_NEW = 40


def random_ids(num_tokens, seed):
    return np.random.default_rng(seed).integers(4, SPEC.vocab_size, num_tokens).tolist()


# Past the first split of attention (512 tokens), so that rows of one tile begin in different ones.
PROMPT = random_ids(620, seed=2)


def engine_of(compute, **options):
    return open_engine(tiny_gemma_path(SPEC), compute=compute, **options)


def run(sequence, **options):
    options = {"sampling": SAMPLED, "until": "eos", "ignore_eos": True, **options}
    return result_of(sequence.decode(NUM_NEW, **options))


def result_of(decoded):
    """What must be equal: ids and the bits of their confidences."""
    return decoded.token_ids, decoded.probs.tobytes()


@pytest.fixture(scope="module")
def expected():
    """The plain way: one thread, a fresh engine, one token at a time."""
    results = {}
    for compute in COMPUTES:
        engine = engine_of(compute, max_batch_tokens=1)
        results[compute] = run(engine.sequence(PROMPT))
        engine.close()
    assert results["int8"] != results["float32"]
    return results


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize(("threads", "max_batch_tokens"), [(1, 7), (2, 32), (3, 100), (2, 1024)])
def test_threads_and_prefill_chunks(expected, compute, threads, max_batch_tokens):
    engine = engine_of(compute, threads=threads, max_batch_tokens=max_batch_tokens)
    assert run(engine.sequence(PROMPT)) == expected[compute]


@pytest.mark.parametrize("compute", COMPUTES)
def test_extended_and_decoded_in_pieces(expected, compute):
    engine = engine_of(compute)
    sequence = engine.sequence()
    for begin, end in ((0, 1), (1, 75), (75, 76), (76, 500), (500, 513), (513, 620)):
        sequence.extend(PROMPT[begin:end])
    options = {"sampling": SAMPLED, "until": "eos", "ignore_eos": True}
    pieces = [sequence.decode(n, **options) for n in (1, 12, 3, 24)]
    assert tuple(t for piece in pieces for t in piece.token_ids) == expected[compute][0]
    assert b"".join(piece.probs.tobytes() for piece in pieces) == expected[compute][1]


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("kept", [0, 31, 75, 76, 450, 512, 545, 619])
def test_truncate_and_extend_again(expected, compute, kept):
    """Back over less than the window, over more, and to a place where another split begins."""
    engine = engine_of(compute)
    sequence = engine.sequence(PROMPT)
    sequence.extend(random_ids(130, seed=6))
    sequence.truncate(kept)
    sequence.extend(random_ids(200, seed=7))
    sequence.truncate(kept)
    sequence.extend(PROMPT[kept:])
    assert run(sequence) == expected[compute]
    engine.check_integrity()


@pytest.mark.parametrize("compute", COMPUTES)
def test_rollback_and_fork(expected, compute):
    engine = engine_of(compute)
    sequence = engine.sequence(PROMPT)
    checkpoint = sequence.checkpoint()
    for _ in range(3):
        sibling = sequence.fork()
        assert run(sequence) == expected[compute]
        sequence.extend(random_ids(90, seed=8))
        sequence.rollback(checkpoint)
        assert sequence.token_ids == PROMPT
        assert run(sibling) == expected[compute]
        sibling.close()
    engine.check_integrity()


@pytest.mark.parametrize("compute", COMPUTES)
def test_warm_cache_and_batch_mates(expected, compute):
    engine = engine_of(compute, threads=2, max_batch_tokens=96)
    engine.sequence(PROMPT).close()
    prompts = [PROMPT[: 620 - 61 * i] for i in range(8)]
    options = {"sampling": SAMPLED, "until": "eos", "ignore_eos": True, "pass_index": 0}
    alone = []
    for prompt in prompts:
        single = engine_of(compute)
        alone.append(result_of(single.sequence(prompt).decode(NUM_NEW, **options)))
        single.close()

    async def together():
        sequences = [engine.sequence() for _ in prompts]
        operations = [
            sequence.regenerate_async(prompt, max_tokens=NUM_NEW, **options)
            for sequence, prompt in zip(sequences, prompts, strict=True)
        ]
        return [await operation for operation in operations]

    decoded = asyncio.run(together())
    assert [result_of(one) for one in decoded] == alone
    assert alone[0] == expected[compute]
    assert all(one.stats.num_reused > 64 for one in decoded), "the prefix cache was not used"


@pytest.mark.parametrize("compute", COMPUTES)
def test_proposals(expected, compute):
    """Speculation changes the cost, never the output."""
    engine = engine_of(compute)
    right = expected[compute][0]
    wrong = tuple(4 + (token + 1) % 250 for token in right)
    for proposal, accepted in ((right, NUM_NEW - 1), (right[:15] + wrong[15:], 15), (wrong, 0)):
        decoded = engine.sequence(PROMPT).decode(
            NUM_NEW, sampling=SAMPLED, until="eos", ignore_eos=True, proposal=proposal
        )
        assert result_of(decoded) == expected[compute]
        assert decoded.stats.num_accepted >= accepted
