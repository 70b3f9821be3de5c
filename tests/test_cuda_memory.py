"""Block copy, row gather and seen tokens of the CUDA module, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from helpers_cuda import BACKENDS, Emulation, bits_of_seen

from flarecore.errors import ConfigError

HEADS, TOKENS, HEAD_DIM = 3, 32, 40  # 80 bytes a token in float16: five units of 16
TOKEN_BYTES = HEAD_DIM * 2
BLOCK_BYTES = HEADS * TOKENS * TOKEN_BYTES


@pytest.fixture(params=BACKENDS, ids=["emulated", "device"])
def backend(request):
    return request.param()


def random_cache(num_blocks, seed=0):
    """K and V as views of one allocation: (num_blocks, 2, HEADS, TOKENS, HEAD_DIM) uint16."""
    shape = (num_blocks, 2, HEADS, TOKENS, HEAD_DIM)
    return np.random.default_rng(seed).integers(1, 1 << 16, shape).astype(np.uint16)


def cache_call(backend, name, layers, **arguments):
    memory = [backend.put(layer) for layer in layers]
    starts = [backend.address(m) + part * BLOCK_BYTES for m in memory for part in (0, 1)]
    settings = {"caches": starts, "num_blocks": len(layers[0]), "num_heads": HEADS,
                "token_bytes": TOKEN_BYTES, "block_stride_bytes": 2 * BLOCK_BYTES}  # fmt: skip
    backend.call(name, **{**settings, **arguments})
    return [backend.get(m) for m in memory]


def copied(layer, copies):
    out = layer.copy()
    for source, following, destination, first, count in copies:
        both = np.concatenate([layer[source], layer[following]], axis=2)
        out[destination] = 0
        out[destination, :, :, :count] = both[:, :, first : first + count]
    return out


@pytest.mark.parametrize("copies", [
    [(1, 1, 4, 0, 32)], [(1, 6, 4, 0, 5), (1, 6, 0, 31, 0), (6, 1, 2, 1, 31)],
    [(3, 5, 7, 20, 32), (5, 6, 1, 31, 2), (6, 3, 2, 17, 15), (3, 6, 0, 1, 32)], [],
])  # fmt: skip
def test_copy_moves_tokens_and_clears_the_rest(backend, copies):
    """Whole and partly filled blocks, and tokens that begin inside of one block."""
    layers = [random_cache(8, seed) for seed in range(3)]
    expected = [copied(layer, copies) for layer in layers]
    found = cache_call(backend, "copy_blocks", layers, copies=copies)
    assert all((f == e).all() for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("num_tokens", [0, 1, 17, 31, 32])
def test_a_block_is_truncated_where_it_is(backend, num_tokens):
    layers = [random_cache(8, seed) for seed in range(2)]
    copies = [(5, -1, 5, 0, num_tokens), (2, 3, 4, 20, 30), (6, 6, 6, 0, 3)]
    for found, layer in zip(cache_call(backend, "copy_blocks", layers, copies=copies), layers,
                            strict=True):
        assert (found == copied(layer, copies)).all()
        assert (found[5, :, :, :num_tokens] == layer[5, :, :, :num_tokens]).all()
        assert not found[5, :, :, num_tokens:].any()


def test_a_block_that_is_not_needed_is_not_looked_at(backend):
    layer = random_cache(5)
    found = cache_call(backend, "copy_blocks", [layer], copies=[(1, -1, 3, 4, 28)])[0]
    assert (found == copied(layer, [(1, 1, 3, 4, 28)])).all()


def test_more_copies_and_caches_than_one_launch_takes(backend):
    layers = [random_cache(420, seed) for seed in range(1)] * 60
    rng = np.random.default_rng(3)
    copies = [(int(s), 209 - int(s), 210 + d, int(rng.integers(0, 32)), int(rng.integers(0, 33)))
              for d, s in enumerate(rng.integers(0, 210, 200))]  # fmt: skip
    expected = copied(layers[0], copies)
    assert (cache_call(backend, "copy_blocks", layers[:1], copies=copies)[0] == expected).all()
    small = [layer[:6] for layer in layers]
    for found in cache_call(backend, "copy_blocks", small, copies=[(1, 2, 5, 30, 9)]):
        assert (found == copied(small[0], [(1, 2, 5, 30, 9)])).all()


WRONG_COPIES = {
    "source": ([(8, 0, 1, 0, 1)], "copies names block 8, the cache has blocks 0 to 7"),
    "following": ([(0, 8, 1, 31, 2)], "copies names block 8"),
    "destination": ([(0, 0, -1, 0, 1)], "copies names block -1"),
    "tokens": ([(0, 0, 1, 0, 33)], "take 0 to 32 tokens from one of 0 to 31 on, got 33"),
    "first": ([(0, 0, 1, 32, 0)], "got 0 from 32"),
    "twice": ([(0, 0, 1, 0, 1), (2, 2, 1, 0, 1)], "name a destination twice, got block 1 again"),
    "chain": ([(0, 0, 1, 0, 1), (1, 1, 2, 0, 1)], "not write a block that one of them reads, got"),
    "in place": ([(1, 1, 1, 2, 4)], "one of them reads, got block 1"),
    "truncated": ([(1, 1, 1, 0, 4), (1, 1, 2, 0, 4)], "one of them reads, got block 1"),
    "truncated twice": ([(1, 1, 1, 0, 4), (1, 1, 1, 0, 3)], "name a destination twice"),
    "chain behind": ([(0, 1, 2, 31, 9), (3, 3, 1, 0, 9)], "one of them reads, got block 1"),
    "shape": ([(0, 1)], r"each of copies must have 5 numbers, got \(0, 1\)"),
    "type": ([(0, 0, 1, 0, 2.0)], "copies must be an integer, got 2.0"),
    "no list": (5, "copies must be a list or tuple, got 5"),
}


@pytest.mark.parametrize("name", WRONG_COPIES)
def test_wrong_copies_are_refused(name):
    copies, message = WRONG_COPIES[name]
    with pytest.raises(ConfigError, match=message):
        cache_call(Emulation(), "copy_blocks", [random_cache(8)], copies=copies)


@pytest.mark.parametrize(("wrong", "message"), [
    ({"token_bytes": 72}, "token_bytes must be a multiple of 16, got 72"),
    ({"block_stride_bytes": BLOCK_BYTES - 16}, "block_stride_bytes must be at least num_heads"),
    ({"block_stride_bytes": 2 * BLOCK_BYTES + 8}, "block_stride_bytes must be a multiple of 16"),
    ({"caches": [4104]}, "caches must be aligned to 16 bytes"),
    ({"caches": [0]}, "caches must be the address"),
    ({"num_heads": 1 << 16, "token_bytes": 1 << 16}, "must be at most 2147483647"),
])  # fmt: skip
def test_wrong_layouts_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        cache_call(Emulation(), "copy_blocks", [random_cache(3)], copies=[(0, 0, 1, 0, 1)], **wrong)


@pytest.mark.parametrize("row_bytes", [1, 6, 111, 1152, 4608, 128256 * 4])
@pytest.mark.parametrize("pad", [0, 1, 4])
def test_gather_rows(backend, row_bytes, pad):
    source = np.random.default_rng(row_bytes).integers(0, 255, (9, row_bytes + pad), np.uint8)
    indices = np.array([3, 8, 0, 3, 9, -1, 2**31 - 1], np.int32)
    memory = backend.put(source)
    out = backend.put(np.full((7, row_bytes + pad), 7, np.uint8))
    index_memory = backend.put(indices)
    backend.call("gather_rows", source=backend.address(memory), num_source_rows=9,
                 source_stride_bytes=row_bytes + pad, indices=backend.address(index_memory),
                 num_rows=7, row_bytes=row_bytes, out=backend.address(out),
                 out_stride_bytes=row_bytes + pad)  # fmt: skip
    found = backend.get(out)
    assert (found[:4, :row_bytes] == source[[3, 8, 0, 3], :row_bytes]).all()
    assert (found[4:, :row_bytes] == 255).all(), "an index out of range gives NaN bytes"
    assert (found[:, row_bytes:] == 7).all()


def test_gather_refuses_overlap_and_short_strides():
    memory = np.zeros(4096, np.uint8)
    at = memory.ctypes.data
    call = {"source": at, "source_stride_bytes": 64, "num_source_rows": 4, "indices": at + 3072,
            "num_rows": 2, "row_bytes": 64, "out": at + 1024, "out_stride_bytes": 64}  # fmt: skip
    for wrong, message in (
        ({"out": at + 128}, "out must not overlap source"),
        ({"source_stride_bytes": 63}, "source_stride_bytes must be at least row_bytes = 64"),
        ({"out_stride_bytes": 32}, "out_stride_bytes must be at least row_bytes = 64"),
        ({"indices": at + 3}, "indices must be aligned to 4 bytes"),
        ({"row_bytes": 0}, "row_bytes must be 1 to"),
    ):
        with pytest.raises(ConfigError, match=message):
            Emulation().call("gather_rows", **{**call, **wrong})


def test_mark_seen(backend):
    vocab = 1000
    ids = np.array([5, 999, 31, 32, 5, -1, 1000, 2**31 - 1], np.int32)
    seen = backend.put(bits_of_seen(vocab, [7, 800]))
    tokens = backend.put(ids)
    call = {"seen": backend.address(seen), "vocab_size": vocab, "tokens": backend.address(tokens),
            "num_tokens": len(ids)}  # fmt: skip
    backend.call("mark_seen", clear=False, **call)
    assert (backend.get(seen) == bits_of_seen(vocab, [5, 7, 31, 32, 800, 999])).all()
    backend.call("mark_seen", **call)
    assert (backend.get(seen) == bits_of_seen(vocab, [5, 31, 32, 999])).all()
    backend.call("mark_seen", **{**call, "tokens": 0, "num_tokens": 0})
    assert not backend.get(seen).any()
    with pytest.raises(ConfigError, match="tokens must be an address for 8 tokens"):
        Emulation().call("mark_seen", seen=4096, vocab_size=9, num_tokens=8)
