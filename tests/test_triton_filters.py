"""Top-k, top-p and min-p of the fused sampler, against the reference and the CPU sampler."""

from __future__ import annotations

import numpy as np
import pytest
from helpers_triton_sampling import check, random_logits, run
from triton_env import bits, device_only

FILTERS = [
    {"top_k": 1},
    {"top_k": 7, "seed": 2},
    {"top_p": 0.5, "seed": 2},
    {"top_p": 0.95, "temperature": 2.0, "seed": 4},
    {"min_p": 0.05, "seed": 5},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.8, "seed": 6},
    {"top_k": 1000, "top_p": 0.7, "min_p": 0.02, "seed": 7},
    {"top_p": 1e-6},
    {},
]


def filter_settings():
    return [{"temperature": 1.0, **f} for f in FILTERS]


@pytest.mark.parametrize("vocab", [1, 111, 1500, device_only(128256), device_only(262144)])
def test_filters(vocab):
    logits = random_logits(len(FILTERS), vocab, seed=vocab)
    check(logits, filter_settings())


@pytest.mark.parametrize("vocab", [111, 1500])
def test_same_tokens_as_the_cpu_sampler(vocab):
    native = pytest.importorskip("flarecore._C", reason="the C++ core is not built").testing
    settings = [{"temperature": 0.8, **f, "stream": 3} for f in [{}, *FILTERS, {"top_k": vocab}]]
    settings += [{}, {"temperature": 3.0, "seed": (1 << 63) + 5}]
    logits = random_logits(len(settings), vocab, seed=7)
    logits[:, ::3] = np.round(logits[:, ::3])
    state = run(logits, settings, [40 + row for row in range(len(settings))])
    for row, setting in enumerate(settings):
        token, prob = native.sample(logits[row], setting, position=41 + row)
        assert state.tokens[row].item() == token, f"row {row}: {setting}"
        np.testing.assert_allclose(state.history_probs[row, 0].item(), prob, rtol=2e-6)


def test_filters_cut_ties_by_id():
    # 40 equal logits over two chunks: the kept ones are the lowest ids.
    logits = np.full((3, 1200), -3.0, np.float32)
    ids = np.random.default_rng(1).permutation(1200)[:40]
    logits[:, ids] = 2.0
    settings = [{"top_k": 11, "seed": 1}, {"top_p": 0.3, "seed": 8}, {"min_p": 0.5, "seed": 3}]
    check(logits, [{"temperature": 1.0, **s} for s in settings])


def test_more_candidates_than_the_list_holds():
    logits = random_logits(3, 3000, scale=0.5)
    settings = [{"top_p": 0.9, "seed": 11}, {"top_k": 60, "seed": 12}, {"min_p": 0.1, "seed": 13}]
    settings = [{"temperature": 1.0, **s} for s in settings]
    short = check(logits, settings, candidates=16)
    long = check(logits, settings)
    assert bits(short.history_probs) == bits(long.history_probs)
