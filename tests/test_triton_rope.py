"""RoPE and the KV store against numpy float64."""

from __future__ import annotations

import numpy as np
import pytest
from triton_env import DEVICE, bits, device_tensor, float64, torch

from kernels.rope import rope_store

BLOCK = 32
MAX_POSITION = 200
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}


def tables(head_dim):
    frequency = 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
    angle = np.arange(MAX_POSITION)[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rotate(x, position, interleaved, norm, eps):
    """(heads, head_dim) in float64."""
    if norm is not None:
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * norm
    cos, sin = (t[position].astype(np.float64) for t in tables(x.shape[-1]))
    half = x.shape[-1] // 2
    pairs = (
        [slice(0, None, 2), slice(1, None, 2)] if interleaved else [slice(half), slice(half, None)]
    )
    out = np.empty_like(x)
    a, b = x[:, pairs[0]], x[:, pairs[1]]
    out[:, pairs[0]], out[:, pairs[1]] = a * cos - b * sin, b * cos + a * sin
    return out


class Case:
    def __init__(self, num_heads, num_kv_heads, head_dim, positions, rows, dtype, cache_dtype=None):
        rng = np.random.default_rng(head_dim)
        total = num_heads + 2 * num_kv_heads
        qkv = device_tensor(rng.standard_normal((len(positions), total, head_dim)), dtype)
        self.q, self.k, self.v = qkv.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        self.before = [float64(t) for t in (self.q, self.k, self.v)]
        self.positions, self.rows = positions, rows
        self.table = rng.permutation(24)[:21].reshape(3, 7).astype(np.int32)
        cache = torch.full((25, 2, num_kv_heads, BLOCK, head_dim), -99.0, device=DEVICE)
        cache = cache.to(cache_dtype or dtype)
        # The block in front of the cache stands for foreign memory.
        self.guard = cache[0]
        self.k_cache, self.v_cache = cache[1:, 0], cache[1:, 1]
        self.cos, self.sin = (device_tensor(t) for t in tables(head_dim))

    def run(self, **options):
        return rope_store(
            self.q, self.k, self.v, self.cos, self.sin,
            device_tensor(self.positions, torch.int32), device_tensor(self.rows, torch.int32),
            device_tensor(self.table), self.k_cache, self.v_cache, **options,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_rotation_and_store(dtype, interleaved, with_norm, with_bias):
    # Five tokens: two programs of tokens; block borders; two sequences.
    positions, rows = [0, 31, 32, 199, 77], [2, 0, 0, 1, 2]
    case = Case(3, 2, 64, positions, rows, dtype)
    rng = np.random.default_rng(9)
    norms = rng.standard_normal((2, 64)).astype(np.float32) if with_norm else [None, None]
    options = dict(interleaved=interleaved, eps=1e-5)
    if with_norm:
        options |= dict(q_norm=device_tensor(norms[0]), k_norm=device_tensor(norms[1]))
    q, k, v = case.before
    if with_bias:
        bias = 2 * rng.standard_normal((7, 64)).astype(np.float32)
        options["bias"] = device_tensor(bias)
        q, k, v = q + bias[:3], k + bias[3:5], v + bias[5:]
    out = case.run(**options)
    assert out.data_ptr() == case.q.data_ptr(), "in place by default"
    close = dict(rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    written = np.zeros((24, BLOCK), bool)
    for i, (position, row) in enumerate(zip(positions, rows, strict=True)):
        expected = rotate(q[i], position, interleaved, norms[0], 1e-5)
        np.testing.assert_allclose(float64(out[i]), expected, **close)
        block, slot = case.table[row, position // BLOCK], position % BLOCK
        written[block, slot] = True
        expected = rotate(k[i], position, interleaved, norms[1], 1e-5)
        np.testing.assert_allclose(float64(case.k_cache[block, :, slot]), expected, **close)
        if with_bias:
            np.testing.assert_allclose(float64(case.v_cache[block, :, slot]), v[i], **close)
        else:
            np.testing.assert_array_equal(float64(case.v_cache[block, :, slot]), v[i])
    for cache in (case.k_cache, case.v_cache):
        untouched = float64(cache).transpose(0, 2, 1, 3)[~written]
        assert (untouched == -99.0).all(), "slots of other tokens must stay"


@pytest.mark.parametrize("head_dim", [2, 80, 256])
def test_head_sizes_and_separate_output(head_dim):
    case = Case(2, 2, head_dim, [5, 6, 7], [0, 1, 2], torch.float32)
    out = case.run(q_out=torch.zeros(3, 2, head_dim, device=DEVICE))
    np.testing.assert_array_equal(float64(case.q), case.before[0])
    for i, position in enumerate(case.positions):
        expected = rotate(case.before[0][i], position, False, None, 0)
        np.testing.assert_allclose(float64(out[i]), expected, rtol=2e-6, atol=2e-6)


def test_padding_and_positions_out_of_range_write_nothing():
    # Padding; past the cosine table; past the block table; a block that is not there.
    case = Case(1, 1, 32, [-1, MAX_POSITION, 3 * BLOCK, 40, 8], [0, 0, 1, 2, 2], torch.float32)
    case.table = np.ascontiguousarray(case.table[:, :3])
    case.table[2, 1] = -1
    out = case.run(q_out=torch.full((5, 1, 32), 7.0, device=DEVICE))
    assert (out[:2] == 7.0).all() and not (out[2:] == 7.0).any()
    stored = float64(case.k_cache)[:, 0, :, 0] != -99.0
    assert stored.sum() == 1 and stored[case.table[2, 0], 8]
    assert (case.guard == -99.0).all(), "written in front of the cache"


def test_float16_cache_saturates():
    case = Case(1, 1, 32, [0], [0], torch.float32, cache_dtype=torch.float16)
    case.k[0, 0, 0], case.v[0, 0, 1] = 1e6, -1e6
    case.run()
    block = case.table[0, 0]
    assert case.k_cache[block, 0, 0, 0].item() == 65504.0
    assert case.v_cache[block, 0, 0, 1].item() == -65504.0


def test_a_token_has_the_same_bits_alone_and_in_a_batch():
    norm = device_tensor(np.ones(64, np.float32))
    bias = device_tensor(np.random.default_rng(3).standard_normal((5, 64)).astype(np.float32))
    batch = Case(3, 1, 64, [0, 31, 32, 199, 77], [2, 0, 0, 1, 2], torch.bfloat16)
    alone = Case(3, 1, 64, [0, 31, 32, 199, 77], [2, 0, 0, 1, 2], torch.bfloat16)
    together = batch.run(q_norm=norm, k_norm=norm, bias=bias)
    alone.q, alone.k, alone.v = alone.q[3:4], alone.k[3:4], alone.v[3:4]
    alone.positions, alone.rows = [199], [1]
    single = alone.run(q_norm=norm, k_norm=norm, bias=bias)
    assert bits(single[0]) == bits(together[3])
    block = batch.table[1, 6]
    assert bits(alone.k_cache[block, :, 7]) == bits(batch.k_cache[block, :, 7])
    assert bits(alone.v_cache[block, :, 7]) == bits(batch.v_cache[block, :, 7])


def test_errors():
    case = Case(2, 1, 32, [0, 1], [0, 0], torch.float32)
    with pytest.raises(ValueError, match="q_norm and k_norm must be given together"):
        case.run(q_norm=case.cos[0])
    with pytest.raises(ValueError, match=r"bias must have shape \(4, 32\)"):
        case.run(bias=case.cos)
    case.cos = case.cos[:, :8]
    with pytest.raises(ValueError, match=r"cos must have shape \(any, 16\)"):
        case.run()
    case = Case(2, 1, 33, [0, 1], [0, 0], torch.float32)
    with pytest.raises(ValueError, match="head_dim must be even and at most 512, got 33"):
        case.run()
