"""K, V and queries in 16-bit integers, and attention over them, against exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_helpers import ISAS, require_isa

from flarecore import _C

testing = _C.testing

NORM_STEPS, PEAK_STEPS = 32700, 8191


@pytest.fixture(params=ISAS)
def isa(request):
    require_isa(request.param)
    return request.param


@pytest.mark.parametrize("size", [8, 24, 64, 88, 256, 512])
@pytest.mark.parametrize("by_norm", [True, False])
def test_words_are_the_nearest_multiples_of_a_step(isa, size, by_norm):
    rng = np.random.default_rng(size)
    for spread in (1e-12, 0.01, 1.0, 300.0, 1e12):
        x = (rng.standard_normal(size) * spread).astype(np.float32)
        words, step = testing.words_of(isa, x, by_norm)
        exact = x.astype(np.float64)
        largest = np.sqrt((exact**2).sum()) if by_norm else np.abs(exact).max()
        steps = NORM_STEPS if by_norm else PEAK_STEPS
        assert step == pytest.approx(largest / steps, rel=1e-6)
        assert np.abs(words * np.float64(step) - exact).max() <= 0.5001 * step
        bound = np.sqrt((words.astype(np.float64) ** 2).sum()) if by_norm else np.abs(words).max()
        assert bound <= steps + 0.5 * np.sqrt(size)


def test_words_of_one_number_and_of_nothing(isa):
    for by_norm, steps in ((True, NORM_STEPS), (False, PEAK_STEPS)):
        for sign in (1, -1):
            x = np.zeros(40, np.float32)
            x[7] = sign * 65504.0 * 1000
            words, step = testing.words_of(isa, x, by_norm)
            assert words[7] == sign * steps and np.count_nonzero(words) == 1
            assert step * steps == pytest.approx(abs(x[7]))
        words, step = testing.words_of(isa, np.zeros(40, np.float32), by_norm)
        assert not words.any() and step == 0
        for value in (np.nan, np.inf, -np.inf):
            x = np.ones(40, np.float32)
            x[33] = value
            assert np.isnan(testing.words_of(isa, x, by_norm)[1])


def one_head(isa, q, k, v, first, end, scale=1.0):
    """Of one row and head; k and v are (tokens, head_dim), as many tokens as fill blocks."""
    blocks = len(k) // 32
    k = np.ascontiguousarray(k.reshape(blocks, 32, -1).transpose(0, 2, 1))
    out, top, total = testing.attention_int16(
        isa, q[None, None], k, v.reshape(blocks, 32, -1), [first], [end], 0, blocks, scale)
    return out[0, 0], top[0, 0], total[0, 0]


@pytest.mark.parametrize("dim", [8, 40, 64, 256])
def test_a_score_is_an_exact_sum_in_the_units_of_both(isa, dim):
    """One visible token: its score is the maximum, bit for bit, and the output its value."""
    rng = np.random.default_rng(dim)
    q = rng.standard_normal(dim).astype(np.float32)
    k, v = rng.standard_normal((2, 96, dim)).astype(np.float32)
    scale = np.float32(dim**-0.5)
    q_words, q_step = testing.words_of(isa, q, True)
    for token in (0, 17, 31, 32, 58, 95):
        out, top, total = one_head(isa, q, k, v, token, token + 1, float(scale))
        k_words, k_step = testing.words_of(isa, k[token], True)
        exact = int(q_words.astype(np.int64) @ k_words.astype(np.int64))
        q_unit = np.float32(q_step) * scale
        assert top == np.float32(exact) * q_unit * np.float32(k_step)
        assert total == 1
        v_words, v_step = testing.words_of(isa, v[token], False)
        assert np.allclose(out, v_words * np.float64(v_step), rtol=3e-7, atol=0)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dim", [64, 512])
def test_the_largest_sums_fit(isa, dim, sign):
    """Equal numbers everywhere: q.k is the product of the norms, p.v at its bound."""
    q, k = np.full(dim, 3.0, np.float32), np.full((64, dim), 3.0 * sign, np.float32)
    v = np.full((64, dim), 5.0 * sign, np.float32)
    out, top, total = one_head(isa, q, k, v, 0, 64, dim**-0.5)
    assert top == pytest.approx(9 * sign * dim**0.5, rel=2e-3)
    assert total == 64 and np.allclose(out, 64 * 5.0 * sign, rtol=2e-4)
    # One number has all of the norm.
    q[1:], k[:, 1:] = 0, 0
    out, top, total = one_head(isa, q, k, v, 0, 64)
    assert top == pytest.approx(9 * sign, rel=1e-6)


def test_values_of_different_sizes_keep_their_digits(isa):
    """A token's scale is its own: small values beside large ones that weigh nothing."""
    rng = np.random.default_rng(3)
    q, k = np.zeros(64, np.float32), np.zeros((64, 64), np.float32)
    q[0] = 1
    k[:, 0] = -60.0
    k[5, 0] = 0
    v = (rng.standard_normal((64, 64)) * 1e4).astype(np.float32)
    v[5] = rng.standard_normal(64) * 1e-3
    out, _top, total = one_head(isa, q, k, v, 0, 64)
    want = np.exp(np.float64(-60.0)) * np.delete(v, 5, 0).astype(np.float64).sum(0) + v[5]
    assert total == pytest.approx(1)
    assert np.abs(out - want).max() <= 2 * 1e-4 * np.abs(v[5]).max()


def test_garbage_that_nobody_sees_has_no_influence(isa):
    rng = np.random.default_rng(4)
    q = rng.standard_normal(40).astype(np.float32)
    k, v = rng.standard_normal((2, 64, 40)).astype(np.float32)
    clean = one_head(isa, q, k, v, 3, 45)
    for value in (np.nan, np.inf, 3e38):
        bad_k, bad_v = k.copy(), v.copy()
        bad_k[:3], bad_k[45:], bad_v[:3], bad_v[45:] = value, value, value, value
        for a, b in zip(clean, one_head(isa, q, bad_k, bad_v, 3, 45), strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_no_number_shows(isa, value):
    q, k, v = np.ones(24, np.float32), np.ones((32, 24), np.float32), np.ones((32, 24), np.float32)
    v[7, 3] = value
    assert np.isnan(one_head(isa, q, k, v, 0, 32)[0]).all()
    assert np.isfinite(one_head(isa, q, k, v, 8, 32)[0]).all()
