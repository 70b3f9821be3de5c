"""The kernels for many rows: blocks of activations, products over them, gate and up in one pass.

Their slow twin is the kernel for few rows, which `test_kernels.py` holds against float64: the bits
must be the same.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers import TinyLlama, open_engine, random_ids, result_bits
from kernel_helpers import ISAS, QUANTIZED, random_tensor, require_isa
from test_kernels import activations, all_tiles

from flarecore import _C
from flarecore.errors import ConfigError
from flarecore.sampling import SamplingParams

testing = _C.testing
# A block cut short, whole blocks, a row more, and more than the rows whose outputs wait in cache.
ROWS = (1, 15, 32, 33, 130, 275)


@pytest.fixture(params=ISAS)
def isa(request):
    require_isa(request.param)
    return request.param


def packed_pair(type_name: str, channels: int, cols: int, isa: str):
    data = [random_tensor(type_name, channels, cols, seed) for seed in (0, 1)]
    return [testing.PackedMatrix(type_name, d, channels, cols, isa) for d in data]


def awkward_rows(rows: int, cols: int) -> np.ndarray:
    """Activations with tiny, huge and tied values; the last group has no number in it."""
    x = activations(rows, cols)
    x[0, 32:64] = 1e-36
    x[rows // 2, :32] = np.arange(32) - 31.0
    x[rows // 2, 1] = 1e30
    x[-1, -32:] = np.nan
    x[-1, -30] = np.inf
    return x


def unpack_amx(cells: np.ndarray, num_groups: int, rows: int):
    """(q, scale, sum) of AMX cells in the order of the inputs."""
    cells = cells.reshape(-1, num_groups, 16 * 32 * 2 + 128)
    words = np.ascontiguousarray(cells[..., :1024]).view(np.uint16).astype(np.uint32)
    values = (words << 16).view(np.float32).reshape(-1, num_groups, 16, 8, 4)
    values = values[..., [0, 2, 1, 3]].reshape(-1, num_groups, 16, 32)
    q = values.transpose(0, 2, 1, 3).reshape(-1, num_groups, 32)
    numbers = np.ascontiguousarray(cells[..., 1024:]).view(np.float32)
    numbers = numbers.reshape(-1, num_groups, 2, 16).transpose(2, 0, 3, 1)
    numbers = numbers.reshape(2, -1, num_groups)
    padding = q[rows:], numbers[:, rows:]
    assert not any(part.any() for part in padding), "rows behind the last one are zeros"
    return q[:rows], numbers[0, :rows], numbers[1, :rows]


@pytest.mark.filterwarnings("ignore:invalid value")
def test_amx_blocks_hold_what_quantize_row_gives():
    require_isa("amx")
    for rows, cols in ((16, 576), (5, 96), (33, 64)):
        x = awkward_rows(rows, cols)
        q, scale, total = unpack_amx(testing.quantize_blocks("amx", x), cols // 32, rows)
        for r in range(rows):
            want_q, want_scale, want_sums, _ = testing.quantize_row("avx512", x[r])
            assert np.array_equal(scale[r], want_scale, equal_nan=True)
            # Where a group holds what is no number, its integers mean nothing.
            means = np.isfinite(x[r].reshape(-1, 32)).all(axis=1)
            assert np.array_equal(q[r][means], want_q.reshape(-1, 32)[means])
            assert np.array_equal(total[r][means], want_sums[means, 0])


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_products_have_the_bits_of_few_rows(isa, type_name):
    """Whole, odd and cut tiles; groups that fill no panel."""
    for channels, cols in ((32, 256), (131, 768), (48, 1536)):
        packed = packed_pair(type_name, channels, cols, isa)[0]
        if not testing.multiplies_blocks(packed):
            assert (isa, type_name) == ("amx", "Q6_K")
            with pytest.raises(ConfigError, match="does not take"):
                testing.matmul_blocks(packed, activations(2, cols), [1])
            return
        for rows in ROWS[:5] if cols == 1536 else ROWS[::2]:
            x = activations(rows, cols)
            before = _C.testing.num_amx_products() if isa == "amx" else 0
            got = testing.matmul_blocks(packed, x, all_tiles(packed))
            if isa == "amx":
                assert testing.num_amx_products() == before + 1
            assert np.array_equal(got, packed.matmul(x, all_tiles(packed)))
            assert np.array_equal(got, testing.matmul_blocks(packed, x, [1, packed.num_tiles]))
        assert np.abs(got).max() > 1e-4


@pytest.mark.parametrize("byte", [0x00, 0xFF])
@pytest.mark.parametrize("type_name", ["Q8_0", "Q5_1", "Q4_1"])
def test_largest_sums_stay_exact(isa, type_name, byte):
    """All codes at one end, activations at +-127: what a sum of bfloat16 products must hold."""
    data = random_tensor(type_name, 32, 256)
    start = {"Q8_0": 2, "Q5_1": 4, "Q4_1": 4}[type_name]
    data.reshape(32, 8, -1)[..., start:] = byte
    packed = testing.PackedMatrix(type_name, data, 32, 256, isa)
    x = np.full((18, 256), 127, np.float32)
    x[1::2, ::3] *= -1
    got = testing.matmul_blocks(packed, x, all_tiles(packed))
    assert np.array_equal(got, packed.matmul(x, all_tiles(packed)))


def test_products_are_added_to_what_is_there(isa):
    for channels, rows in ((131, 33), (64, 130), (576, 275)):
        packed = packed_pair("Q4_1", channels, 96, isa)[0]
        x = activations(rows, 96)
        y = np.random.default_rng(5).standard_normal((rows, channels)).astype(np.float32)
        want = y + packed.matmul(x, all_tiles(packed))
        for splits in ([packed.num_tiles], [1, packed.num_tiles]):
            assert np.array_equal(testing.matmul_blocks(packed, x, splits, add_to=y), want)


def test_products_write_their_tiles_and_rows_only(isa):
    packed = packed_pair("Q4_1", 70, 64, isa)[0]
    y = testing.matmul_blocks(packed, activations(19, 64), [1])
    assert np.isfinite(y[:, : packed.tile]).all()
    assert np.isnan(y[:, packed.tile :]).all()


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0", "Q5_K"])
def test_gated_pass_has_the_bits_of_its_parts(isa, type_name, activation):
    """Gate and up in memory, activated and quantised, give the same cells to the last byte."""
    gate, up = packed_pair(type_name, 160, 256, isa)
    act = testing.silu_mul if activation == "silu" else testing.gelu_tanh_mul
    for rows in ROWS:
        x = activations(rows, 256)
        products = [m.matmul(x, all_tiles(m)) for m in (gate, up)]
        gated = act(isa, *(p.ravel() for p in products)).reshape(rows, -1)
        want = testing.quantize_blocks(isa, gated)
        # Rows of single groups are the blocks of the levels without tiles.
        want_rows = testing.quantize_blocks("avx512" if isa == "amx" else isa, gated)
        for splits in ([5], [1, 2, 5], [2, 5]):
            assert np.array_equal(testing.gated_blocks(gate, up, x, activation, splits), want)
            assert testing.gated_rows(gate, up, x, activation, splits) == want_rows.tobytes()
        assert len(np.unique(want)) > 20


def test_gated_pass_refuses_what_it_does_not_take(isa):
    gate, up = packed_pair("Q4_1", 96, 64, isa)
    x = activations(2, 64)
    with pytest.raises(ConfigError, match="activation"):
        testing.gated_blocks(gate, up, x, "relu", [3])
    with pytest.raises(ConfigError, match="same shape"):
        testing.gated_blocks(gate, packed_pair("Q4_1", 64, 64, isa)[0], x, "silu", [2])


SPEC = TinyLlama(tensor_type="Q4_1", num_heads=4, num_kv_heads=2, hidden_size=128, ffn_size=352,
                 context_length=512, vocab_size=333)
MIXED = TinyLlama(tensor_type="F16", num_heads=4, num_kv_heads=2, hidden_size=128, ffn_size=352,
                  context_length=512, vocab_size=333)


@pytest.mark.parametrize(("spec", "is_fused"), [(SPEC, True), (MIXED, False)])
def test_engine_takes_the_gated_pass(spec, is_fused):
    """In blocks for passes of 32 and more rows, else in rows; the answer is the same."""
    prompt, results = random_ids(150, 333, seed=3), []
    for max_batch_tokens in (7, 31, 32, 150):
        engine = open_engine(spec, compute="int8", max_batch_tokens=max_batch_tokens)
        before = [testing.num_gated_passes(in_blocks) for in_blocks in (False, True)]
        sequence = engine.sequence(prompt)
        taken = [testing.num_gated_passes(in_blocks) > before[in_blocks]
                 for in_blocks in (False, True)]
        is_many = max_batch_tokens >= 32
        assert taken[is_many] == is_fused
        assert is_many or not taken[True]
        decoded = sequence.decode(8, sampling=SamplingParams(), until="eos", ignore_eos=True)
        results.append(result_bits(decoded))
        engine.close()
    assert all(result == results[0] for result in results)
