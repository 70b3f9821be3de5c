"""The sampler where numbers end: tiny temperatures, ties, what a float32 cannot hold."""

import numpy as np
import pytest
from test_sampling import native_sample

from flarecore.errors import ConfigError
from flarecore.reference.sampler import sample
from flarecore.sampling import SamplingParams


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-40])
def test_tiny_temperature_is_greedy(temperature):
    """Also where 1 / temperature overflows float32."""
    logits = np.array([-2.0, 1.0, 3.0, 2.9, -np.inf], dtype=np.float32)
    for options in ({}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}):
        for draw in (
            sample(logits, temperature=temperature, **options).token_id,
            native_sample(logits, temperature=temperature, **options)[0],
            native_sample(logits, temperature=temperature, reference=True, **options)[0],
        ):
            assert draw == 2


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-40, 1e-45])
def test_tiny_temperature_draws_among_ties_and_nothing_else(temperature):
    """0 times the inverse of such a temperature must stay 0, not become NaN."""
    logits = np.full(4097, -np.inf, dtype=np.float32)
    logits[[7, 1500, 4000]] = 2.0
    logits[8] = 1.999
    for position in range(30):
        options = {"temperature": temperature, "seed": 2**64 - 1, "position": position}
        expected = sample(logits, **options)
        assert expected.token_id in (7, 1500, 4000)
        for adjusts in ({}, {"logit_bias": {0: -1.0}}):
            for reference in (False, True):
                drawn, prob = native_sample(logits, reference=reference, **options, **adjusts)
                assert drawn == expected.token_id and prob == pytest.approx(expected.prob)


@pytest.mark.parametrize("num_ties", [2, 6, 404, 406])
def test_half_of_many_ties_are_half_of_the_mass(num_ties):
    """Also in the native twin: 1/406 + 1/406 + ... would not come out at 1/2."""
    logits = np.zeros(num_ties, dtype=np.float32)
    options = {"temperature": 0.7, "top_p": 0.5}
    assert len(sample(logits, **options).candidate_ids) == num_ties // 2
    for reference in (False, True):
        drawn = {native_sample(logits, position=p, reference=reference, **options)[0]
                 for p in range(20 * num_ties)}
        assert max(drawn) == num_ties // 2 - 1


@pytest.mark.parametrize(("name", "value"), [
    ("temperature", 1e39), ("top_p", 1e-50), ("repetition_penalty", 1e-50),
    ("repetition_penalty", 1e39), ("logit_bias", {1: 1e39})])
def test_numbers_that_a_float32_cannot_hold_are_refused_before_any_work(name, value):
    with pytest.raises(ConfigError, match=f"{name}.*32-bit float"):
        SamplingParams(**{name: value})


def test_numbers_that_a_float32_rounds():
    SamplingParams(temperature=1e-50, top_p=1 - 1e-12, min_p=1e-50, logit_bias={0: -1e39})
