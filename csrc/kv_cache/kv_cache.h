// The KV operations on one sequence's blocks: reserve, commit, truncate, fork, release.
//
// Positions [0, num_computed) of a sequence have their K and V in its blocks. Blocks are shared by
// forks and through the prefix tree; a shared block is copied before it is written. Not
// thread-safe: the engine's lock guards it.
#pragma once

#include <unordered_set>
#include <vector>

#include "common/span.h"
#include "kv_cache/block_pool.h"

namespace flarecore {

// The cache side of a sequence. Owned by the sequence; only KvCache changes it.
struct KvSequence {
  std::vector<BlockId> blocks;  // block i holds positions [32 i, 32 i + 32)
  int num_computed = 0;
  int num_registered = 0;  // leading blocks known to be in the prefix tree or equal to one that is
  uint64_t parent_serial = 0;  // serial of the last registered block; 0 at the start
};

class KvCache {
 public:
  KvCache(const KvLayout& layout, int num_blocks);

  const KvLayout& layout() const { return layout_; }
  const BlockPool& pool() const { return pool_; }

  void open(KvSequence* sequence);   // joins the integrity check
  void close(KvSequence* sequence);  // releases its blocks and leaves it

  // Attaches cached blocks that hold a prefix of `tokens` to a sequence whose computed part is a
  // whole number of blocks; at most tokens.size() - 1 positions, since the last row is needed for
  // its logits. Returns the number of positions gained.
  int attach_prefix(KvSequence* sequence, Span<const TokenId> tokens);

  // Makes positions [num_computed, num_tokens) writable: allocates blocks, copies a shared one.
  // Raises OutOfBlocksError and changes nothing if the budget does not allow it.
  void reserve(KvSequence* sequence, int num_tokens);

  // Declares positions up to num_computed written; `tokens` are the sequence's ids.
  void commit(KvSequence* sequence, Span<const TokenId> tokens, int num_computed);

  // Forgets positions from num_computed on and gives back blocks that are not needed any more.
  void truncate(KvSequence* sequence, int num_computed);

  void fork(const KvSequence& from, KvSequence* to);  // `to` is open and empty

  void check_integrity() const;

 private:
  bool is_shared(BlockId id) const { return pool_.ref_count(id) > 1; }

  KvLayout layout_;
  BlockPool pool_;
  std::unordered_set<const KvSequence*> open_;
};

}  // namespace flarecore
