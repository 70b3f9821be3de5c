"""GGUF values: dequantised and packed without losing a bit."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_helpers import (
    HALF_FIELDS,
    ISAS,
    QUANTIZED,
    TYPES,
    block_size,
    random_tensor,
    require_isa,
    spec_values,
)

from flarecore import _C
from flarecore.errors import ConfigError, ModelFileError

testing = _C.testing


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("type_name", TYPES)
def test_dequantize_equals_the_gguf_package(type_name):
    data = random_tensor(type_name, 5, 1024)
    want = spec_values(type_name, data)
    assert np.unique(want).size > 100  # not all zeros
    assert same_bits(testing.dequantize(type_name, data, want.size).reshape(want.shape), want)


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_dequantize_of_extreme_blocks(type_name):
    """Codes all 0 and all 1s, the largest and smallest float16 scales, zeros of both signs."""
    _values, size = block_size(type_name)
    rng = np.random.default_rng(7)
    scales = np.array([65504, -65504, 6e-8, -6e-8, 0.0, -0.0, 1.0], np.float16)
    for fill in (0, 255, None):
        blocks = rng.integers(0, 256, (49, size), dtype=np.uint8)
        if fill is not None:
            blocks[:] = fill
        for k, offset in enumerate(HALF_FIELDS[type_name]):
            field = scales[np.arange(49) // 7**k % 7]
            blocks[:, offset : offset + 2] = field[:, None].view(np.uint8)
        data = blocks.reshape(1, -1)
        want = spec_values(type_name, data)
        assert same_bits(testing.dequantize(type_name, data, want.size), want.reshape(-1))
        packed = testing.PackedMatrix(type_name, data, 1, want.size, "generic")
        assert same_bits(packed.dequantize_row(0), want.reshape(-1))


def test_every_half_converts_exactly():
    bits = np.arange(65536, dtype=np.uint16)
    want = bits.view(np.float16).astype(np.float32)
    got = testing.dequantize("F16", bits, 65536)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("mode", ["quantized", "float32"])
def test_packing_loses_nothing(type_name, isa, mode):
    require_isa(isa)
    pool = testing.ThreadPool(2)
    for rows in (1, 7, 8, 17, 33):
        data = random_tensor(type_name, rows, 512)
        want = spec_values(type_name, data)
        packed = testing.PackedMatrix(type_name, data, rows, 512, isa, mode, pool)
        assert packed.num_tiles == -(-rows // packed.tile)
        for row in range(rows):
            assert same_bits(packed.dequantize_row(row), want[row])


@pytest.mark.parametrize("type_name", TYPES)
def test_packed_size_is_that_of_the_type(type_name):
    """No format widens what it stores; k-quants keep their 6-bit scales in whole bytes."""
    values, size = block_size(type_name)
    rows = random_tensor(type_name, 16, 4096)
    packed = testing.PackedMatrix(type_name, rows, 16, 4096, "generic")
    in_file = 16 * 4096 // values * size
    assert in_file <= packed.size_bytes <= in_file * (1.03 if type_name.endswith("_K") else 1)


@pytest.mark.parametrize(("type_name", "cols"), [("Q4_0", 33), ("Q4_K", 128), ("Q6_K", 32)])
def test_rows_of_broken_blocks_are_refused(type_name, cols):
    data = np.zeros(4096, np.uint8)
    with pytest.raises(ModelFileError, match=f"{type_name}.*{cols}"):
        testing.PackedMatrix(type_name, data, 2, cols, "generic")
    with pytest.raises(ModelFileError, match="blocks"):
        testing.dequantize(type_name, data, cols)


def test_empty_matrices_and_unknown_types_are_refused():
    data = np.zeros(64, np.uint8)
    with pytest.raises(ModelFileError, match="0 x 32"):
        testing.PackedMatrix("F32", data, 0, 32, "generic")
    with pytest.raises(ConfigError, match="Q3_K"):
        testing.dequantize("Q3_K", data, 32)
