"""Each CPU kernel of each level against float64 numpy, and the bit-identity of its rows."""

from __future__ import annotations

import os
import subprocess
import sys
from math import erfc, sqrt

import numpy as np
import pytest
from kernel_helpers import (
    ISAS,
    QUANTIZED,
    TYPES,
    block_size,
    quantized_values,
    random_tensor,
    require_isa,
    spec_values,
)

from flarecore import _C
from flarecore.errors import UnsupportedError

testing = _C.testing
ROWS = [1, 2, 3, 4, 5, 8, 16, 17, 33]
CHANNELS = [1, 7, 8, 15, 16, 17, 33]
AWKWARD = [1, 7, 8, 15, 16, 17, 33, 576, 1001]


@pytest.fixture(params=ISAS)
def isa(request):
    require_isa(request.param)
    return request.param


def columns(type_name: str) -> list[int]:
    return [256, 1536] if type_name.endswith("_K") else [32, 64, 576, 1536]


def activations(rows: int, cols: int) -> np.ndarray:
    """Rows of different sizes, a zero group, an outlier and a constant offset."""
    rng = np.random.default_rng([rows, cols])
    x = rng.standard_normal((rows, cols)) * 10.0 ** rng.integers(-3, 3, (rows, 1)) + 0.1
    x[0, :32] = 0
    x[-1, -1] = 50
    return x.astype(np.float32)


def all_tiles(packed) -> list[int]:
    return [packed.num_tiles]


@pytest.mark.parametrize("type_name", TYPES)
def test_matmul_against_float64(isa, type_name):
    for cols in columns(type_name):
        for channels in CHANNELS:
            data = random_tensor(type_name, channels, cols)
            w = spec_values(type_name, data).astype(np.float64)
            packed = testing.PackedMatrix(type_name, data, channels, cols, isa)
            for rows in ROWS if channels in (8, 33) and cols <= 576 else (1, 3):
                x = activations(rows, cols)
                exact = quantized_values(x) if type_name in QUANTIZED else x.astype(np.float64)
                got = packed.matmul(x, all_tiles(packed))
                # The sum of sizes bounds what float32 rounding can do; zero points add theirs.
                size = np.abs(exact) @ (np.abs(w) + np.abs(w).max(axis=1, keepdims=True)).T
                assert np.all(np.abs(got - exact @ w.T) <= 2e-6 * size + 1e-30)
                assert np.abs(got).max() > 1e-4


@pytest.mark.parametrize("type_name", TYPES)
def test_rows_are_bit_identical_in_any_batch_and_split(isa, type_name):
    cols = 1536
    data = random_tensor(type_name, 131, cols)
    packed = testing.PackedMatrix(type_name, data, 131, cols, isa)
    x = activations(33, cols)
    alone = np.concatenate([packed.matmul(x[i : i + 1], all_tiles(packed)) for i in range(33)])
    assert np.isfinite(alone).all()
    for rows in ROWS:
        assert np.array_equal(packed.matmul(x[:rows], all_tiles(packed)), alone[:rows])
        assert np.array_equal(packed.matmul(x[33 - rows :], all_tiles(packed)), alone[33 - rows :])
    n = packed.num_tiles
    for splits in ([1, n], [2, 3, 7, n], list(range(1, n + 1)), [n - 1, n]):
        assert np.array_equal(packed.matmul(x[:5], splits), alone[:5])


def test_rows_are_bit_identical_where_they_outgrow_the_cache(isa):
    """So many inputs that the rows are worked on in several blocks, and the groups in panels."""
    cols = 8192 + 256
    for type_name in ("Q4_1", "Q6_K", "F16"):
        packed = testing.PackedMatrix(type_name, random_tensor(type_name, 37, cols), 37, cols, isa)
        x = activations(29, cols)
        alone = np.concatenate([packed.matmul(x[i : i + 1], all_tiles(packed)) for i in range(29)])
        assert np.array_equal(packed.matmul(x, all_tiles(packed)), alone)


def test_matmul_writes_its_tiles_only(isa):
    packed = testing.PackedMatrix("Q8_0", random_tensor("Q8_0", 50, 64), 50, 64, isa)
    y = packed.matmul(activations(3, 64), [1])
    assert np.isfinite(y[:, : packed.tile]).all()
    assert np.isnan(y[:, packed.tile :]).all()


def code_slice(type_name: str) -> slice:
    """Bytes of a block that hold codes."""
    starts = {"Q4_0": 2, "Q5_0": 2, "Q8_0": 2, "Q4_1": 4, "Q5_1": 4, "Q4_K": 16, "Q5_K": 16}
    return slice(0, 192) if type_name == "Q6_K" else slice(starts[type_name], None)


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_extreme_codes_do_not_saturate(isa, type_name):
    """All codes at one end, activations at the ends: sums of products are as large as they get."""
    for byte in (0x00, 0xFF, 0x7F, 0x80):
        data = random_tensor(type_name, 16, 256)
        blocks = data.reshape(16, 256 // block_size(type_name)[0], -1)
        blocks[..., code_slice(type_name)] = byte
        w = spec_values(type_name, data).astype(np.float64)
        packed = testing.PackedMatrix(type_name, data, 16, 256, isa)
        for sign in (1, -1):
            # 253 steps of 1 between the ends, of which one may be 0: the largest shift.
            x = np.full((5, 256), sign * 253, np.float32)
            x[1:, ::3] = 0
            x[3:] = np.where(x[3:] == 0, sign * -126, sign * 127)
            size = np.abs(x.astype(np.float64)) @ (2 * np.abs(w)).T + 1e-3
            assert np.all(np.abs(packed.matmul(x, all_tiles(packed)) - x @ w.T) <= 2e-6 * size)


def test_quantize_row(isa):
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(32 * 40) * np.repeat(10.0 ** rng.integers(-30, 30, 40), 32)).astype(
        np.float32
    )
    x[:32] = 0
    x[32:64] = 0
    x[40] = 1e-36  # too small to matter
    x[64:96] = np.arange(32) - 31.0  # nothing above 0
    x[96:128] = np.arange(32) + 1.0  # nothing below 0
    x[128:160] = np.float32(127) * np.sign(x[128:160])
    q, scale, sums, shift = testing.quantize_row(isa, x)
    groups = x.reshape(-1, 32)
    span = groups.max(axis=1, initial=0) - groups.min(axis=1, initial=0)
    live = span >= 1e-35
    inverse = np.where(live, np.float32(253) / np.where(live, span, 1), 0).astype(np.float32)
    want = np.rint(groups * inverse[:, None]).astype(np.int16)
    assert np.array_equal(q.reshape(-1, 32), want)
    assert want.max() == 253 and want.min() == -253
    assert np.abs(want - shift[:, None]).max() == 127, "int8 without -128 holds what is stored"
    assert np.array_equal(scale, np.where(live, span / np.float32(253), 0).astype(np.float32))
    int_sums = np.stack([want.sum(axis=1), want[:, :16].sum(axis=1)], axis=1).astype(np.float32)
    assert np.array_equal(sums, scale[:, None] * int_sums)


@pytest.mark.parametrize("n", [32, 64, 96, 576, 1536, 4128])
def test_norm_and_quantisation_in_one_pass(isa, n):
    rng = np.random.default_rng(n)
    x, weight = rng.standard_normal((2, n)).astype(np.float32) + np.float32(0.2)
    x[:32] = 0
    in_two = testing.quantize_row(isa, testing.rmsnorm(isa, x, weight, 1e-5))
    for a, b in zip(testing.rmsnorm_quantize(isa, x, weight, 1e-5), in_two, strict=True):
        assert np.array_equal(a, b)
    assert np.abs(in_two[0]).max() > 100 or n == 32


@pytest.mark.parametrize("n", AWKWARD)
def test_norms(isa, n):
    rng = np.random.default_rng(n)
    x = (rng.standard_normal(n) * 3 + 2).astype(np.float32)
    w, b = rng.standard_normal((2, n)).astype(np.float32)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean() + 1e-5) * w
    assert np.allclose(testing.rmsnorm(isa, x, w, 1e-5), want, rtol=2e-6, atol=1e-7)
    centred = wide - wide.mean()
    want = centred / np.sqrt((centred**2).mean() + 1e-5) * w + b
    assert np.allclose(testing.layernorm(isa, x, w, b, 1e-5), want, rtol=1e-5, atol=4e-6)


def gelu(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * v * erfc(-v / sqrt(2)) for v in x])


def close(got: np.ndarray, want: np.ndarray, x: np.ndarray) -> bool:
    """The contract of the activations: see kernels.h."""
    limit = np.where(np.abs(x) < 5, np.abs(want), np.maximum(np.abs(want), 1e-6))
    return bool(np.all(np.abs(got - want) <= 2e-6 * limit + 1e-38))


@pytest.mark.parametrize("n", AWKWARD)
def test_activations(isa, n):
    rng = np.random.default_rng(n)
    x = np.concatenate([rng.uniform(-12, 12, n), [0.0, -0.0, 1e-30, -1e-30, 60, -60, 1e4, -1e4]])
    x = rng.permutation(x).astype(np.float32)
    up = rng.standard_normal(x.size).astype(np.float32)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        silu = wide / (1 + np.exp(-wide))
        tanh = wide / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    ones = np.ones_like(x)
    assert close(testing.silu_mul(isa, x, ones), silu, x)
    assert close(testing.gelu_tanh_mul(isa, x, ones), tanh, x)
    assert close(testing.gelu_erf(isa, x), gelu(wide), x)
    assert np.allclose(testing.silu_mul(isa, x, up), silu * up, rtol=3e-6, atol=1e-6)
    assert np.allclose(testing.gelu_tanh_mul(isa, x, up), tanh * up, rtol=3e-6, atol=1e-6)
    assert np.array_equal(testing.add(isa, x, up), x + up)


def test_elementwise_results_do_not_depend_on_position(isa):
    x = np.random.default_rng(0).uniform(-9, 9, 67).astype(np.float32)
    whole = testing.gelu_erf(isa, x)
    ones = np.ones_like(x)
    for i in (0, 5, 31, 64, 66):
        assert testing.gelu_erf(isa, x[i : i + 1])[0] == whole[i]
        assert testing.silu_mul(isa, x[i : i + 3], ones[i : i + 3])[0] == (
            testing.silu_mul(isa, x, ones)[i]
        )


def test_to_float16_of_every_half_and_every_midpoint(isa):
    halves = np.arange(0x7C00, dtype=np.uint16)
    values = halves.view(np.float16).astype(np.float32)
    assert np.array_equal(testing.to_float16(isa, values), halves)
    middle = ((values[:-1].astype(np.float64) + values[1:]) / 2).astype(np.float32)
    for x in (middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(1e9))):
        for signed in (x, -x):
            want = signed.astype(np.float16).view(np.uint16)
            assert np.array_equal(testing.to_float16(isa, signed), want)
    top = np.array([65504, 65519.9, 65520, 1e30, np.inf, -np.inf, -7e4], np.float32)
    want = np.array([65504] * 5 + [-65504] * 2, np.float16).view(np.uint16)
    assert np.array_equal(testing.to_float16(isa, top), want)
    nan = testing.to_float16(isa, np.array([np.nan], np.float32)).view(np.float16)
    assert np.isnan(nan[0])


@pytest.mark.parametrize("n", [*AWKWARD, 49152])
def test_logit_stats(isa, n):
    rng = np.random.default_rng(n)
    logits = (rng.standard_normal(n) * 8).astype(np.float32)
    logits[rng.integers(0, n, n // 10)] = -np.inf
    logits[rng.integers(0, n)] = 30
    for inverse in (1.0, 0.25, 3.0):
        top, argmax, total, scaled = testing.logit_stats(isa, logits, inverse)
        wide = logits.astype(np.float64) - logits.max()
        assert top == logits.max() and argmax == logits.argmax()
        assert abs(total / np.exp(wide).sum() - 1) < 1e-6
        assert abs(scaled / np.exp(wide * inverse).sum() - 1) < 2e-6


def test_logit_stats_of_ties_and_infinities(isa):
    for n in AWKWARD:
        hidden = np.full(n, -np.inf, np.float32)
        assert testing.logit_stats(isa, hidden, 0.5) == (-np.inf, 0, 0.0, 0.0)
        for at in {0, n // 2, n - 1}:
            one = hidden.copy()
            one[at] = -3.25
            assert testing.logit_stats(isa, one, 0.5) == (-3.25, at, 1.0, 1.0)
            tied = np.zeros(n, np.float32)
            tied[at:] = 2
            assert testing.logit_stats(isa, tied)[1] == at


def run_with_isa(value: str | None) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "FLARECORE_CPU_ISA"}
    if value is not None:
        env["FLARECORE_CPU_ISA"] = value
    code = (
        "from flarecore import _C, errors\n"
        "try:\n    print(_C.cpu_isa())\n"
        "except errors.FlarecoreError as e:\n    print(type(e).__name__, e)\n"
    )
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def test_isa_is_chosen_and_forced_by_the_environment():
    available = _C.available_isas()
    assert available[0] == "generic"
    for unset in (None, ""):
        assert run_with_isa(unset).stdout.strip() == available[-1]
    for name in available:
        assert run_with_isa(name).stdout.strip() == name


def test_unknown_isa_is_refused_by_name():
    out = run_with_isa("avx9").stdout
    assert out.startswith("ConfigError") and "avx9" in out
    assert all(name in out for name in ISAS)


def test_unavailable_isa_is_refused():
    with pytest.raises(UnsupportedError, match=r"avx512.*generic"):
        testing.choose_isa("avx512", ["generic"])
    missing = [name for name in ISAS if name not in _C.available_isas()]
    for name in missing:  # empty on a machine that has every level
        out = run_with_isa(name).stdout
        assert out.startswith("UnsupportedError") and name in out
        with pytest.raises(UnsupportedError, match=name):
            testing.add(name, np.ones(3), np.ones(3))
