"""Paged attention against numpy float64, and that a row's bits depend on nothing but the row."""

from __future__ import annotations

import numpy as np
import pytest
from triton_env import DEVICE, bits, device_tensor, float64, torch

from kernels.attention import SPLIT_TOKENS, DecodeWorkspace, decode_attention, prefill_attention

BLOCK = 32
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
# float32 caches work in the interpreter only.
DTYPES = [torch.float16, torch.bfloat16] + ([torch.float32] if DEVICE == "cpu" else [])


class Cache:
    """Sequences of random keys and values in blocks taken in random order, junk everywhere else."""

    def __init__(self, lengths, num_kv_heads, head_dim, dtype, seed=0, spare_blocks=3):
        rng = np.random.default_rng(seed)
        blocks_of = [-(-n // BLOCK) for n in lengths]
        num_blocks = sum(blocks_of) + spare_blocks
        order = rng.permutation(num_blocks)
        width = max(blocks_of) + 1
        # Entries behind the sequence's end must not be read: they point far outside the cache.
        self.table = np.full((len(lengths), width), 1 << 28, np.int32)
        shape = (num_blocks, 2, num_kv_heads, BLOCK, head_dim)
        cache = torch.full(shape, float("nan"), dtype=dtype)
        self.keys, self.values = [], []
        taken = 0
        for i, length in enumerate(lengths):
            both = torch.as_tensor(rng.standard_normal((2, length, num_kv_heads, head_dim)))
            both = both.to(dtype)
            self.keys.append(float64(both[0]))
            self.values.append(float64(both[1]))
            for b in range(blocks_of[i]):
                block = order[taken]
                taken += 1
                self.table[i, b] = block
                run = both[:, b * BLOCK : (b + 1) * BLOCK]
                cache[block, :, :, : run.shape[1]] = run.transpose(1, 2)
        cache = cache.to(DEVICE)
        # K and V of one block lie together, so both are strided in the block dimension.
        self.k, self.v = cache[:, 0], cache[:, 1]
        self.dtype = dtype


def reference(q, keys, values, position, window, scale):
    """(num_heads, head_dim) in float64 for one query row."""
    first = max(0, position - window + 1) if window else 0
    k, v = keys[first : position + 1], values[first : position + 1]
    group = q.shape[0] // k.shape[1]
    out = np.zeros_like(q)
    for h in range(q.shape[0]):
        scores = k[:, h // group] @ q[h] * scale
        p = np.exp(scores - scores.max())
        out[h] = p @ v[:, h // group] / p.sum()
    return out


def run(cache, rows, num_heads, kind="decode", window=0, out_dtype=torch.float32, **options):
    """rows: (sequence, position) per query row, rows of a sequence together -> (out, q).

    The output is float32 by default: rounding to half precision would hide most differences of
    order from comparisons bit for bit.
    """
    head_dim = cache.k.shape[-1]
    # The query of a row depends on the row only, whatever the batch.
    shape = (num_heads, head_dim)
    q = [np.random.default_rng((1, s, p + 1)).standard_normal(shape) for s, p in rows]
    q = device_tensor(q, cache.dtype)
    out = torch.empty(q.shape, dtype=out_dtype, device=DEVICE)
    counts = np.bincount([s for s, _ in rows], minlength=len(cache.table))
    begin = device_tensor(np.concatenate([[0], np.cumsum(counts)]), torch.int32)
    positions = device_tensor([p for _, p in rows], torch.int32)
    table = device_tensor(cache.table, torch.int32)
    common = dict(scale=head_dim**-0.5, max_query_rows=int(counts.max()), window=window, out=out)
    num_kv_heads = cache.k.shape[1]
    capacity = cache.table.shape[1] * BLOCK
    workspace = DecodeWorkspace.allocate(
        len(rows), num_heads, num_kv_heads, head_dim, capacity, DEVICE
    )
    args = (q, cache.k, cache.v, table, positions, begin)
    if kind == "decode":
        options.setdefault("max_context", capacity)
        out = decode_attention(*args, workspace, **common, **options)
    else:
        out = prefill_attention(*args, **common)
    assert not workspace.arrivals.any(), "arrival counters must be zero after a launch"
    return out, float64(q)


def check(cache, rows, num_heads, window=0, **options):
    out, q = run(cache, rows, num_heads, window=window, **options)
    scale = q.shape[-1] ** -0.5
    for i, (s, p) in enumerate(rows):
        expected = reference(q[i], cache.keys[s], cache.values[s], p, window, scale)
        np.testing.assert_allclose(float64(out[i]), expected, atol=TOLERANCE[cache.dtype], rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 111])
def test_decode_matches_reference(dtype, window):
    # 1, a full block, one more, one short of a split, more than one split; 3 query heads per KV
    # head.
    lengths = [1, 32, 33, SPLIT_TOKENS - 1, SPLIT_TOKENS + 41]
    cache = Cache(lengths, num_kv_heads=2, head_dim=64, dtype=dtype)
    check(cache, [(i, n - 1) for i, n in enumerate(lengths)], num_heads=6, window=window)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(1, 1, 32), (4, 4, 80), (16, 1, 64), (7, 1, 128), (2, 1, 256)],
)
def test_decode_shapes(num_heads, num_kv_heads, head_dim):
    cache = Cache([70, 300], num_kv_heads, head_dim, torch.float16)
    check(cache, [(0, 69), (1, 299)], num_heads, out_dtype=torch.float16)


@pytest.mark.parametrize("window", [0, 40])
def test_verification_rows_match_reference_and_decode(window):
    # 11 rows across a split boundary, 5 rows per tile.
    begin = SPLIT_TOKENS - 6
    cache = Cache([64, SPLIT_TOKENS + 5], num_kv_heads=1, head_dim=64, dtype=torch.float16)
    rows = [(0, 63)] + [(1, begin + i) for i in range(11)]
    check(cache, rows, num_heads=3, window=window)
    together, _ = run(cache, rows, 3, window=window)
    for i, row in enumerate(rows):
        alone, _ = run(cache, [row], 3, window=window)
        assert bits(alone[0]) == bits(together[i]), f"row {row} depends on its batch"


@pytest.mark.parametrize("window", [0, 1024])
def test_many_splits_join_in_one_order(window):
    # More splits than are joined at once; with the window, row 1279 alone starts at split 1, but
    # its tile at split 0.
    cache = Cache([1400], num_kv_heads=1, head_dim=32, dtype=torch.float16)
    rows = [(0, 1278), (0, 1279), (0, 1399)]
    check(cache, rows, 2, window=window)
    together, _ = run(cache, rows, 2, window=window)
    for i, row in enumerate(rows):
        alone, _ = run(cache, [row], 2, window=window)
        assert bits(alone[0]) == bits(together[i])


def test_decode_bits_do_not_depend_on_the_grid():
    cache = Cache([300, 90], num_kv_heads=2, head_dim=32, dtype=torch.bfloat16)
    rows = [(0, 299), (1, 89)]
    wide, _ = run(cache, rows, 4)
    narrow, _ = run(cache, rows, 4, max_context=300)
    assert bits(wide) == bits(narrow)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 37])
def test_prefill_matches_reference(dtype, window):
    cache = Cache([111, 45], num_kv_heads=2, head_dim=32, dtype=dtype)
    rows = [(0, p) for p in range(70, 111)] + [(1, p) for p in range(45)]
    check(cache, rows, num_heads=6, kind="prefill", window=window)


@pytest.mark.parametrize("window", [0, 50])
def test_prefill_bits_do_not_depend_on_chunks_or_batch(window):
    cache = Cache([111, 45], num_kv_heads=1, head_dim=32, dtype=torch.float16)
    rows = [(0, p) for p in range(111)] + [(1, p) for p in range(45)]
    whole, _ = run(cache, rows, 4, kind="prefill", window=window)
    for begin, end in ((0, 1), (1, 64), (64, 111)):
        chunk, _ = run(cache, rows[begin:end], 4, kind="prefill", window=window)
        assert bits(chunk) == bits(whole[begin:end])


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_padding_rows_are_zero_and_overflow_is_nan(kind):
    cache = Cache([40], num_kv_heads=1, head_dim=32, dtype=torch.float16)
    capacity = cache.table.shape[1] * BLOCK
    out, _ = run(cache, [(0, 39), (0, -1)], 2, kind=kind)
    assert not out[1].any()
    alone, _ = run(cache, [(0, 39)], 2, kind=kind)
    assert bits(out[0]) == bits(alone[0])
    cache.table[:] = cache.table[0, 0]
    out, _ = run(cache, [(0, 31), (0, capacity)], 2, kind=kind)
    assert torch.isnan(out[1]).all() and torch.isfinite(out[0]).all()


def test_errors_name_the_argument():
    cache = Cache([40], num_kv_heads=2, head_dim=32, dtype=torch.float16)
    with pytest.raises(ValueError, match="multiple of the KV heads, got 3 and 2"):
        run(cache, [(0, 39)], 3)
    with pytest.raises(ValueError, match="at most 16 query heads may share a KV head, got 17"):
        run(cache, [(0, 39)], 34)
    with pytest.raises(
        ValueError, match="max_context must be 1 to 256 for this workspace, got 300"
    ):
        run(cache, [(0, 39)], 2, max_context=300)
    with pytest.raises(ValueError, match="window must be >= 0"):
        run(cache, [(0, 39)], 2, window=-1)
    cache.v = cache.v[:1]
    with pytest.raises(ValueError, match="v_cache must have shape"):
        run(cache, [(0, 39)], 2)
    cache.k = cache.k.to(torch.float64)
    with pytest.raises(TypeError, match="k_cache must have dtype"):
        run(cache, [(0, 39)], 2)
