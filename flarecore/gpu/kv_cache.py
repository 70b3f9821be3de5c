"""The KV operations on one sequence's blocks: reserve, commit, truncate, fork, release.

The same rules as ``csrc/kv_cache/kv_cache``. Positions [0, num_computed) of a sequence have their K
and V in its blocks; blocks are shared by forks and through the prefix tree, and a shared block is
copied before it is written. The engine's lock guards it. Only :meth:`KvCache.reserve` touches the
device, in the order of the stream that the forward passes run on, so that a block given back and
taken anew needs no synchronisation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flarecore.errors import FlarecoreError, OutOfBlocksError
from flarecore.gpu.block_pool import BlockPool, PrefixKey
from flarecore.gpu.device_ops import BlockCopy

__all__ = ["BLOCK_TOKENS", "KvCache", "KvSequence"]

BLOCK_TOKENS = 32


@dataclass(eq=False)
class KvSequence:
    """The cache side of a sequence. Owned by the sequence; only KvCache changes it.

    ``blocks[i]`` holds positions [32 i, 32 i + 32). The first ``num_registered`` blocks are known
    to be in the prefix tree; ``parent_serial`` is the serial of the last of them.
    """

    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_registered: int = 0
    parent_serial: int = 0


def blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)


class KvCache:
    """Bookkeeping over `num_blocks` blocks; `copy_blocks` copies them on the device."""

    def __init__(self, num_blocks: int,
                 copy_blocks: Callable[[Sequence[BlockCopy]], None]) -> None:
        self.pool = BlockPool(num_blocks)
        self._copy_blocks = copy_blocks
        self._open: set[KvSequence] = set()

    def open(self, sequence: KvSequence) -> None:
        """Joins the integrity check."""
        self._open.add(sequence)

    def close(self, sequence: KvSequence) -> None:
        """Gives the blocks back and leaves the integrity check."""
        self.truncate(sequence, 0)
        self._open.discard(sequence)

    def attach_prefix(self, sequence: KvSequence, tokens: Sequence[int]) -> int:
        """Attaches cached blocks that hold a prefix of `tokens`; the positions gained.

        At most len(tokens) - 1 positions, since the last row is needed for its logits, and only
        to a sequence whose computed part is a whole number of registered blocks.
        """
        if sequence.num_registered * BLOCK_TOKENS != sequence.num_computed:
            return 0
        begin = sequence.num_computed
        while sequence.num_computed + BLOCK_TOKENS <= len(tokens) - 1:
            block = self.pool.find(self._key(sequence, tokens, sequence.num_registered))
            if block is None:
                break
            self.pool.retain(block)
            sequence.blocks.append(block)
            sequence.parent_serial = self.pool.serial(block)
            sequence.num_registered += 1
            sequence.num_computed += BLOCK_TOKENS
        return sequence.num_computed - begin

    def num_reservable(self, sequence: KvSequence) -> int:
        """Tokens that :meth:`reserve` could make room for now."""
        spare = self.pool.num_available - self._needs_copy(sequence)
        return (len(sequence.blocks) + spare) * BLOCK_TOKENS if spare >= 0 else 0

    def reserve(self, sequence: KvSequence, num_tokens: int) -> None:
        """Makes positions [num_computed, num_tokens) writable: allocates, copies a shared block.

        Raises
        ------
        OutOfBlocksError
            The budget does not allow it; nothing has changed.
        """
        pool, blocks = self.pool, sequence.blocks
        needed = max(0, blocks_for(num_tokens) - len(blocks))
        copies = self._needs_copy(sequence)
        if needed + copies > pool.num_available:
            raise OutOfBlocksError(
                f"the KV cache has no room for {num_tokens} tokens: {needed + copies} more blocks "
                f"of {BLOCK_TOKENS} tokens are needed, {pool.num_available} of {pool.num_blocks} "
                "are free; close sequences or pass a larger kv_cache_bytes")
        first_written = sequence.num_computed // BLOCK_TOKENS
        if copies:
            old = blocks[first_written]
            blocks[first_written] = pool.allocate()
            # What is behind the computed tokens is written before it is read: not copied.
            kept = sequence.num_computed % BLOCK_TOKENS
            self._copy_blocks([BlockCopy(old, old, blocks[first_written], 0, kept)])
            pool.release(old)
        elif first_written < len(blocks):
            # Its contents are about to differ from what the tree promises.
            pool.unregister(blocks[first_written])
        blocks.extend(pool.allocate() for _ in range(needed))

    def commit(self, sequence: KvSequence, tokens: Sequence[int], num_computed: int) -> None:
        """Declares positions up to `num_computed` written; `tokens` are the sequence's ids."""
        sequence.num_computed = num_computed
        while (sequence.num_registered + 1) * BLOCK_TOKENS <= num_computed:
            index = sequence.num_registered
            own = sequence.blocks[index]
            key = self._key(sequence, tokens, index)
            block = self.pool.find(key)
            if block is None:
                block = own
                self.pool.register(block, key)
            elif block != own:  # two sequences computed the same prefix: keep one copy
                self.pool.retain(block)
                self.pool.release(own)
                sequence.blocks[index] = block
            sequence.parent_serial = self.pool.serial(block)
            sequence.num_registered += 1

    def truncate(self, sequence: KvSequence, num_computed: int) -> None:
        """Forgets positions from `num_computed` on and gives back blocks no longer needed."""
        num_computed = min(num_computed, sequence.num_computed)
        # Deepest block first, so that eviction takes the ends of prefixes before their beginnings.
        while len(sequence.blocks) > blocks_for(num_computed):
            self.pool.release(sequence.blocks.pop())
        sequence.num_computed = num_computed
        sequence.num_registered = min(sequence.num_registered, num_computed // BLOCK_TOKENS)
        last = sequence.num_registered - 1
        sequence.parent_serial = self.pool.serial(sequence.blocks[last]) if last >= 0 else 0

    def fork(self, source: KvSequence, target: KvSequence) -> None:
        """Shares the computed part of `source` with `target`, which is open and empty."""
        # Blocks reserved past the computed part stay with `source`: both would write them unshared.
        target.blocks = source.blocks[: blocks_for(source.num_computed)]
        target.num_computed = source.num_computed
        target.num_registered = source.num_registered
        target.parent_serial = source.parent_serial
        for block in target.blocks:
            self.pool.retain(block)

    def check_integrity(self) -> None:
        """Raises FlarecoreError if counts and references do not add up."""
        held = [0] * self.pool.num_blocks
        for sequence in self._open:
            for block in sequence.blocks:
                held[block] += 1
            if sequence.num_computed > len(sequence.blocks) * BLOCK_TOKENS:
                raise FlarecoreError(f"a sequence claims {sequence.num_computed} positions in "
                                     f"{len(sequence.blocks)} blocks")
        self.pool.check_integrity(held)

    def _needs_copy(self, sequence: KvSequence) -> bool:
        first_written = sequence.num_computed // BLOCK_TOKENS
        return (first_written < len(sequence.blocks)
                and self.pool.is_shared(sequence.blocks[first_written]))

    def _key(self, sequence: KvSequence, tokens: Sequence[int], index: int) -> PrefixKey:
        begin = index * BLOCK_TOKENS
        return sequence.parent_serial, tuple(tokens[begin : begin + BLOCK_TOKENS])
