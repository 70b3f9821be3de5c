"""Each CPU kernel of each level against float64 numpy, and the bit-identity of its rows."""

from __future__ import annotations

import os
import subprocess
import sys
from math import erf

import numpy as np
import pytest
from kernel_helpers import ISAS, QUANTIZED, TYPES, quantized_values, random_tensor, require_isa, spec_values

from flarecore import _C

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


def test_matmul_writes_its_tiles_only(isa):
    packed = testing.PackedMatrix("Q8_0", random_tensor("Q8_0", 50, 64), 50, 64, isa)
    y = packed.matmul(activations(3, 64), [1])
    assert np.isfinite(y[:, : packed.tile]).all()
    assert np.isnan(y[:, packed.tile :]).all()


@pytest.mark.parametrize("type_name", ["Q4_0", "Q5_1", "Q8_0", "Q6_K"])
def test_largest_codes_do_not_saturate(isa, type_name):
    """All codes at their end, activations at +-127: the integer sums are still exact."""
    for byte in (0x00, 0xFF, 0x7F, 0x80):
        data = random_tensor(type_name, 16, 256)
        scales = data.reshape(16, 256 // 32 if type_name != "Q6_K" else 1, -1)
        keep = scales[..., 208:].copy() if type_name == "Q6_K" else scales[..., :4].copy()
        scales[...] = byte
        if type_name == "Q6_K":
            scales[..., 208:] = keep
        else:
            scales[..., : keep.shape[-1]][..., : 4 if type_name == "Q5_1" else 2] = keep[
                ..., : 4 if type_name == "Q5_1" else 2
            ]
        w = spec_values(type_name, data).astype(np.float64)
        packed = testing.PackedMatrix(type_name, data, 16, 256, isa)
        for sign in (1, -1):
            x = np.full((5, 256), sign * 127, np.float32)
            x[1:, ::3] *= -1
            size = np.abs(x.astype(np.float64)) @ (2 * np.abs(w)).T + 1e-3
            assert np.all(np.abs(packed.matmul(x, all_tiles(packed)) - x @ w.T) <= 2e-6 * size)
