#include "kv_cache/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace flarecore {
namespace {

int blocks_for(int num_tokens) { return (num_tokens + kBlockTokens - 1) / kBlockTokens; }

PrefixKey make_key(uint64_t parent_serial, const TokenId* tokens) {
  PrefixKey key;
  key.parent_serial = parent_serial;
  std::copy(tokens, tokens + kBlockTokens, key.tokens.begin());
  return key;
}

}  // namespace

KvCache::KvCache(const KvLayout& layout, int num_blocks)
    : layout_(layout), pool_(num_blocks, layout.block_size_bytes()) {}

void KvCache::open(KvSequence* sequence) { open_.insert(sequence); }

void KvCache::close(KvSequence* sequence) {
  truncate(sequence, 0);
  open_.erase(sequence);
}

int KvCache::attach_prefix(KvSequence* sequence, Span<const TokenId> tokens) {
  if (sequence->num_computed % kBlockTokens != 0 ||
      sequence->num_registered * kBlockTokens != sequence->num_computed) {
    return 0;
  }
  const int begin = sequence->num_computed;
  const int end = static_cast<int>(tokens.size()) - 1;
  while (sequence->num_computed + kBlockTokens <= end) {
    const PrefixKey key = make_key(sequence->parent_serial, tokens.data() + sequence->num_computed);
    const BlockId id = pool_.find_prefix(key);
    if (id < 0) break;
    pool_.retain(id);
    sequence->blocks.push_back(id);
    sequence->parent_serial = pool_.serial(id);
    sequence->num_registered += 1;
    sequence->num_computed += kBlockTokens;
  }
  return sequence->num_computed - begin;
}

void KvCache::reserve(KvSequence* sequence, int num_tokens) {
  const int num_blocks = static_cast<int>(sequence->blocks.size());
  const int first_written = sequence->num_computed / kBlockTokens;
  const int needed = std::max(0, blocks_for(num_tokens) - num_blocks);
  const bool copies = first_written < num_blocks && is_shared(sequence->blocks[first_written]);
  check(needed + copies <= pool_.num_available(), ErrorKind::kOutOfBlocks,
        "the KV cache has no room for ", num_tokens, " tokens: ", needed + copies,
        " more blocks of ", kBlockTokens, " tokens are needed, ", pool_.num_available(), " of ",
        pool_.num_blocks(), " are free; close sequences or pass a larger kv_cache_bytes");
  if (first_written < num_blocks) {
    const BlockId old = sequence->blocks[first_written];
    if (copies) {
      const BlockId fresh = pool_.allocate();
      std::memcpy(pool_.data(fresh), pool_.data(old), pool_.block_size_bytes());
      pool_.release(old);
      sequence->blocks[first_written] = fresh;
    } else {
      pool_.unregister(old);  // its contents are about to differ from what the tree promises
    }
  }
  for (int i = 0; i < needed; ++i) sequence->blocks.push_back(pool_.allocate());
}

void KvCache::commit(KvSequence* sequence, Span<const TokenId> tokens, int num_computed) {
  sequence->num_computed = num_computed;
  while ((sequence->num_registered + 1) * kBlockTokens <= num_computed) {
    const int index = sequence->num_registered;
    const PrefixKey key = make_key(sequence->parent_serial, tokens.data() + index * kBlockTokens);
    BlockId id = pool_.find_prefix(key);
    if (id < 0) {
      id = sequence->blocks[index];
      pool_.register_prefix(id, key);
    } else if (id != sequence->blocks[index]) {
      // Two sequences computed the same prefix: keep one copy (equal bit for bit, guarantee 1).
      pool_.retain(id);
      pool_.release(sequence->blocks[index]);
      sequence->blocks[index] = id;
    }
    sequence->parent_serial = pool_.serial(id);
    sequence->num_registered += 1;
  }
}

void KvCache::truncate(KvSequence* sequence, int num_computed) {
  num_computed = std::min(num_computed, sequence->num_computed);
  const size_t keep = blocks_for(num_computed);
  // Deepest block first, so that eviction takes the ends of prefixes before their beginnings.
  while (sequence->blocks.size() > keep) {
    pool_.release(sequence->blocks.back());
    sequence->blocks.pop_back();
  }
  sequence->num_computed = num_computed;
  sequence->num_registered = std::min(sequence->num_registered, num_computed / kBlockTokens);
  sequence->parent_serial = sequence->num_registered == 0
                                ? 0
                                : pool_.serial(sequence->blocks[sequence->num_registered - 1]);
}

void KvCache::fork(const KvSequence& from, KvSequence* to) {
  // Blocks reserved past the computed part stay with `from`: both would write them unshared.
  to->blocks.assign(from.blocks.begin(), from.blocks.begin() + blocks_for(from.num_computed));
  to->num_computed = from.num_computed;
  to->num_registered = from.num_registered;
  to->parent_serial = from.parent_serial;
  for (BlockId id : to->blocks) pool_.retain(id);
}

void KvCache::check_integrity() const {
  std::vector<int> held(pool_.num_blocks(), 0);
  for (const KvSequence* sequence : open_) {
    for (BlockId id : sequence->blocks) ++held[id];
    check(sequence->num_computed <= static_cast<int>(sequence->blocks.size()) * kBlockTokens,
          ErrorKind::kInternal, "a sequence claims ", sequence->num_computed, " positions in ",
          sequence->blocks.size(), " blocks");
  }
  pool_.check_integrity(held);
}

}  // namespace flarecore
