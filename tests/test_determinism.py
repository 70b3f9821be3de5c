"""Guarantee 1: the same tokens and confidences, bit for bit, however they are computed."""

import asyncio
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import TinyLlama, open_engine, random_ids, result_bits, smollm2_path

from flarecore import _C
from flarecore.sampling import SamplingParams

# Quantised weights, a head of odd size, several blocks and more than one row tile.
SPEC = TinyLlama(
    tensor_type="Q4_1", num_heads=9, num_kv_heads=3, hidden_size=288, ffn_size=352,
    context_length=1024, vocab_size=333, tied=True,
)  # fmt: skip
PROMPT = random_ids(165, 333, seed=2)
NUM_NEW = 48
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, top_k=60, top_p=0.95, seed=11, stream=4)
# What a token may be depends on every token before it, proposed ones included.
PENALISED = SamplingParams(
    temperature=1.1, min_p=0.01, seed=5, repetition_penalty=1.4, logit_bias={7: 3.0, 9: -2.0}
)
COMPUTES = ["float32", "int8"]
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED}


def run(sequence, sampling, **options):
    decoded = sequence.decode(NUM_NEW, sampling=sampling, until="eos", ignore_eos=True, **options)
    return result_bits(decoded)


@pytest.fixture(scope="module")
def expected():
    """The plain way: one thread, a fresh engine and one sequence for each."""
    results = {}
    for compute in COMPUTES:
        for name, sampling in SAMPLINGS.items():
            with_engine = open_engine(SPEC, compute=compute)
            results[compute, name] = run(with_engine.sequence(PROMPT), sampling)
            with_engine.close()
    assert len({tokens for tokens, _ in results.values()}) == 6, "all ways give the same tokens"
    return results


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("threads", [2, 3])
def test_threads(expected, compute, threads):
    engine = open_engine(SPEC, compute=compute, threads=threads)
    for name, sampling in SAMPLINGS.items():
        assert run(engine.sequence(PROMPT), sampling) == expected[compute, name]


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("max_batch_tokens", [1, 7, 32, 33, 100, 1024])
def test_prefill_chunks(expected, compute, max_batch_tokens):
    engine = open_engine(SPEC, compute=compute, max_batch_tokens=max_batch_tokens)
    assert run(engine.sequence(PROMPT), SAMPLED) == expected[compute, "sampled"]


@pytest.mark.parametrize("compute", COMPUTES)
def test_extended_in_pieces(expected, compute):
    engine = open_engine(SPEC, compute=compute)
    sequence = engine.sequence()
    for begin, end in ((0, 1), (1, 2), (2, 34), (34, 96), (96, 97), (97, 165)):
        sequence.extend(PROMPT[begin:end])
    assert run(sequence, SAMPLED) == expected[compute, "sampled"]


@pytest.mark.parametrize("compute", COMPUTES)
def test_decoded_in_pieces(expected, compute):
    """One token at a time, and in pieces that end inside a block."""
    engine = open_engine(SPEC, compute=compute)
    for sizes in ([1] * NUM_NEW, [5, 1, 20, 22]):
        sequence = engine.sequence(PROMPT)
        pieces = [sequence.decode(n, sampling=SAMPLED, until="eos", ignore_eos=True) for n in sizes]
        joined = (
            tuple(token for piece in pieces for token in piece.token_ids),
            b"".join(piece.probs.tobytes() for piece in pieces),
        )
        assert joined == expected[compute, "sampled"]


@pytest.mark.parametrize("compute", COMPUTES)
def test_warm_cache(expected, compute):
    engine = open_engine(SPEC, compute=compute)
    first = engine.sequence(PROMPT)
    assert run(first, SAMPLED) == expected[compute, "sampled"]
    first.close()
    warm = engine.sequence()
    assert warm.extend(PROMPT).num_reused >= 128, "the prefix cache was not used"
    assert run(warm, SAMPLED) == expected[compute, "sampled"]
    shorter = engine.sequence(PROMPT[:100])
    shorter.extend(PROMPT[100:])
    assert run(shorter, GREEDY) == expected[compute, "greedy"]


@pytest.mark.parametrize("compute", COMPUTES)
def test_fork(expected, compute):
    engine = open_engine(SPEC, compute=compute)
    parent = engine.sequence(PROMPT)
    children = [parent.fork() for _ in range(3)]
    # Siblings write the same block to different ends; each must see only its own.
    children[1].extend(random_ids(9, 333, seed=5))
    run(parent, GREEDY)
    assert run(children[0], SAMPLED) == expected[compute, "sampled"]
    assert run(children[2], GREEDY) == expected[compute, "greedy"]


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("kept", [0, 1, 31, 32, 100, 164])
def test_truncate_and_extend_again(expected, compute, kept):
    engine = open_engine(SPEC, compute=compute)
    sequence = engine.sequence(PROMPT)
    sequence.extend(random_ids(50, 333, seed=6))
    sequence.truncate(kept)
    sequence.extend(random_ids(70, 333, seed=7))
    sequence.truncate(kept)
    sequence.extend(PROMPT[kept:])
    assert run(sequence, SAMPLED) == expected[compute, "sampled"]


@pytest.mark.parametrize("compute", COMPUTES)
def test_rollback(expected, compute):
    engine = open_engine(SPEC, compute=compute)
    sequence = engine.sequence(PROMPT)
    checkpoint = sequence.checkpoint()
    for _ in range(3):
        assert run(sequence, SAMPLED) == expected[compute, "sampled"]
        sequence.extend(random_ids(20, 333, seed=8))
        sequence.rollback(checkpoint)
        assert sequence.token_ids == PROMPT


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("max_batch_tokens", [16, 256])
def test_batch_mates(expected, compute, max_batch_tokens):
    """Twelve sequences in all phases at once; each gets what it gets alone."""
    engine = open_engine(SPEC, compute=compute, threads=2, max_batch_tokens=max_batch_tokens)
    prompts = [PROMPT[: 165 - 12 * i] for i in range(12)]
    options = {"sampling": SAMPLED, "until": "eos", "ignore_eos": True, "pass_index": 0}
    alone = []
    for prompt in prompts:
        single = open_engine(SPEC, compute=compute)
        alone.append(result_bits(single.sequence(prompt).decode(NUM_NEW, **options)))
        single.close()
    assert alone[0] == expected[compute, "sampled"]

    async def together():
        sequences = [engine.sequence() for _ in prompts]
        operations = [
            sequence.regenerate_async(prompt, max_tokens=NUM_NEW, **options)
            for sequence, prompt in zip(sequences, prompts, strict=True)
        ]
        return [result_bits(await operation) for operation in operations]

    steps_before = engine.stats().num_steps
    assert asyncio.run(together()) == alone
    num_steps = engine.stats().num_steps - steps_before
    assert num_steps < 12 * NUM_NEW, "the sequences were not batched"


def proposals(tokens):
    """Named guesses at a continuation: right, wrong, partly right, too long."""
    wrong = tuple((token + 1) % 330 for token in tokens)
    return {
        "right": tokens,
        "half": tokens[:20],
        "wrong": wrong,
        "right then wrong": tokens[:17] + wrong[17:],
        "wrong then right": wrong[:1] + tokens[1:],
        "one wrong": tokens[:9] + wrong[9:10] + tokens[10:],
        "one skipped": tokens[:12] + tokens[13:],
        "too long": tokens + wrong,
        "one token": tokens[:1],
    }


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_proposals(expected, compute, name):
    """Speculation changes the cost, never the output (design 3.6)."""
    engine = open_engine(SPEC, compute=compute)
    num_accepted = {}
    for kind, proposal in proposals(expected[compute, name][0]).items():
        sequence = engine.sequence(PROMPT)
        decoded = sequence.decode(
            NUM_NEW, sampling=SAMPLINGS[name], until="eos", ignore_eos=True, proposal=proposal
        )
        assert result_bits(decoded) == expected[compute, name], kind
        assert sequence.num_tokens == len(PROMPT) + NUM_NEW
        num_accepted[kind] = decoded.stats.num_accepted
        engine.check_integrity()
    assert num_accepted["right"] >= NUM_NEW - 1, "a right proposal was not used"
    assert num_accepted["wrong"] <= 3
    assert num_accepted["half"] == 20


@pytest.mark.parametrize("compute", COMPUTES)
def test_proposal_after_evidence(expected, compute):
    """regenerate: evidence and proposal in one forward, the result as without one."""
    engine = open_engine(SPEC, compute=compute)
    results = []
    for proposal in ((), expected[compute, "sampled"][0], random_ids(30, 333, seed=9)):
        sequence = engine.sequence(PROMPT[:120])
        decoded = sequence.regenerate(
            PROMPT[120:], proposal=proposal, max_tokens=NUM_NEW, sampling=SAMPLED, until="eos",
            ignore_eos=True, pass_index=0,
        )  # fmt: skip
        results.append(result_bits(decoded))
    assert results == [expected[compute, "sampled"]] * 3


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_lookup(expected, compute, name):
    """Guesses from known text: the same output, and some of them right where it is the answer."""
    engine = open_engine(SPEC, compute=compute)
    tokens = expected[compute, name][0]
    num_accepted = []
    for lookup in (PROMPT, tokens[8:], PROMPT + list(tokens) * 2, [3, 3, 3, 3]):
        for proposal in ((), tokens[:5] + tokens[9:]):
            decoded = engine.sequence(PROMPT).decode(
                NUM_NEW, sampling=SAMPLINGS[name], until="eos", ignore_eos=True, lookup=lookup,
                proposal=proposal,
            )  # fmt: skip
            assert result_bits(decoded) == expected[compute, name]
            num_accepted.append(decoded.stats.num_accepted)
    assert max(num_accepted) > 10, "lookup was never of use"


def test_sampling_keys_change_the_tokens():
    """The random number depends on seed, stream and pass, not on what ran before."""
    engine = open_engine(SPEC)

    def draw(pass_index=0, **changes):
        params = SamplingParams(**{"temperature": 1.0, "seed": 1, "stream": 1, **changes})
        decoded = engine.sequence(PROMPT).decode(
            12, sampling=params, until="eos", ignore_eos=True, pass_index=pass_index
        )
        return decoded.token_ids

    base = draw()
    assert draw() == base
    assert len({base, draw(seed=2), draw(stream=2), draw(pass_index=1)}) == 4


@pytest.mark.parametrize("compute", COMPUTES)
def test_reference_sampler_gives_the_same_tokens(expected, compute):
    engine = open_engine(SPEC, compute=compute, sampler="reference")
    for name, sampling in SAMPLINGS.items():
        tokens, probs = run(engine.sequence(PROMPT), sampling)
        assert tokens == expected[compute, name][0]
        ours, theirs = (np.frombuffer(p, np.float32) for p in (probs, expected[compute, name][1]))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


_OTHER_LEVEL = """
import sys
from helpers import TinyLlama, open_engine
import test_determinism as here
for compute in here.COMPUTES:
    results = set()
    for threads, rows in ((1, 256), (3, 7)):
        engine = open_engine(here.SPEC, compute=compute, threads=threads, max_batch_tokens=rows)
        for proposal in ((), here.PROMPT[:20]):
            tokens, probs = here.run(
                engine.sequence(here.PROMPT), here.SAMPLED, proposal=proposal)
            results.add((tokens, probs))
    assert len(results) == 1, compute
    print(compute, *next(iter(results))[0])
"""


@pytest.mark.parametrize("level", _C.available_isas())
def test_every_cpu_level(expected, level):
    """Each level keeps the guarantee; float32 gives the same tokens on all of them here."""
    done = subprocess.run(
        [sys.executable, "-c", _OTHER_LEVEL],
        env={**os.environ, "FLARECORE_CPU_ISA": level, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    tokens = tuple(int(word) for word in lines["float32"].split())
    assert tokens == expected["float32", "sampled"][0]
    assert len(lines["int8"].split()) == NUM_NEW


@pytest.mark.parametrize("compute", COMPUTES)
def test_smollm2_threads_and_chunks(compute):
    """The real sizes: 30 layers, a head of 49,152 rows."""
    results = []
    for threads, max_batch_tokens in ((1, 256), (2, 19)):
        engine = open_engine(
            smollm2_path(), compute=compute, threads=threads, max_batch_tokens=max_batch_tokens
        )
        token_ids = engine.tokenizer.encode("Alan Turing was born in London in 1912. " * 4)
        sequence = engine.sequence(token_ids)
        decoded = sequence.decode(8, sampling=SAMPLED, until="eos", ignore_eos=True)
        results.append(result_bits(decoded))
        engine.close()
    assert results[0] == results[1]
