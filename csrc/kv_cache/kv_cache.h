// The KV operations on one sequence's blocks: reserve, commit, truncate, fork, release.
//
// Tokens [0, num_computed) of a sequence have their K and V in its blocks. Blocks are shared by
// forks and through the prefix tree; a shared block is copied before it is written. Not
// thread-safe: the engine's lock guards it.
//
// A sequence may reserve positions after its first tokens (its head): the token with index i is at
// position i in the head and at i + num_reserved behind it. Passages can then be attached at the
// reserved positions; tokens from the index sees_from on see them, earlier ones do not. What was
// computed with passages in view never enters the prefix tree.
#pragma once

#include <algorithm>
#include <climits>
#include <memory>
#include <unordered_set>
#include <vector>

#include "common/span.h"
#include "kv_cache/block_pool.h"
#include "kv_cache/passage_kv.h"

namespace flarecore {

// The cache side of a sequence. Owned by the sequence; only KvCache changes it.
struct KvSequence {
  std::vector<BlockId> blocks;  // block i holds the tokens [32 i, 32 i + 32)
  int num_computed = 0;
  int num_registered = 0;  // leading blocks known to be in the prefix tree or equal to one that is
  uint64_t parent_serial = 0;  // serial of the last registered block; 0 at the start

  int num_head = 0, num_reserved = 0;
  Passages passages;
  int sees_from = 0;           // at least num_head; of no meaning without passages
  int private_from = INT_MAX;  // tokens from here on are of no use to other sequences

  // Tokens before it may be shared through the prefix tree.
  int shareable_end() const {
    return passages.empty() ? private_from : std::min(private_from, sees_from);
  }
};

class KvCache {
 public:
  // `weights` are those that compute what is cached.
  KvCache(const KvLayout& layout, int num_blocks, std::shared_ptr<const void> weights);

  const KvLayout& layout() const { return layout_; }
  const BlockPool& pool() const { return pool_; }

  // See BlockPool::take_pages().
  void take_pages(ThreadPool* threads) { pool_.take_pages(threads); }

  void open(KvSequence* sequence);   // joins the integrity check
  void close(KvSequence* sequence);  // releases its blocks and leaves it

  // Attaches cached blocks that hold a prefix of `tokens` to a sequence whose computed part is a
  // whole number of blocks; at most tokens.size() - 1 of them, since the last row is needed for
  // its logits. Returns the number of positions gained.
  int attach_prefix(KvSequence* sequence, Span<const TokenId> tokens);

  // Makes positions [num_computed, num_tokens) writable: allocates blocks, copies a shared one.
  // Raises OutOfBlocksError and changes nothing if the budget does not allow it.
  void reserve(KvSequence* sequence, int num_tokens);

  // Lets tokens from sees_from on see these passages instead of those they saw; forgets what was
  // computed otherwise. The same passages from the same token on change nothing: returns false.
  bool attach(KvSequence* sequence, const Passages& passages, int sees_from);

  // The K and V of the tokens behind the first `num_head` of a sequence that is computed whole.
  std::shared_ptr<const PassageKv> copy_passage(const KvSequence& sequence,
                                                Span<const TokenId> tokens, int num_head) const;

  // Declares positions up to num_computed written; `tokens` are the sequence's ids.
  void commit(KvSequence* sequence, Span<const TokenId> tokens, int num_computed);

  // Forgets positions from num_computed on and gives back blocks that are not needed any more.
  void truncate(KvSequence* sequence, int num_computed);

  // Makes `to`, which is open and empty, the same sequence: reserved positions, passages, blocks.
  void fork(const KvSequence& from, KvSequence* to);

  void check_integrity() const;

 private:
  bool is_shared(BlockId id) const { return pool_.ref_count(id) > 1; }

  KvLayout layout_;
  BlockPool pool_;
  std::shared_ptr<const void> weights_;
  std::unordered_set<const KvSequence*> open_;
};

}  // namespace flarecore
