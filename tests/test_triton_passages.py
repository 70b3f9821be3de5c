"""Attention and RoPE over attached passages, against numpy float64 and bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from test_triton_attention import BLOCK, TOLERANCE, Cache
from triton_env import DEVICE, bits, device_tensor, float64, torch

from kernels.attention import (
    SPLIT_TOKENS,
    DecodeWorkspace,
    PassageTable,
    decode_attention,
    passage_context,
    prefill_attention,
)
from kernels.rope import rope_store

HEADS, HEAD_DIM = 4, 32
HEAD, RESERVED = 20, 300  # of every sequence that has a gap


class World:
    """Sequences and passages in one cache. Slots behind a passage's last token hold NaN."""

    def __init__(self, lengths, passages, num_kv_heads=2, dtype=torch.float16):
        self.cache = Cache([*lengths, *passages], num_kv_heads, HEAD_DIM, dtype)
        self.num_sequences = len(lengths)
        self.passages = passages

    def blocks_of(self, number):
        """(block, index of its first token, tokens of the passage) of each block."""
        size = self.passages[number]
        table = self.cache.table[self.num_sequences + number]
        return [(int(table[i]), i * BLOCK, size) for i in range(-(-size // BLOCK))]

    def table(self, seen, width):
        """`seen`: per sequence None, or (numbers of its passages, first token that sees them)."""
        layout = np.zeros((self.num_sequences, 4), np.int32)
        blocks = np.full((self.num_sequences, width, 3), 1 << 28, np.int32)
        for row, item in enumerate(seen):
            if item is not None:
                entries = [e for n in item[0] for e in self.blocks_of(n)]
                layout[row] = (HEAD, RESERVED, item[1], len(entries))
                blocks[row, : len(entries)] = np.array(entries, np.int32).reshape(-1, 3)
        return PassageTable(device_tensor(layout, torch.int32), device_tensor(blocks, torch.int32))

    def run(self, rows, seen, kind="decode", window=0, width=8, max_context=None):
        """rows: (sequence, place); the output is float32, so that no difference is rounded away."""
        shape = (HEADS, HEAD_DIM)
        q = [np.random.default_rng((1, s, p + 1)).standard_normal(shape) for s, p in rows]
        q = device_tensor(q, self.cache.dtype)
        out = torch.empty(q.shape, dtype=torch.float32, device=DEVICE)
        counts = np.bincount([s for s, _ in rows], minlength=self.num_sequences)
        own = self.cache.table[: self.num_sequences]
        capacity = own.shape[1] * BLOCK
        num_kv_heads = self.cache.k.shape[1]
        passages = None if seen is None else self.table(seen, width)
        workspace = DecodeWorkspace.allocate(
            len(rows), HEADS, num_kv_heads, HEAD_DIM,
            capacity + (passage_context(width, HEAD_DIM) if passages else 0), DEVICE)
        inputs = (q, self.cache.k, self.cache.v, device_tensor(own, torch.int32),
                  device_tensor([p for _, p in rows], torch.int32),
                  device_tensor(np.concatenate([[0], np.cumsum(counts)]), torch.int32))
        common = dict(scale=HEAD_DIM**-0.5, max_query_rows=int(counts.max()), window=window,
                      out=out, passages=passages)
        if kind == "decode":
            decode_attention(*inputs, workspace, max_context=max_context or capacity, **common)
        else:
            prefill_attention(*inputs, **common)
        assert not workspace.arrivals.any(), "arrival counters must be zero after a launch"
        return out, float64(q)

    def expected(self, q, sequence, place, seen, window):
        """(heads, head_dim) in float64: what a row sees, by positions."""
        def position(token):
            return token + (RESERVED if seen is not None and token >= HEAD else 0)

        own = position(place)
        keys, values = [], []
        if seen is not None and place >= seen[1]:
            for number in seen[0]:
                for i in range(self.passages[number]):
                    if window == 0 or HEAD + i > own - window:
                        keys.append(self.cache.keys[self.num_sequences + number][i])
                        values.append(self.cache.values[self.num_sequences + number][i])
        for token in range(place + 1):
            if window == 0 or position(token) > own - window:
                keys.append(self.cache.keys[sequence][token])
                values.append(self.cache.values[sequence][token])
        k, v = np.array(keys), np.array(values)
        out = np.zeros_like(q)
        for h in range(HEADS):
            group = h // (HEADS // k.shape[1])
            scores = k[:, group] @ q[h] * HEAD_DIM**-0.5
            p = np.exp(scores - scores.max())
            out[h] = p @ v[:, group] / p.sum()
        return out

    def check(self, rows, seen, window=0, **options):
        out, q = self.run(rows, seen, window=window, **options)
        for i, (s, p) in enumerate(rows):
            wanted = self.expected(q[i], s, p, None if seen is None else seen[s], window)
            np.testing.assert_allclose(float64(out[i]), wanted, atol=TOLERANCE[self.cache.dtype],
                                       rtol=0, err_msg=f"row {i}: {(s, p)}")
        return out


# Sequences: with passages, with a gap alone, plain; passages of one token, a block, and more.
SEEN = [([0, 1, 2], 60), ([], 0), None, ([2, 2, 1], 20)]
LENGTHS, SIZES = [70, 40, 33, 45], [1, 64, 45]


@pytest.mark.parametrize("window", [0, 30, 310, 345])
@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_rows_see_their_passages_and_no_others(kind, window):
    """Before and behind the first that sees them, in the head, at its end, windows in between."""
    world = World(LENGTHS, SIZES)
    rows = [(0, p) for p in range(56, 68)] + [(1, 19), (1, 20), (1, 39), (2, 32), (3, 44)]
    world.check(rows, SEEN, kind=kind, window=window)


@pytest.mark.parametrize("dtype", [torch.bfloat16] + [torch.float32] * (DEVICE == "cpu"))
def test_other_types(dtype):
    world = World([50], [40], dtype=dtype)
    for kind in ("decode", "prefill"):
        world.check([(0, 48), (0, 49)], [([0], 49)], kind=kind)


def test_many_splits_of_passages_and_of_the_sequence_join_in_one_order():
    """More splits of passages than are joined at once; bits depend on no bound of the launch."""
    world = World([SPLIT_TOKENS + 50], [700, 500])
    seen, rows = [([0, 1], SPLIT_TOKENS + 10)], [(0, SPLIT_TOKENS + 9), (0, SPLIT_TOKENS + 49)]
    out = world.check(rows, seen, width=40)
    wide, _ = world.run(rows, seen, width=128)
    assert bits(wide) == bits(out)
    narrow, _ = world.run(rows, seen, width=40, max_context=SPLIT_TOKENS + 50)
    assert bits(narrow) == bits(out)
    for i, row in enumerate(rows):
        alone, _ = world.run([row], seen, width=40)
        assert bits(alone[0]) == bits(out[i])


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_rows_without_passages_have_the_bits_of_a_plain_launch(kind):
    world = World([70, 300], [64])
    rows = [(0, 68), (0, 69), (1, 298), (1, 299)]
    plain, _ = world.run(rows, None, kind=kind)
    beside, _ = world.run(rows, [([0], 69), None], kind=kind)
    assert bits(beside[2:]) == bits(plain[2:])
    # A gap changes positions, which the row's keys show, and not what attention adds up.
    assert bits(beside[0]) == bits(plain[0]) and bits(beside[1]) != bits(plain[1])


def test_padding_and_a_table_that_promises_too_much():
    """A row of position -1 sees nothing; more blocks than the table has room for are not read."""
    world = World([40], [64])
    out, _ = world.run([(0, 39), (0, -1)], [([0], 30)])
    assert not out[1].any() and torch.isfinite(out[0]).all()
    table = world.table([([0], 30)], 2)
    table.layout[0, 3] = 1 << 20
    world.table = lambda seen, width: table
    again, _ = world.run([(0, 39)], [([0], 30)], width=2)
    assert bits(again[0]) == bits(out[0])


def test_wrong_tables_are_refused():
    world = World([40], [64])
    good = world.table([([0], 30)], 8)
    for layout, blocks, message in (
        (good.layout[:, :3], good.blocks, "passages.layout must have shape"),
        (good.layout, good.blocks[:, :0], "room for a block"),
        (good.layout, good.blocks.repeat(2, 1, 1), "passages.blocks must have shape"),
    ):
        wrong = PassageTable(layout.contiguous(), blocks)
        world.table = lambda seen, width, wrong=wrong: wrong
        with pytest.raises(ValueError, match=message):
            world.run([(0, 39)], [([0], 30)])


def test_workspaces_must_hold_the_passages_as_well():
    assert passage_context(1, HEAD_DIM) == passage_context(32, HEAD_DIM) == 4 * SPLIT_TOKENS
    assert passage_context(33, 256) == 6 * SPLIT_TOKENS
    workspace = DecodeWorkspace.allocate(1, HEADS, 2, HEAD_DIM, 4 * SPLIT_TOKENS, DEVICE)
    q = device_tensor(np.zeros((1, HEADS, HEAD_DIM)), torch.float16)
    with pytest.raises(ValueError, match="max_context must be 1 to 0 for this workspace"):
        workspace.check(q, 2, 1, 4)


@pytest.mark.parametrize("interleaved", [False, True])
def test_tokens_behind_the_head_are_rotated_by_later_positions(interleaved):
    """Stored at their places; what is at no position any more is left alone."""
    rng, num_positions = np.random.default_rng(3), 400
    q, k, v = (device_tensor(rng.standard_normal((4, n, HEAD_DIM)), torch.float32)
               for n in (2, 1, 1))  # fmt: skip
    angles = np.arange(num_positions)[:, None] * rng.uniform(0.001, 1, HEAD_DIM // 2)[None]
    cos, sin = (device_tensor(f(angles), torch.float32) for f in (np.cos, np.sin))
    table = device_tensor([[0, 1, 2, 3], [4, 5, 6, 7]], torch.int32)
    rows = device_tensor([0, 0, 1, 0], torch.int32)
    layout = device_tensor([[HEAD, RESERVED, 0, 0], [0, 0, 0, 0]], torch.int32)

    def run(positions, **options):
        cache = [torch.zeros((8, 1, BLOCK, HEAD_DIM), device=DEVICE) for _ in range(2)]
        out = rope_store(q.clone(), k, v, cos, sin, device_tensor(positions, torch.int32), rows,
                         table, *cache, interleaved=interleaved, **options)
        return out, cache[0], cache[1]

    places = [19, 20, 20, 101]  # the last one would be at position 401
    out, keys, values = run(places, layout=layout)
    later, late_keys, _ = run([19, 320, 20, -1])
    assert torch.equal(out[:3], later[:3])
    assert torch.equal(keys[0, 0, 19], late_keys[0, 0, 19])
    assert torch.equal(keys[4, 0, 20], late_keys[4, 0, 20])
    assert torch.equal(values[0, 0, 20], v[1, 0]) and not torch.equal(keys[0, 0, 20], k[1, 0])
    assert not keys[3].any() and not values[3].any()
    with pytest.raises(ValueError, match="layout must have shape"):
        run(places, layout=layout[:1])
