"""Products and values of 8- and 4-bit matrices against numpy."""

from __future__ import annotations

import re

import numpy as np
import pytest
from triton_env import bits, device_only, device_tensor, float64, torch

from kernels import quantized_product as product
from kernels.quantized_format import FORMATS, QuantizedFormat, QuantizedMatrix
from kernels.quantized_sum import unpack_asm
from kernels.quantized_values import dequantize, gather_rows

# Outputs beside the tile of 64 and the block of 128; inputs of one group and of broken splits.
SHAPES = [(1, 256), (63, 512), (129, 256)]
EPS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def random_halves(rng, *shape):
    """float16 of any size and sign, zeros and the extremes among them."""
    values = (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 2, shape)).astype(np.float16)
    flat = values.reshape(-1)
    flat[: min(4, flat.size)] = np.array([0.0, -6e-8, 60000.0, -0.0], np.float16)[: flat.size]
    return values


def random_matrix(name, outputs, inputs, seed=0, scale=None):
    """(matrix, its values in float32): any codes, scales drawn or all of about `scale`."""
    form: QuantizedFormat = FORMATS[name]
    rng = np.random.default_rng([seed, outputs, inputs])
    low, high = (0, 16) if form.bits == 4 else (-128, 128)
    codes = rng.integers(low, high, (outputs, inputs)).astype(np.uint8 if low == 0 else np.int8)

    def halves(*shape):
        if scale is None:
            return random_halves(rng, *shape)
        return (rng.uniform(0.5, 1.0, shape) * scale).astype(np.float16)

    shape = (outputs, inputs // 32, form.scale_fields)
    supers, first = None, None
    if form.is_two_level:
        kind = np.int8 if form.has_halves else np.uint8
        scales = rng.integers(-64 if form.has_halves else 0, 64, shape).astype(kind)
        supers = halves(outputs, inputs // 256, form.super_fields)
        first = np.repeat(supers.astype(np.float32), 8, axis=1)
    else:
        scales = halves(*shape)
    s = scales.astype(np.float32)
    d = s[..., :1] if first is None else s[..., :1] * first[..., :1]
    both = np.concatenate([d, s[..., 1:] * first[..., :1] if form.has_halves else d], axis=2)
    q = codes.astype(np.float32).reshape(outputs, -1, 2, 16) - form.zero
    values = q * both[..., None]
    if form.has_min:
        values += (s[..., 1:] if first is None else -(s[..., 1:] * first[..., 1:]))[..., None]
    matrix = QuantizedMatrix.pack(
        form, device_tensor(codes), device_tensor(scales),
        None if supers is None else device_tensor(supers))  # fmt: skip
    return matrix, values.reshape(outputs, inputs)


def workspace_of(matrix, rows=16):
    return product.ProductWorkspace.allocate([matrix.shape], rows, matrix.device)


def random_rows(dtype, rows, inputs, seed=3):
    return device_tensor(np.random.default_rng(seed).standard_normal((rows, inputs)), dtype)


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_exact(name):
    for outputs, inputs in SHAPES:
        matrix, values = random_matrix(name, outputs, inputs)
        out = torch.full((outputs, inputs), 7.0, device=matrix.device)
        dequantize(matrix, 0, out)
        assert np.array_equal(out.cpu().numpy(), values)
        ids = device_tensor(np.array([outputs - 1, 0, -1, outputs], np.int32))
        rows = gather_rows(matrix, ids, torch.empty((4, inputs), device=matrix.device))
        assert np.array_equal(rows[:2].cpu().numpy(), values[[-1, 0]])
        assert not rows[2:].any()  # ids that are none
    part = dequantize(matrix, 60, torch.zeros((9, 300), device=matrix.device)[:, :inputs])
    assert np.array_equal(part.cpu().numpy(), values[60:69])
    assert np.unique(values).size > 100


def test_values_in_16_bits():
    matrix, values = random_matrix("Q4_1", 5, 64)
    out = dequantize(matrix, 0, torch.empty((5, 64), dtype=torch.float16, device=matrix.device))
    expected = np.clip(values, -65504, 65504).astype(np.float16)
    assert np.abs(values).max() > 65504 and np.array_equal(out.cpu().numpy(), expected)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 5, 17])
def test_products(name, rows):
    outputs, inputs = SHAPES[rows % 3]
    matrix, values = random_matrix(name, outputs, inputs, scale=1 / 64)
    x = random_rows(torch.float32, rows, inputs)
    out = product.quantized_product(x, matrix, workspace_of(matrix, rows))
    expected = float64(x) @ values.T.astype(np.float64)
    size = np.abs(float64(x)) @ np.abs(values).T
    assert (np.abs(float64(out) - expected) <= 2e-6 * size).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K", "Q8_0"])
def test_products_in_16_bits(name, dtype):
    """Into float32, so that only the rows are rounded; strided rows and outputs."""
    matrix, values = random_matrix(name, 70, 512, scale=1 / 64)
    x = random_rows(dtype, 3, 1024)[:, :512]
    out = torch.zeros((3, 200), device=matrix.device)[:, 20:90]
    product.quantized_product(x, matrix, workspace_of(matrix), out=out)
    expected = float64(x) @ values.T.astype(np.float64)
    size = np.abs(float64(x)) @ np.abs(values).T
    assert (np.abs(float64(out) - expected) <= 4e-6 * size).all()
    rounded = product.quantized_product(x, matrix, workspace_of(matrix))
    assert (np.abs(float64(rounded) - expected) <= 4e-6 * size + EPS[dtype] * abs(expected)).all()


@pytest.mark.parametrize("groups", [1, 7, 17, 19, 64])
def test_any_number_of_groups_and_splits(groups):
    """Splits that do not share the groups evenly, and one that gets none."""
    matrix, values = random_matrix("Q4_1", 66, 32 * groups, scale=1 / 64)
    x = random_rows(torch.float32, 2, 32 * groups)
    workspace = workspace_of(matrix)
    out = product.quantized_product(x, matrix, workspace)
    np.testing.assert_allclose(float64(out), float64(x) @ values.T.astype(np.float64), atol=2e-4)
    assert product.num_splits(*matrix.shape) == {1: 1, 7: 1, 17: 2, 19: 2, 64: 8}[groups]
    assert not workspace.arrivals.any()


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0"])
def test_a_row_has_the_same_bits_alone_and_in_any_company(name):
    matrix, _ = random_matrix(name, 70, 512, scale=1 / 64)
    workspace = workspace_of(matrix, 64)
    assert product.num_splits(*matrix.shape) > 1
    x = random_rows(torch.float16, 33, 512)
    together = product.quantized_product(x, matrix, workspace)
    for rows in ([4], [4, 9], [0, 4, 17], [32]):
        some = product.quantized_product(x[rows].contiguous(), matrix, workspace)
        assert bits(some) == bits(together[rows])
    x[5] = float("nan")  # what else lies in the tile does not reach a row
    again = product.quantized_product(x, matrix, workspace)
    assert bits(again[4]) == bits(together[4]) and again[5].isnan().all()


def test_one_row_has_programs_for_the_whole_chip():
    shapes = [(2048, 2048), (2048, 8192), (16384, 2048), (4096, 14336), (128256, 4096)]
    for outputs, inputs in shapes:
        blocks = -(-outputs // product.BLOCK_OUTPUTS)
        splits = product.num_splits(outputs, inputs)
        assert blocks * splits >= 128
        assert splits == 1 or blocks * splits <= 528  # and no more sums to join than needed


def emulate(asm: str, word: int) -> list[int]:
    """Runs the few PTX instructions of `unpack_asm`; the two 32-bit results for one input."""
    half = np.float16 if ".f16x2" in asm else None
    registers = {"$2": word}

    def value(text: str) -> int:
        return registers[text] if text in registers else int(text, 0)

    def floats(pair: int) -> list[float]:
        bits = [pair & 0xFFFF, pair >> 16]
        if half is not None:
            return [float(np.uint16(b).view(half)) for b in bits]
        return [float(np.uint32(b << 16).view(np.float32)) for b in bits]

    def pack(numbers: list[float]) -> int:
        if half is not None:
            low, high = (int(half(n).view(np.uint16)) for n in numbers)
        else:
            words = [int(np.float32(n).view(np.uint32)) for n in numbers]
            assert not any(w & 0xFFFF for w in words), "not a bfloat16: rounding would matter"
            low, high = (w >> 16 for w in words)
        return low | high << 16

    for line in re.findall(r"([a-z][a-z0-9.]+) ([^;]+);", asm.replace("\n", " ")):
        name, arguments = line[0], [a.strip() for a in line[1].split(",")]
        if name.startswith("reg") or ".reg" in name:
            continue
        inputs = [value(a) for a in arguments[1:] if not a.startswith("%")]
        if name == "mov.b32":
            result = inputs[0]
        elif name == "shr.u32":
            result = inputs[0] >> inputs[1]
        elif name == "and.b32":
            result = inputs[0] & inputs[1]
        elif name == "prmt.b32":
            pool = inputs[0].to_bytes(4, "little") + inputs[1].to_bytes(4, "little")
            picks = [inputs[2] >> (4 * i) & 15 for i in range(4)]
            assert max(picks) < 8
            result = int.from_bytes(bytes(pool[p] for p in picks), "little")
        else:
            assert name.startswith("fma.rn."), name
            a, b, c = (floats(i) for i in inputs)
            result = pack([p * q + r for p, q, r in zip(a, b, c, strict=True)])
        registers[arguments[0]] = result
    return [number for register in ("$0", "$1") for number in floats(registers[register])]


@pytest.mark.parametrize("is_bfloat16", [False, True])
@pytest.mark.parametrize("zero", [0, 8])
def test_unpacking_instructions_are_exact(is_bfloat16, zero):
    """What a device does with four bytes of codes, and the interpreter never runs."""
    for byte in range(256):
        word = byte | (255 - byte) << 8 | (byte ^ 0x5A) << 16 | byte << 24
        codes = word.to_bytes(4, "little")
        for is_high in (False, True):
            got = emulate(unpack_asm(is_bfloat16, zero, is_high), word)
            assert got == [(c >> 4 if is_high else c & 15) - zero for c in codes]


@pytest.mark.parametrize("name", [device_only("Q4_K"), device_only("Q8_0")])
def test_large_products_on_a_device(name):
    matrix, values = random_matrix(name, 4096, 4096, scale=1 / 64)
    x = random_rows(torch.bfloat16, 16, 4096)
    out = torch.empty((16, 4096), device=matrix.device)
    product.quantized_product(x, matrix, workspace_of(matrix), out=out)
    size = np.abs(float64(x)) @ np.abs(values).T
    assert (np.abs(float64(out) - float64(x) @ values.T) <= 4e-6 * size).all()


def test_errors():
    matrix, _ = random_matrix("Q4_1", 70, 512)
    workspace, x = workspace_of(matrix), random_rows(torch.float32, 2, 512)
    with pytest.raises(ValueError, match=r"x must have shape \(any, 512\), got \(2, 511\)"):
        product.quantized_product(x[:, :511], matrix, workspace)
    with pytest.raises(ValueError, match="workspace is too small for 17 rows"):
        product.quantized_product(random_rows(torch.float32, 17, 512), matrix, workspace)
    with pytest.raises(TypeError, match="x must have dtype"):
        product.quantized_product(x.double(), matrix, workspace)
    with pytest.raises(ValueError, match=r"rows \[69, 71\) are not all of the 70"):
        dequantize(matrix, 69, torch.empty((2, 512), device=x.device))
    with pytest.raises(TypeError, match="row_ids must have dtype int32"):
        gather_rows(matrix, torch.zeros(2, dtype=torch.int64, device=x.device), x)
    assert product.quantized_product(x[:0], matrix, workspace).shape == (0, 70)
    codes = torch.zeros((2, 48), dtype=torch.uint8, device=x.device)
    scales = torch.zeros((2, 1, 1), dtype=torch.float16, device=x.device)
    with pytest.raises(ValueError, match="inputs a multiple of 32"):
        QuantizedMatrix.pack(FORMATS["Q4_0"], codes, scales)
    with pytest.raises(ValueError, match="scales must have shape"):
        QuantizedMatrix.pack(FORMATS["Q4_0"], codes[:, :32].contiguous(), scales[:1])
    with pytest.raises(ValueError, match="two levels"):
        QuantizedMatrix.pack(FORMATS["Q6_K"], codes.new_zeros((2, 256)).to(torch.int8),
                             torch.zeros((2, 8, 2), dtype=torch.int8, device=x.device))
