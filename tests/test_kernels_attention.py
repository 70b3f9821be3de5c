"""Attention of each CPU level against float64 numpy, and the bit-identity of its rows."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_helpers import ISAS, require_isa

from flarecore import _C

testing = _C.testing


TILES = "amx-tiles"  # the AMX level's products by tiles
# A level's attention over blocks of 16-bit integers, made of the numbers that the others see.
WORDS = tuple(f"{isa}-words" for isa in ISAS)
FLOATS = (*ISAS, TILES)


def level_of(way: str) -> str:
    return way.partition("-")[0]


@pytest.fixture(params=[*FLOATS, *WORDS])
def way(request):
    require_isa(level_of(request.param))
    return request.param


def attend(way, q, k, v, *rest):
    """Attention over blocks of either type: unnormalised output, maxima and sums."""
    options = {"in_tiles": True} if way == TILES else {}
    if way in WORDS:
        k, v = k.astype(np.float32), v.astype(np.float32)
        return testing.attention_int16(level_of(way), q, k, v, *rest)
    way = level_of(way)
    if k.dtype == np.float16:
        k, v = k.view(np.uint16), v.view(np.uint16)
        return testing.attention_float16(way, q, k, v, *rest, **options)
    return testing.attention(way, q, k, v, *rest, **options)


def tolerance(way: str, dtype: type, dim: int) -> tuple[float, float]:
    """Relative and absolute, of sums: tiles multiply numbers of 16 significant bits.

    Integers are off by up to half a step, 1 / 65,400 of the norms of a query and a key, which are
    about sqrt(dim), in each of dim products; errors of either sign add up to much less.
    """
    if way in WORDS:
        return 8e-5 * dim**0.5, 4e-5 * dim**0.5
    return (4e-5, 2e-5) if (way, dtype) == (TILES, np.float16) else (1e-5, 2e-6)


@pytest.mark.parametrize("way", FLOATS)
def test_exp_error(way):
    """exp through attention: scores 0 and x, values 0 and 1, so that the output is exp(x)."""
    require_isa(level_of(way))
    x = np.concatenate([-np.geomspace(1e-8, 87, 4000), [-87.5, -100, -1e30, 0.0]])
    x = x.astype(np.float32)
    q = np.zeros((1, 1, 8), np.float32)
    q[..., 0] = 1
    k = np.zeros((1, 8, 32), np.float32)
    v = np.zeros((1, 32, 8), np.float32)
    v[0, 1:] = np.eye(31, 8)
    got = []
    for run in np.split(x, range(7, x.size, 7)):
        k[0, 0, 1 : 1 + run.size] = run
        end = [1 + run.size]
        out = attend(way, q, k, v, [0], end, 0, 1, 1.0)[0]
        got.extend(out[0, 0, : run.size])
    want = np.exp(x.astype(np.float64))
    live = x >= -87
    assert np.abs(np.array(got)[live] / want[live] - 1).max() < 2e-7
    assert not np.array(got)[~live].any()
    assert got[-1] == 1.0


class AttentionCase:
    """Random queries and blocks; slots at and after ``written`` hold NaN or huge values."""

    def __init__(self, rows, heads, dim, blocks, dtype, seed=0):
        rng = np.random.default_rng([rows, heads, dim, blocks, seed])
        self.written = blocks * 32 - 5
        self.q = rng.standard_normal((rows, heads, dim)).astype(np.float32)
        self.k = rng.standard_normal((blocks, dim, 32)).astype(dtype)
        self.v = rng.standard_normal((blocks, 32, dim)).astype(dtype)
        self.k[-1, :, 27:] = np.nan
        self.v[-1, 27:] = np.nan
        self.k[-1, ::2, 30] = 6e4
        self.v[-1, 31, ::2] = np.inf
        self.scale = dim**-0.5

    def run(self, way, first, end, rows=slice(None), blocks=None):
        begin, stop = blocks or (0, len(self.k))
        return attend(way, self.q[rows], self.k, self.v, first[rows], end[rows], begin, stop,
                      self.scale)

    def expected(self, first, end, row, head):
        """Normalised output, maximum and sum in float64."""
        k = self.k.astype(np.float64).transpose(0, 2, 1).reshape(-1, self.q.shape[2])
        v = self.v.astype(np.float64).reshape(-1, self.q.shape[2])
        seen = slice(first[row], end[row])
        scores = k[seen] @ self.q[row, head].astype(np.float64) * self.scale
        p = np.exp(scores - scores.max())
        return p @ v[seen] / p.sum(), scores.max(), p.sum()


SHAPES = [(1, 1, 8, 1), (1, 3, 64, 5), (2, 4, 40, 2), (3, 7, 24, 3), (8, 3, 64, 4), (8, 16, 128, 2),
          (16, 3, 64, 5), (32, 3, 64, 3), (31, 5, 88, 3), (9, 16, 264, 2), (32, 2, 512, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_attention_against_float64(way, shape, dtype):
    case = AttentionCase(*shape, dtype)
    rows, heads = shape[:2]
    limit, near_zero = tolerance(way, dtype, shape[2])
    causal = np.arange(rows, dtype=np.int32) - rows + case.written + 1
    windows = np.maximum(causal - 37, 0).astype(np.int32)
    for first in (np.zeros(rows, np.int32), windows):
        out, top, total = case.run(way, first, causal)
        assert np.isfinite(out).all()
        for row in range(rows):
            for head in range(heads):
                want, want_top, want_total = case.expected(first, causal, row, head)
                got = out[row, head] / total[row, head]
                assert np.allclose(got, want, rtol=limit, atol=near_zero)
                assert abs(top[row, head] - want_top) < limit * max(1, abs(want_top))
                assert abs(total[row, head] / want_total - 1) < limit


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_attention_rows_are_bit_identical_alone(way, dtype):
    case = AttentionCase(8, 5, 72, 4, dtype)
    end = (np.arange(8) * 13 + 26).astype(np.int32)
    first = np.array([0, 0, 3, 31, 32, 60, 90, 100], np.int32)
    together = case.run(way, first, end)
    for row in range(8):
        alone = case.run(way, first, end, rows=slice(row, row + 1))
        for a, b in zip(alone, together, strict=True):
            assert np.array_equal(a[0], b[row])
    # Blocks without a visible token change nothing.
    narrow = case.run(way, first, end, rows=slice(7, 8), blocks=(3, 4))
    for a, b in zip(narrow, together, strict=True):
        assert np.array_equal(a[0], b[7])


def num_fast(way: str) -> int:
    """Blocks converted for many rows, or bands of several tiles; integers know one way only."""
    if way == TILES:
        return testing.num_amx_bands(in_units=False)
    return testing.num_converted_blocks()


def test_many_attention_rows_have_the_bits_of_one(way):
    """Blocks made float32 once and a joint softmax, against one pair at a time without either."""
    before = num_fast(way)
    for heads, dim in ((3, 64), (3, 128), (9, 40), (3, 136), (1, 64)):
        case = AttentionCase(8, heads, dim, 5, np.float16)
        end = (np.arange(8) * 19 + 20).astype(np.int32)
        first = np.array([0, 0, 3, 31, 32, 60, 90, 152], np.int32)
        together = case.run(way, first, end)
        for row in range(8):
            for head in range(heads):
                single = AttentionCase(8, heads, dim, 5, np.float16)
                single.q = case.q[row : row + 1, head : head + 1]
                one = slice(row, row + 1)
                alone = attend(way, single.q, case.k, case.v, first[one], end[one], 0, 5,
                               case.scale)
                for a, b in zip(alone, together, strict=True):
                    assert np.array_equal(a[0, 0], b[row, head])
    assert way in WORDS or num_fast(way) - before >= 4, "many rows went the way of few"


@pytest.mark.parametrize(("rows", "heads", "bands"), [
    (1, 3, (0, 1)), (4, 4, (0, 1)), (16, 1, (0, 1)), (17, 1, (1, 0)), (32, 4, (1, 0)),
    (17, 8, (1, 1)), (32, 8, (2, 0))])
def test_up_to_16_pairs_become_tiles_in_units(rows, heads, bands):
    """Bands of several tiles, and of one: of 128 pairs, or what is left of them."""
    require_isa("amx")
    case = AttentionCase(rows, heads, 64, 5, np.float16)
    first, end = np.zeros(rows, np.int32), np.full(rows, 150, np.int32)
    before = [testing.num_amx_bands(in_units=way) for way in (False, True)]
    together = case.run(TILES, first, end)
    after = [testing.num_amx_bands(in_units=way) for way in (False, True)]
    assert tuple(b - a for a, b in zip(before, after, strict=True)) == bands
    last = case.run(TILES, first, end, rows=slice(rows - 1, rows))
    for a, b in zip(last, together, strict=True):
        assert np.array_equal(a[0], b[rows - 1])


@pytest.mark.parametrize("token", [0, 15, 16, 31, 40, 62, 63])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_key_that_is_no_number_shows(way, token, value):
    """In every lane and block; rows that do not see it are as they were."""
    case = AttentionCase(3, 3, 64, 2, np.float16)
    first, end = np.array([0, token + 1, 0], np.int32), np.array([64, 64, token], np.int32)
    case.k[1, :, 27:], case.v[1, 27:] = 0.5, 0.5
    if token == 63:
        first[1] = 62
        end[1] = 63
    clean = case.run(way, first, end)
    case.k[token // 32, :, token % 32] = value
    found = case.run(way, first, end)
    assert np.isnan(found[2][0]).all() or np.isnan(found[0][0]).all()
    for a, b in zip(found, clean, strict=True):
        assert np.array_equal(a[1:], b[1:])


@pytest.mark.parametrize("way", FLOATS)
def test_one_attention_row_converts_nothing(way):
    require_isa(level_of(way))
    before = testing.num_converted_blocks()
    case = AttentionCase(1, 3, 64, 5, np.float16)
    case.run(way, np.zeros(1, np.int32), np.array([150], np.int32))
    assert testing.num_converted_blocks() == before


def test_attention_of_rows_that_see_nothing(way):
    case = AttentionCase(3, 2, 16, 2, np.float16)
    first, end = np.array([0, 10, 40], np.int32), np.array([0, 10, 59], np.int32)
    out, top, total = case.run(way, first, end)
    assert not out[:2].any() and not total[:2].any()
    assert np.all(top[:2] == -np.inf)
    assert total[2].min() >= 1 and np.isfinite(out[2]).all()


@pytest.mark.parametrize("way", FLOATS)
def test_attention_where_every_score_is_minus_infinity(way):
    require_isa(level_of(way))
    case = AttentionCase(1, 1, 8, 2, np.float32)
    case.q[:] = 1
    case.k[0] = -np.inf
    out, top, total = case.run(way, np.array([0], np.int32), np.array([32], np.int32))
    assert top[0, 0] == -np.inf and total[0, 0] == 0 and not out.any()
    out, top, total = case.run(way, np.array([0], np.int32), np.array([50], np.int32))
    want, _want_top, _want_total = case.expected([32], [50], 0, 0)
    assert np.allclose(out[0, 0] / total[0, 0], want, rtol=1e-5, atol=1e-6)


def test_attention_splits_join_to_the_whole(way):
    case = AttentionCase(4, 3, 64, 6, np.float16)
    first = np.zeros(4, np.int32)
    end = np.arange(4, dtype=np.int32) + case.written - 3
    parts = [case.run(way, first, end, blocks=(b, b + 2)) for b in (0, 2, 4)]
    top = np.max([p[1] for p in parts], axis=0)
    weights = [np.exp(p[1] - top) for p in parts]
    joined = sum(p[0] * w[..., None] for p, w in zip(parts, weights, strict=True))
    total = sum(p[2] * w for p, w in zip(parts, weights, strict=True))
    whole = case.run(way, first, end)
    _, near_zero = tolerance(way, np.float16, 64)
    assert np.allclose(joined / total[..., None], whole[0] / whole[2][..., None], atol=near_zero)
    assert np.array_equal(top, whole[1])


def split(x: np.ndarray, is_rounded: bool) -> tuple[np.ndarray, np.ndarray]:
    """Two bfloat16 whose sum is nearly ``x``; what a tile of attention holds."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    high = ((bits + np.uint32(0x8000 * is_rounded)) & 0xFFFF0000).view(np.float32)
    low = ((x - high).view(np.uint32) & 0xFFFF0000).view(np.float32)
    return high, low


def tile_dot(q: np.ndarray, k: np.ndarray) -> np.float32:
    """q . k as the AMX unit adds it up: 32 numbers a step, those of each half in a chain."""
    size = -(-q.size // 32) * 32
    (q_high, q_low), (k_high, k_low) = (
        split(np.pad(x, (0, size - x.size)), rounded) for x, rounded in ((q, True), (k, False))
    )
    total = np.float32(0)
    for at in range(0, size, 32):
        for a, b in ((q_low, k_high), (q_high, k_high), (q_high, k_low)):
            half = [np.float32(0), np.float32(0)]
            for i in range(32):
                # The product is exact in float64; the sum is rounded once.
                exact = np.float64(a[at + i]) * np.float64(b[at + i])
                half[i // 16] = np.float32(np.float64(half[i // 16]) + exact)
            total = total + (half[0] + half[1])
    return total


@pytest.mark.parametrize("dim", [8, 40, 64, 256])
def test_tiles_of_attention_multiply_in_the_stated_order(dim):
    """One visible token: the maximum is its score, bit for bit, and the output its value."""
    require_isa("amx")
    case = AttentionCase(3, 2, dim, 2, np.float16, seed=7)
    for token in (0, 17, 31, 32, 58):
        first, end = np.full(3, token, np.int32), np.full(3, token + 1, np.int32)
        out, top, total = case.run(TILES, first, end)
        key = case.k[token // 32, :, token % 32].astype(np.float32)
        for row in range(3):
            for head in range(2):
                score = tile_dot(case.q[row, head], key) * np.float32(case.scale)
                assert top[row, head] == score
        assert np.array_equal(total, np.ones((3, 2)))
        value = case.v[token // 32, token % 32].astype(np.float32)
        assert np.array_equal(out, np.broadcast_to(value, out.shape))


def test_exp_error_of_tiles():
    """As test_exp_error, with float16 keys: the sum is 1 + exp(x), the output exp(x) in 16 bits."""
    require_isa("amx")
    x = np.concatenate([-np.geomspace(1e-4, 80, 2000), [-127, -3e4, 0.0]]).astype(np.float16)
    q = np.zeros((1, 1, 8), np.float32)
    q[..., 0] = 1
    for value in x:
        k, v = np.zeros((1, 8, 32), np.float16), np.zeros((1, 32, 8), np.float16)
        k[0, 0, 1], v[0, 1, 0] = value, 1
        out, top, total = attend(TILES, q, k, v, [0], [2], 0, 1, 1.0)
        want = np.exp(np.float64(value))
        assert top == 0 and abs(total - 1 - want) < 3e-7
        assert abs(out[0, 0, 0] - want) <= 2e-5 * want + 1e-37
        if value in (0, -3e4):
            assert out[0, 0, 0] == want


def test_what_nobody_sees_is_not_multiplied(way):
    """Between what rows of a call see: neither NaN nor infinities of other rows' tokens spread."""
    case = AttentionCase(2, 3, 40, 2, np.float16)
    first, end = np.array([0, 20], np.int32), np.array([8, 50], np.int32)
    clean = case.run(way, first, end)
    case.v[0, 9] = np.nan
    case.k[0, 3, 12] = np.nan
    case.v[0, 15, 1::2] = -np.inf
    for a, b in zip(case.run(way, first, end), clean, strict=True):
        assert np.array_equal(a, b)
