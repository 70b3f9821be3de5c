"""Guarantee 4: sequences against plain lists of token ids under random walks."""

import numpy as np
import pytest
from helpers import DECODE, TinyLlama, open_engine, random_ids, result_bits

from flarecore.errors import ClosedError, ConfigError, OutOfBlocksError

SPEC = TinyLlama(
    num_layers=1, num_heads=2, num_kv_heads=1, hidden_size=32, ffn_size=64, context_length=1024
)
# What walks are made of: few phrases, so that different sequences share prefixes.
PHRASES = [random_ids(n, seed=n) for n in (1, 3, 31, 32, 33, 64, 70)]
PROBE = random_ids(5, seed=99)


def block_budget(num_blocks, compute="float32"):
    """Bytes of a KV cache with so many blocks."""
    with open_engine(SPEC, compute=compute) as engine:
        return num_blocks * engine.stats().block_size_bytes


class Oracle:
    """What a sequence with these ids must give, from engines that never saw anything else."""

    def __init__(self, compute):
        self.compute = compute

    def ask(self, token_ids, what):
        with open_engine(SPEC, compute=self.compute) as engine:
            return what(engine.sequence(token_ids))


def score_bits(sequence):
    return sequence.score(PROBE).probs.tobytes()


def decode_bits(sequence, num_tokens):
    return result_bits(sequence.decode(num_tokens, **DECODE))


class Walk:
    """Pairs of (sequence, list of ids), and random steps that change both alike."""

    def __init__(self, seed, *, compute="float32", **options):
        self.rng = np.random.default_rng(seed)
        self.engine = open_engine(SPEC, compute=compute, **options)
        self.oracle = Oracle(compute)
        self.pairs = []
        self.checkpoints = []  # (pair, checkpoint, ids)
        self.num_refused = 0
        self.counts = {}

    def pick(self):
        return self.pairs[self.rng.integers(len(self.pairs))]

    def open(self):
        if len(self.pairs) < 5:
            self.pairs.append([self.engine.sequence(), []])

    def extend(self):
        pair = self.pick()
        phrase = PHRASES[self.rng.integers(len(PHRASES))]
        if len(pair[1]) + len(phrase) > 400:
            return
        try:
            pair[0].extend(phrase)
            pair[1] += phrase
        except OutOfBlocksError:
            self.num_refused += 1

    def decode(self):
        sequence, ids = self.pick()
        if not ids or len(ids) > 380:
            return
        num_tokens = int(self.rng.integers(1, 20))
        try:
            got = decode_bits(sequence, num_tokens)
        except OutOfBlocksError:
            self.num_refused += 1
            return
        if self.rng.random() < 0.3:
            assert got == self.oracle.ask(ids, lambda fresh: decode_bits(fresh, num_tokens))
        ids += got[0]

    def score(self):
        sequence, ids = self.pick()
        if not ids:
            return
        try:
            assert score_bits(sequence) == self.oracle.ask(ids, score_bits)
        except OutOfBlocksError:
            self.num_refused += 1

    def truncate(self):
        sequence, ids = self.pick()
        kept = int(self.rng.integers(0, len(ids) + 1))
        sequence.truncate(kept)
        del ids[kept:]

    def checkpoint(self):
        pair = self.pick()
        if len(self.checkpoints) < 6:
            self.checkpoints.append((pair, pair[0].checkpoint(), list(pair[1])))

    def rollback(self):
        if not self.checkpoints:
            return
        index = int(self.rng.integers(len(self.checkpoints)))
        pair, checkpoint, ids = self.checkpoints[index]
        if pair in self.pairs:
            pair[0].rollback(checkpoint)
            pair[1][:] = ids
        if self.rng.random() < 0.5 or pair not in self.pairs:
            del self.checkpoints[index]

    def fork(self):
        sequence, ids = self.pick()
        if len(self.pairs) < 5:
            self.pairs.append([sequence.fork(), list(ids)])

    def close(self):
        if len(self.pairs) > 1:
            self.pairs.pop(int(self.rng.integers(len(self.pairs))))[0].close()

    def check(self):
        self.engine.check_integrity()
        for sequence, ids in self.pairs:
            assert sequence.token_ids == ids
            assert sequence.num_tokens == len(ids)

    def run(self, num_steps):
        steps = ["open", "extend", "decode", "score", "truncate", "checkpoint", "rollback", "fork",
                 "close"]  # fmt: skip
        weights = np.array([1, 4, 4, 2, 2, 1.5, 1.5, 2, 1])
        self.open()
        for _ in range(num_steps):
            step = steps[self.rng.choice(len(steps), p=weights / weights.sum())]
            self.counts[step] = self.counts.get(step, 0) + 1
            getattr(self, step)()
            self.check()
        return self

    def finish(self):
        """Everything is given back: no block stays held."""
        for sequence, _ in self.pairs:
            sequence.close()
        self.checkpoints.clear()
        self.engine.check_integrity()
        assert self.engine.stats().num_held_blocks == 0
        assert self.engine.stats().num_sequences == 0
        self.engine.close()


@pytest.mark.parametrize("compute, seed", [("float32", 1), ("float32", 2), ("int8", 3)])
def test_random_walk(compute, seed):
    walk = Walk(seed, compute=compute).run(250)
    assert len(walk.counts) == 9 and walk.num_refused == 0
    walk.finish()


@pytest.mark.parametrize("seed", [4, 5])
def test_random_walk_in_a_tiny_cache(seed):
    """Sixteen blocks: refusals and evictions all the time, and nothing else changes."""
    walk = Walk(seed, kv_cache_bytes=block_budget(16)).run(300)
    assert walk.num_refused > 3, "the budget was never reached"
    walk.finish()


def test_random_walk_of_operations_at_once():
    """Operations on all sequences together, some cancelled at any moment."""
    from flarecore.errors import CancelledError

    engine = open_engine(SPEC, threads=2, max_batch_tokens=48)
    rng = np.random.default_rng(6)
    ids = [random_ids(40 + i, seed=i) for i in range(6)]
    sequences = [engine.sequence(some) for some in ids]
    num_cancelled, num_finished = 0, 0
    for _ in range(25):
        operations = []
        for sequence in sequences:
            kind = rng.integers(3)
            phrase = PHRASES[rng.integers(len(PHRASES))]
            if kind == 0:
                operations.append((sequence.extend_async(phrase), lambda _, p=phrase: p))
            elif kind == 1:
                decode = sequence.decode_async(int(rng.integers(1, 30)), **DECODE)
                operations.append((decode, lambda result: list(result.token_ids)))
            else:
                operations.append((sequence.score_async(phrase), lambda _: []))
        for operation, _ in operations:
            if rng.random() < 0.4:
                operation.cancel()
        for i, (operation, added) in enumerate(operations):
            try:
                ids[i] = ids[i] + added(operation.result())
                num_finished += 1
            except CancelledError:
                num_cancelled += 1
            assert sequences[i].token_ids == ids[i]
            if len(ids[i]) > 700:
                sequences[i].truncate(60)
                ids[i] = ids[i][:60]
        engine.check_integrity()
    assert num_cancelled > 5 and num_finished > 20
    for sequence, some in zip(sequences, ids, strict=True):
        assert score_bits(sequence) == Oracle("float32").ask(some, score_bits)


def test_shared_prefix_is_held_once():
    engine = open_engine(SPEC)
    parent = engine.sequence(random_ids(32 * 4 + 1))
    alone = engine.stats().num_held_blocks
    children = [parent.fork() for _ in range(4)]
    assert engine.stats().num_held_blocks == alone, "a fork copied blocks"
    for i, child in enumerate(children):
        child.extend(random_ids(3, seed=i))
    # Each child writes into one block of its own; the four full ones stay shared.
    assert engine.stats().num_held_blocks <= alone + 4 * 1 + 1
    same = engine.sequence(random_ids(32 * 4 + 1))
    assert engine.stats().num_held_blocks <= alone + 4 * 1 + 2, "an equal prefix was not shared"
    engine.check_integrity()
    for sequence in (parent, same, *children):
        sequence.close()
    assert engine.stats().num_held_blocks == 0


def test_evicted_prefix_is_computed_again():
    """The least recently used blocks go first, and what comes back is the same."""
    engine = open_engine(SPEC, kv_cache_bytes=block_budget(10))
    first = engine.sequence(random_ids(161))
    expected = score_bits(first)
    first.close()
    assert engine.sequence().extend(random_ids(161)).num_reused >= 128
    filler = engine.sequence(random_ids(300, seed=1))
    filler.close()
    again = engine.sequence()
    assert again.extend(random_ids(161)).num_reused < 128, "nothing was evicted"
    assert score_bits(again) == expected


def test_out_of_blocks_changes_nothing():
    engine = open_engine(SPEC, kv_cache_bytes=block_budget(6))
    keeper = engine.sequence(random_ids(100))
    expected = score_bits(keeper)
    other = engine.sequence(random_ids(20, seed=1))
    before = other.token_ids
    with pytest.raises(OutOfBlocksError, match="block"):
        other.extend(random_ids(200, seed=2))
    with pytest.raises(OutOfBlocksError):
        other.decode(300, **DECODE)
    with pytest.raises(OutOfBlocksError):
        other.score(random_ids(200, seed=2))
    with pytest.raises(OutOfBlocksError):
        engine.sequence(random_ids(300, seed=3))
    engine.check_integrity()
    assert other.token_ids == before
    assert score_bits(keeper) == expected
    # What is given back can be used at once.
    keeper.close()
    other.extend(random_ids(100, seed=2))
    assert score_bits(other) == Oracle("float32").ask(before + random_ids(100, seed=2), score_bits)


def test_checkpoint_outlives_everything():
    """Rollback after truncation to nothing, and after the blocks were wanted by others."""
    # 5 blocks for the checkpoint, 7 for the other sequence, 1 to write past the shared last one.
    engine = open_engine(SPEC, kv_cache_bytes=block_budget(13))
    sequence = engine.sequence(random_ids(130))
    expected = score_bits(sequence)
    checkpoint = sequence.checkpoint()
    assert checkpoint.num_tokens == 130
    sequence.truncate(0)
    other = engine.sequence(random_ids(200, seed=1))
    with pytest.raises(OutOfBlocksError):
        other.extend(random_ids(200, seed=2))
    sequence.rollback(checkpoint)
    assert sequence.token_ids == random_ids(130)
    assert score_bits(sequence) == expected
    engine.check_integrity()


def test_checkpoint_of_another_engine_is_refused():
    first, second = open_engine(SPEC), open_engine(SPEC)
    checkpoint = first.sequence(random_ids(40)).checkpoint()
    sequence = second.sequence(random_ids(3))
    with pytest.raises(ConfigError):
        sequence.rollback(checkpoint)
    assert sequence.token_ids == random_ids(3)
    first.check_integrity()
    second.check_integrity()


def test_a_dropped_checkpoint_gives_its_blocks_back():
    engine = open_engine(SPEC)
    sequence = engine.sequence(random_ids(100))
    checkpoint = sequence.checkpoint()
    sequence.close()
    assert engine.stats().num_held_blocks > 0
    engine.check_integrity()
    del checkpoint
    assert engine.stats().num_held_blocks == 0
    engine.check_integrity()


def test_truncate_bounds():
    engine = open_engine(SPEC)
    sequence = engine.sequence(random_ids(10))
    for bad in (11, -1, 10**6):
        with pytest.raises(ConfigError):
            sequence.truncate(bad)
    assert sequence.token_ids == random_ids(10)
    sequence.truncate(10)
    sequence.truncate(0)
    assert sequence.token_ids == []
    with pytest.raises(ConfigError):
        sequence.decode(4)


def test_closed_sequence_says_so():
    engine = open_engine(SPEC)
    sequence = engine.sequence(random_ids(10))
    sequence.close()
    sequence.close()
    for call in (
        lambda: sequence.extend([1]),
        lambda: sequence.decode(1),
        lambda: sequence.score([1]),
        lambda: sequence.truncate(0),
        sequence.fork,
        sequence.checkpoint,
    ):
        with pytest.raises(ClosedError, match="the sequence is closed"):
            call()
    engine.check_integrity()


def test_a_forgotten_sequence_gives_its_blocks_back():
    engine = open_engine(SPEC)
    sequence = engine.sequence(random_ids(100))
    assert engine.stats().num_held_blocks > 0
    del sequence
    assert engine.stats().num_held_blocks == 0


def test_budget_too_small_for_anything():
    with pytest.raises(ConfigError, match="kv_cache_bytes"):
        open_engine(SPEC, kv_cache_bytes=1)
