"""The benchmarks' proofs fail on a wrong engine. Nothing is timed."""

import numpy as np
import pytest
from helpers import TinyLlama, random_ids, tiny_llama_path
from helpers_bench import Q4, make_runner

from flarecore import _C
from flarecore.bench import decode, sampling
from flarecore.bench.proofs import ProofError, find_reference, prove_close, prove_exact
from flarecore.bench.runner import FlareRunner
from flarecore.errors import ConfigError
from flarecore.model import Model


class Wrong(FlareRunner):
    """An engine with a fault: `fault` names it."""

    fault = ""

    def decode(self, num_tokens, num_sequences=1):
        chosen = super().decode(num_tokens, num_sequences)
        if self.fault == "token" or (self.fault == "batch" and num_sequences > 1):
            chosen[0][-1] = (chosen[0][-1] + 1) % 256
        return chosen

    def verify(self, expected):
        chosen = super().verify(expected)
        if self.fault == "verify" and len(chosen) > 1:
            chosen[-1] = (chosen[-1] + 1) % 256
        return chosen

    def score(self, token_ids, num_given):
        probs = super().score(token_ids, num_given)
        if self.fault == "shift":  # the classic: probabilities of the next token
            return np.roll(probs, 1)
        if self.fault == "small":
            probs = probs.copy()
            probs[3] += 2e-4
        return np.full_like(probs, np.nan) if self.fault == "nan" else probs


def wrong_runner(fault, spec=Q4, compute="int8"):
    runner = make_runner(spec, compute, Wrong)
    runner.fault = fault
    return runner


@pytest.fixture(scope="module")
def reference():
    return find_reference(tiny_llama_path(Q4))[1]


def test_the_exact_engine_is_proven(reference):
    assert "8 greedy tokens equal" in prove_exact(
        make_runner(compute="float32"), reference, random_ids(40))


@pytest.mark.parametrize("fault", ["token", "small", "shift", "nan"])
def test_a_wrong_exact_engine_is_refused(fault, reference):
    with pytest.raises(ProofError, match="nothing is timed"):
        prove_exact(wrong_runner(fault, compute="float32"), reference, random_ids(40))


def test_another_model_is_refused(reference):
    other = TinyLlama(tensor_type="Q4_1", context_length=1024, seed=2)
    with pytest.raises(ProofError):
        prove_exact(make_runner(other, "float32"), reference, random_ids(40))


def test_int8_is_held_to_its_tolerance():
    ids = random_ids(64)
    expected = make_runner(compute="float32").score(ids, 1)
    assert "63 probabilities" in prove_close(make_runner(), expected, ids)
    for fault in ("shift", "nan"):
        for is_peer in (False, True):
            with pytest.raises(ProofError, match="Nothing is timed"):
                prove_close(wrong_runner(fault), expected, ids, is_peer=is_peer)
    other = TinyLlama(tensor_type="Q4_1", context_length=1024, seed=2)
    with pytest.raises(ProofError):
        prove_close(make_runner(other), expected, ids, is_peer=True)


def test_decoding_alone_together_and_verified_is_proven():
    runner = make_runner()
    runner.set_contexts([random_ids(40, seed=n) for n in range(3)])
    expected = decode.prove(runner, 6, 3, (1, 4, 9))
    assert len(expected) == 9
    runner.reset()
    assert runner.decode(9) == [expected]


@pytest.mark.parametrize("fault", ["batch", "verify"])
def test_decoding_that_contradicts_itself_is_refused(fault):
    runner = wrong_runner(fault)
    runner.set_contexts([random_ids(40, seed=n) for n in range(3)])
    with pytest.raises(ProofError, match="nothing is timed"):
        decode.prove(runner, 6, 3, (1, 4))


def test_a_verification_of_several_passes_is_refused():
    runner = make_runner()
    runner.set_contexts([random_ids(40)])
    expected = runner.decode(6)[0]
    runner.reset()
    expected[1] = (expected[1] + 1) % 256
    with pytest.raises(ProofError, match="forward passes instead of one"):
        runner.verify(expected)


def test_a_prefill_from_the_cache_is_refused():
    runner = make_runner()
    prompt = random_ids(100)
    runner.prefill(prompt)
    with pytest.raises(ProofError, match="in the cache"):
        runner.prefill(prompt)
    assert len({tuple(runner.salted(prompt)[:32]) for _ in range(20)}) == 20
    runner.prefill(runner.salted(prompt))


def test_sampling_is_held_against_the_reference_sampler():
    model = Model.load(str(tiny_llama_path(Q4)), threads=1)
    ids = model.tokenizer.encode("It ends here. It goes on. And on! " * 4)
    logits = sampling.make_logits(5000)
    probe = _C.testing.SamplingProbe(model._native, logits, 2)
    sampling.prove(probe, logits, ids)
    result = probe.run(ids, {}, sampling.BETA)
    assert result["num_sentences"] >= 8 and 0 < result["num_kept"] <= len(ids)
    # The probe samples from other logits than the reference is asked about.
    wrong = logits.copy()
    wrong[4000] += 3
    with pytest.raises(ProofError, match="confidence"):
        sampling.prove(probe, wrong, ids)
    with pytest.raises(ConfigError, match="token 5000"):
        probe.run([5000])
