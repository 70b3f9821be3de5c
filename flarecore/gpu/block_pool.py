"""The blocks behind every KV cache of a GPU engine: reference counts and the prefix tree.

The same bookkeeping as ``csrc/kv_cache/block_pool``, without the memory: a block is held (count
above 0), cached (count 0, findable by its tokens, evictable) or free. Not thread-safe: the
engine's lock guards it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from flarecore.errors import FlarecoreError

__all__ = ["BlockPool", "PrefixKey"]

# Serial of the block before (0: none; never used twice), where positions jump up to its end (head
# and reserved positions, both 0: nowhere), and the block's own tokens: two different prefixes can
# never be taken for each other.
PrefixKey = tuple[int, tuple[int, int], tuple[int, ...]]


@dataclass
class _Block:
    ref_count: int = 0
    serial: int = 0  # 0: not registered
    key: PrefixKey | None = None


class BlockPool:
    """Ids 0 to num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._free = list(range(num_blocks - 1, -1, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()  # first: evicted next
        self._prefixes: dict[PrefixKey, int] = {}
        self._next_serial = 1

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self._evictable)

    @property
    def num_cached(self) -> int:
        return len(self._evictable)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_available

    def is_shared(self, block: int) -> bool:
        """More than one reference holds it."""
        return self._blocks[block].ref_count > 1

    def serial(self, block: int) -> int:
        return self._blocks[block].serial

    def allocate(self) -> int:
        """A block with count 1: a free one, else the least recently used cached one."""
        if self._free:
            block = self._free.pop()
        elif self._evictable:
            block, _ = self._evictable.popitem(last=False)
            self.unregister(block)
        else:
            raise FlarecoreError("allocate() on a pool without free blocks")
        self._blocks[block].ref_count = 1
        return block

    def retain(self, block: int) -> None:
        entry = self._blocks[block]
        entry.ref_count += 1
        if entry.ref_count == 1:
            del self._evictable[block]  # only cached blocks are found again

    def release(self, block: int) -> None:
        """The last release leaves a registered block cached, another one free."""
        entry = self._blocks[block]
        if entry.ref_count <= 0:
            raise FlarecoreError(f"block {block} released too often")
        entry.ref_count -= 1
        if entry.ref_count == 0:
            if entry.serial == 0:
                self._free.append(block)
            else:
                self._evictable[block] = None

    def register(self, block: int, key: PrefixKey) -> None:
        """Makes a full block findable; keeps the first block if the key is known already."""
        entry = self._blocks[block]
        if entry.serial != 0 or key in self._prefixes:
            return
        self._prefixes[key] = block
        entry.key, entry.serial = key, self._next_serial
        self._next_serial += 1

    def unregister(self, block: int) -> None:
        """Before a registered block is written again."""
        entry = self._blocks[block]
        if entry.serial != 0 and entry.key is not None:
            del self._prefixes[entry.key]
            entry.key, entry.serial = None, 0

    def find(self, key: PrefixKey) -> int | None:
        return self._prefixes.get(key)

    def check_integrity(self, held_refs: Sequence[int]) -> None:
        """Checks counts against the references per block that sequences and passages hold.

        Raises
        ------
        FlarecoreError
            Names the first mismatch.
        """
        num_unheld = num_registered = 0
        for block, (entry, held) in enumerate(zip(self._blocks, held_refs, strict=True)):
            if entry.ref_count != held:
                raise FlarecoreError(f"block {block} has reference count {entry.ref_count}, "
                                     f"its holders are {held}")
            num_unheld += entry.ref_count == 0
            num_registered += entry.serial != 0
        if num_unheld != self.num_available or len(set(self._free)) != len(self._free):
            raise FlarecoreError(f"free + cached blocks are {self.num_available}, unheld blocks "
                                 f"are {num_unheld}")
        if num_registered != len(self._prefixes):
            raise FlarecoreError(f"prefix tree has {len(self._prefixes)} entries for "
                                 f"{num_registered} registered blocks")
        for block in self._evictable:
            entry = self._blocks[block]
            if entry.ref_count != 0 or entry.serial == 0:
                raise FlarecoreError(f"cached block {block} is held or not registered")
