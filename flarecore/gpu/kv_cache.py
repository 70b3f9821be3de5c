"""The KV operations on one sequence's blocks: reserve, commit, truncate, fork, attach, release.

The same rules as ``csrc/kv_cache/kv_cache``. Tokens [0, num_computed) of a sequence have their K
and V in its blocks; blocks are shared by forks and through the prefix tree, and a shared block is
copied before it is written. A sequence may keep positions free behind its head; passages can then
be attached there, which tokens from `sees_from` on see. What was computed with passages in view
never enters the prefix tree.

The engine's lock guards it. Only :meth:`KvCache.reserve` and :meth:`KvCache.fill_passage` touch the
device, in the order of the stream that the forward passes run on, so that a block given back and
taken anew needs no synchronisation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flarecore.errors import FlarecoreError, OutOfBlocksError
from flarecore.gpu.block_pool import BlockPool, PrefixKey
from flarecore.gpu.device_ops import BlockCopy
from flarecore.gpu.passages import BLOCK_TOKENS, PassageBlocks, PassageView, blocks_for

__all__ = ["BLOCK_TOKENS", "KvCache", "KvSequence", "blocks_for"]

_NEVER = 1 << 62


@dataclass(eq=False)
class KvSequence:
    """The cache side of a sequence. Owned by the sequence; only KvCache changes it.

    ``blocks[i]`` holds tokens [32 i, 32 i + 32). The first ``num_registered`` blocks are known
    to be in the prefix tree; ``parent_serial`` is the serial of the last of them. Tokens behind the
    first ``num_head`` are ``num_reserved`` positions later than their index; ``sees_from`` is of no
    meaning without passages; tokens from ``private_from`` on are of no use to other sequences.
    """

    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_registered: int = 0
    parent_serial: int = 0
    num_head: int = 0
    num_reserved: int = 0
    passages: tuple[PassageBlocks, ...] = ()
    sees_from: int = 0
    private_from: int = _NEVER

    @property
    def shareable_end(self) -> int:
        """Tokens before it may be shared through the prefix tree."""
        return min(self.private_from, self.sees_from) if self.passages else self.private_from

    @property
    def view(self) -> PassageView | None:
        """For the forward pass; None where positions are indices and nothing else is seen."""
        if not self.num_reserved:
            return None
        return PassageView(self.num_head, self.num_reserved, self.sees_from, tuple(
            (block, index * BLOCK_TOKENS, len(passage.tokens))
            for passage in self.passages for index, block in enumerate(passage.blocks)))


class KvCache:
    """Bookkeeping over `num_blocks` blocks; `copy_blocks` copies them on the device."""

    def __init__(self, num_blocks: int,
                 copy_blocks: Callable[[Sequence[BlockCopy]], None]) -> None:
        self.pool = BlockPool(num_blocks)
        self._copy_blocks = copy_blocks
        self._open: set[KvSequence] = set()
        self._passages: set[PassageBlocks] = set()  # those that a handle holds

    def open(self, sequence: KvSequence) -> None:
        """Joins the integrity check."""
        self._open.add(sequence)

    def close(self, sequence: KvSequence) -> None:
        """Gives the blocks back and leaves the integrity check."""
        self.truncate(sequence, 0)
        self._see(sequence, (), 0)
        self._open.discard(sequence)

    def attach_prefix(self, sequence: KvSequence, tokens: Sequence[int]) -> int:
        """Attaches cached blocks that hold a prefix of `tokens`; the positions gained.

        At most len(tokens) - 1 tokens, since the last row is needed for its logits, and only
        to a sequence whose computed part is a whole number of registered blocks.
        """
        if sequence.num_registered * BLOCK_TOKENS != sequence.num_computed:
            return 0
        begin = sequence.num_computed
        end = min(len(tokens) - 1, sequence.shareable_end)
        while sequence.num_computed + BLOCK_TOKENS <= end:
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
        self._check_room(needed + copies, num_tokens)
        first_written = sequence.num_computed // BLOCK_TOKENS
        if copies:
            old, fresh = blocks[first_written], pool.allocate()
            # What is behind the computed tokens is written before it is read: not copied.
            kept = sequence.num_computed % BLOCK_TOKENS
            try:
                self._copy_blocks([BlockCopy(old, old, fresh, 0, kept)])
            except BaseException:
                pool.release(fresh)
                raise
            blocks[first_written] = fresh
            pool.release(old)
        elif first_written < len(blocks):
            # Its contents are about to differ from what the tree promises.
            pool.unregister(blocks[first_written])
        blocks.extend(pool.allocate() for _ in range(needed))

    def commit(self, sequence: KvSequence, tokens: Sequence[int], num_computed: int) -> None:
        """Declares positions up to `num_computed` written; `tokens` are the sequence's ids."""
        sequence.num_computed = num_computed
        end = min(num_computed, sequence.shareable_end)
        while (sequence.num_registered + 1) * BLOCK_TOKENS <= end:
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
        """Makes `target`, which is open and without blocks, the same sequence as `source`."""
        # Blocks reserved past the computed part stay with `source`: both would write them unshared.
        target.blocks = source.blocks[: blocks_for(source.num_computed)]
        target.num_computed = source.num_computed
        target.num_registered = source.num_registered
        target.parent_serial = source.parent_serial
        for block in target.blocks:
            self.pool.retain(block)
        target.num_head, target.num_reserved = source.num_head, source.num_reserved
        target.private_from = source.private_from
        self._see(target, source.passages, source.sees_from)

    def attach(self, sequence: KvSequence, passages: Sequence[PassageBlocks],
               sees_from: int) -> bool:
        """Lets tokens from `sees_from` on see these passages instead of those they saw.

        Forgets what was computed otherwise. False if the same tokens saw the same passages: nothing
        has changed then.
        """
        seen_from = sequence.sees_from if sequence.passages else _NEVER
        wanted_from = sees_from if passages else _NEVER
        if sequence.passages == tuple(passages) and seen_from == wanted_from:
            return False
        self.truncate(sequence, min(seen_from, wanted_from))
        self._see(sequence, tuple(passages), sees_from)
        return True

    def new_passage(self, head: Sequence[int], tokens: Sequence[int]) -> PassageBlocks:
        """Blocks for a passage, held by the caller until :meth:`release_passage`.

        Raises
        ------
        OutOfBlocksError
            There is no room; nothing has changed.
        """
        self._check_room(blocks_for(len(tokens)), len(tokens))
        blocks = tuple(self.pool.allocate() for _ in range(blocks_for(len(tokens))))
        passage = PassageBlocks(tuple(head), tuple(tokens), blocks)
        self._passages.add(passage)
        return passage

    def fill_passage(self, passage: PassageBlocks, sequence: KvSequence) -> None:
        """Copies the passage's part of a sequence that is computed whole, head and passage."""
        first, shift = divmod(len(passage.head), BLOCK_TOKENS)
        own, left = sequence.blocks, len(passage.tokens)
        copies = []
        for index, block in enumerate(passage.blocks):
            at = first + index
            following = own[at + 1] if at + 1 < len(own) else own[at]
            copies.append(BlockCopy(own[at], following, block, shift, min(left, BLOCK_TOKENS)))
            left -= BLOCK_TOKENS
        self._copy_blocks(copies)

    def release_passage(self, passage: PassageBlocks) -> None:
        """Ends the caller's hold; sequences that see the passage keep its blocks."""
        self._passages.discard(passage)
        self._release(passage)

    def is_attached(self, passage: PassageBlocks) -> bool:
        return self.pool.is_shared(passage.blocks[0])

    def check_integrity(self) -> None:
        """Raises FlarecoreError if counts and references do not add up."""
        held = [0] * self.pool.num_blocks
        for sequence in self._open:
            for block in sequence.blocks:
                held[block] += 1
            if sequence.num_computed > len(sequence.blocks) * BLOCK_TOKENS:
                raise FlarecoreError(f"a sequence claims {sequence.num_computed} tokens in "
                                     f"{len(sequence.blocks)} blocks")
            shared = min(sequence.num_computed, sequence.shareable_end)
            if sequence.num_registered * BLOCK_TOKENS > shared:
                raise FlarecoreError(f"a sequence shares {sequence.num_registered} blocks, some of "
                                     "them not computed or seeing passages")
        seen = [passage for sequence in self._open for passage in sequence.passages]
        for passage in [*self._passages, *seen]:
            for block in passage.blocks:
                held[block] += 1
        self.pool.check_integrity(held)

    def _see(self, sequence: KvSequence, passages: tuple[PassageBlocks, ...],
             sees_from: int) -> None:
        for passage in passages:
            for block in passage.blocks:
                self.pool.retain(block)
        for passage in sequence.passages:
            self._release(passage)
        sequence.passages = passages
        sequence.sees_from = sees_from if passages else 0

    def _release(self, passage: PassageBlocks) -> None:
        for block in passage.blocks:
            self.pool.release(block)

    def _check_room(self, num_blocks: int, num_tokens: int) -> None:
        pool = self.pool
        if num_blocks > pool.num_available:
            raise OutOfBlocksError(
                f"the KV cache has no room for {num_tokens} tokens: {num_blocks} more blocks of "
                f"{BLOCK_TOKENS} tokens are needed, {pool.num_available} of {pool.num_blocks} are "
                "free; close sequences or pass a larger kv_cache_bytes")

    def _needs_copy(self, sequence: KvSequence) -> bool:
        first_written = sequence.num_computed // BLOCK_TOKENS
        return (first_written < len(sequence.blocks)
                and self.pool.is_shared(sequence.blocks[first_written]))

    def _key(self, sequence: KvSequence, tokens: Sequence[int], index: int) -> PrefixKey:
        begin = index * BLOCK_TOKENS
        gap = (0, 0)
        if sequence.num_reserved and begin + BLOCK_TOKENS > sequence.num_head:
            gap = sequence.num_head, sequence.num_reserved
        return sequence.parent_serial, gap, tuple(tokens[begin : begin + BLOCK_TOKENS])
