// The blocks behind every KV cache of an engine: memory, reference counts, and the prefix tree.
//
// A block is held (reference count > 0), cached (count 0, findable by its tokens, evictable) or
// free. Not thread-safe: the engine's lock guards it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "common/types.h"
#include "kv_cache/kv_layout.h"

namespace flarecore {

class ThreadPool;

using BlockId = int32_t;

// What names a full block: its tokens, the block before it, and where its positions jump. The parent
// is named by a serial that is never used twice, so two different prefixes can never be taken for
// each other.
struct PrefixKey {
  uint64_t parent_serial = 0;  // 0: the block starts the sequence
  uint64_t gap = 0;            // first token after the jump and its size; 0: no jump up to here
  std::array<TokenId, kBlockTokens> tokens{};
  bool operator==(const PrefixKey& o) const {
    return parent_serial == o.parent_serial && gap == o.gap && tokens == o.tokens;
  }
};

struct PrefixKeyHash {
  size_t operator()(const PrefixKey& key) const;
};

class BlockPool {
 public:
  // Address space for num_blocks blocks; pages are taken from the system when first written.
  BlockPool(int num_blocks, size_t block_size_bytes);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Takes all pages from the system, by all threads. Only before the first block is used.
  void take_pages(ThreadPool* threads);

  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  int num_available() const { return static_cast<int>(free_.size() + evictable_.size()); }
  int num_cached() const { return static_cast<int>(evictable_.size()); }
  int num_held() const { return num_blocks() - num_available(); }
  int ref_count(BlockId id) const { return blocks_[id].ref_count; }
  uint64_t serial(BlockId id) const { return blocks_[id].serial; }
  uint8_t* data(BlockId id) const { return memory_ + size_t(id) * block_size_bytes_; }
  size_t block_size_bytes() const { return block_size_bytes_; }

  // A block with reference count 1: a free one, else the least recently used cached one.
  // Requires num_available() > 0.
  BlockId allocate();
  void retain(BlockId id);
  void release(BlockId id);  // the last release leaves a registered block cached, another free

  // Makes a full block findable. Keeps the first block if the key is known already.
  void register_prefix(BlockId id, const PrefixKey& key);
  void unregister(BlockId id);            // before a registered block is written again
  BlockId find_prefix(const PrefixKey& key) const;  // -1: none

  // Checks counts against `held_refs` (references per block that live sequences hold).
  // Raises FlarecoreError that names the first mismatch.
  void check_integrity(const std::vector<int>& held_refs) const;

 private:
  struct Block {
    int ref_count = 0;
    uint64_t serial = 0;  // 0: not registered
    PrefixKey key;
    std::list<BlockId>::iterator lru;  // valid while cached
  };

  size_t block_size_bytes_;
  uint8_t* memory_ = nullptr;
  size_t memory_size_bytes_ = 0;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_;
  std::list<BlockId> evictable_;  // front: evicted next
  std::unordered_map<PrefixKey, BlockId, PrefixKeyHash> prefixes_;
  uint64_t next_serial_ = 1;
};

}  // namespace flarecore
