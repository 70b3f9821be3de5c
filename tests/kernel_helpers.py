"""Random GGUF blocks and the double-precision products that the kernel tests compare with."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from flarecore import _C

ISAS = ["generic", "avx2", "avx512", "amx"]
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
QUANTIZED = TYPES[3:]
# Byte offsets of the float16 numbers in a block.
HALF_FIELDS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip


def require_isa(isa: str) -> None:
    if isa not in _C.available_isas():
        pytest.skip(f"this machine has no {isa}: it has {', '.join(_C.available_isas())}")


def block_size(type_name: str) -> tuple[int, int]:
    """(values, bytes) of one block."""
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]


def random_tensor(type_name: str, num_rows: int, num_cols: int, seed: int = 0) -> np.ndarray:
    """Rows of valid blocks, (num_rows, bytes per row) uint8: any code, finite scales."""
    rng = np.random.default_rng([seed, num_rows, num_cols])
    values, size = block_size(type_name)
    if type_name == "BF16":
        floats = rng.standard_normal((num_rows, num_cols)).astype(np.float32)
        return (floats.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    if values == 1:
        floats = rng.standard_normal((num_rows, num_cols))
        return floats.astype(np.float32 if type_name == "F32" else np.float16).view(np.uint8)
    blocks = rng.integers(0, 256, (num_rows, num_cols // values, size), dtype=np.uint8)
    for offset in HALF_FIELDS[type_name]:
        scale = rng.uniform(-0.02, 0.02, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, offset : offset + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(num_rows, -1)


def spec_values(type_name: str, data: np.ndarray) -> np.ndarray:
    """(num_rows, num_cols) float32 by the ``gguf`` package's own dequantisation."""
    kind = gguf.GGMLQuantizationType[type_name]
    return gguf.quants.dequantize(data, kind).reshape(data.shape[0], -1)


def quantized_values(x: np.ndarray) -> np.ndarray:
    """What a row becomes in 253 steps between its ends with one scale per 32, in float64."""
    groups = x.reshape(-1, 32)
    span = (groups.max(axis=1, initial=0) - groups.min(axis=1, initial=0))[:, None]
    inverse = np.where(span < 1e-35, 0, np.float32(253) / np.where(span < 1e-35, 1, span))
    q = np.rint(groups * inverse.astype(np.float32))
    return (q * (span / np.float32(253)).astype(np.float64)).reshape(x.shape)
