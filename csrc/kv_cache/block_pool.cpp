#include "kv_cache/block_pool.h"

#include <sys/mman.h>

#include <algorithm>

#include "common/check.h"
#include "common/huge_pages.h"
#include "common/thread_pool.h"

namespace flarecore {

size_t PrefixKeyHash::operator()(const PrefixKey& key) const {
  uint64_t h = (key.parent_serial ^ key.gap) * 0x9E3779B97F4A7C15ull + 0x7F4A7C15ull;
  for (TokenId token : key.tokens) {
    h = (h ^ static_cast<uint32_t>(token)) * 0xFF51AFD7ED558CCDull;
    h ^= h >> 32;
  }
  return static_cast<size_t>(h);
}

BlockPool::BlockPool(int num_blocks, size_t block_size_bytes)
    : block_size_bytes_(block_size_bytes),
      memory_size_bytes_(size_t(num_blocks) * block_size_bytes),
      blocks_(num_blocks) {
  void* memory = mmap(nullptr, memory_size_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  check(memory != MAP_FAILED, ErrorKind::kConfig, "the KV cache of ", memory_size_bytes_,
        " bytes cannot be mapped; pass a smaller kv_cache_bytes");
  memory_ = static_cast<uint8_t*>(memory);
#ifdef MADV_HUGEPAGE
  // A wish. Attention reads a few KB here and there: with small pages each costs a table walk.
  madvise(memory, memory_size_bytes_, MADV_HUGEPAGE);
#endif
  free_.reserve(num_blocks);
  for (BlockId id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
}

BlockPool::~BlockPool() {
  if (memory_ != nullptr) munmap(memory_, memory_size_bytes_);
}

void BlockPool::take_pages(ThreadPool* threads) {
  constexpr size_t kPage = 4096;
  volatile uint8_t* const memory = memory_;  // no write may be left out
  const auto num_pieces = static_cast<int64_t>((memory_size_bytes_ + kHugePage - 1) / kHugePage);
  threads->parallel_for(num_pieces, [&](int64_t piece, int) {
    const size_t begin = size_t(piece) * kHugePage;
    const size_t end = std::min(begin + kHugePage, memory_size_bytes_);
    // A huge page comes with its first write; the others matter where there are none.
    for (size_t at = begin; at < end; at += kPage) memory[at] = 0;
  });
}

BlockId BlockPool::allocate() {
  BlockId id;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else {
    check(!evictable_.empty(), ErrorKind::kInternal, "allocate() on a pool without free blocks");
    id = evictable_.front();
    evictable_.pop_front();
    unregister(id);
  }
  blocks_[id].ref_count = 1;
  return id;
}

void BlockPool::retain(BlockId id) {
  Block& block = blocks_[id];
  if (block.ref_count++ == 0) evictable_.erase(block.lru);  // only cached blocks are found again
}

void BlockPool::release(BlockId id) {
  Block& block = blocks_[id];
  check(block.ref_count > 0, ErrorKind::kInternal, "block ", id, " released too often");
  if (--block.ref_count > 0) return;
  if (block.serial == 0) {
    free_.push_back(id);
  } else {
    block.lru = evictable_.insert(evictable_.end(), id);
  }
}

void BlockPool::register_prefix(BlockId id, const PrefixKey& key) {
  Block& block = blocks_[id];
  if (block.serial != 0 || !prefixes_.emplace(key, id).second) return;
  block.key = key;
  block.serial = next_serial_++;
}

void BlockPool::unregister(BlockId id) {
  Block& block = blocks_[id];
  if (block.serial == 0) return;
  prefixes_.erase(block.key);
  block.serial = 0;
}

BlockId BlockPool::find_prefix(const PrefixKey& key) const {
  const auto it = prefixes_.find(key);
  return it == prefixes_.end() ? -1 : it->second;
}

void BlockPool::check_integrity(const std::vector<int>& held_refs) const {
  int num_unheld = 0;
  for (BlockId id = 0; id < num_blocks(); ++id) {
    check(blocks_[id].ref_count == held_refs[id], ErrorKind::kInternal, "block ", id,
          " has reference count ", blocks_[id].ref_count, ", sequences hold ", held_refs[id]);
    if (blocks_[id].ref_count == 0) ++num_unheld;
  }
  check(num_unheld == num_available(), ErrorKind::kInternal, "free + cached blocks are ",
        num_available(), ", unheld blocks are ", num_unheld);
  size_t num_registered = 0;
  for (const Block& block : blocks_) num_registered += block.serial != 0;
  check(num_registered == prefixes_.size(), ErrorKind::kInternal, "prefix tree has ",
        prefixes_.size(), " entries for ", num_registered, " registered blocks");
  for (BlockId id : evictable_) {
    check(blocks_[id].ref_count == 0 && blocks_[id].serial != 0, ErrorKind::kInternal,
          "cached block ", id, " is held or not registered");
  }
}

}  // namespace flarecore
