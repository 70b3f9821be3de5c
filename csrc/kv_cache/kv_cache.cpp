#include "kv_cache/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace flarecore {
namespace {

// The key of the block after the registered ones.
PrefixKey next_key(const KvSequence& sequence, Span<const TokenId> tokens) {
  const int begin = sequence.num_registered * kBlockTokens;
  PrefixKey key;
  key.parent_serial = sequence.parent_serial;
  if (sequence.num_reserved > 0 && begin + kBlockTokens > sequence.num_head) {
    key.gap = uint64_t(sequence.num_head) << 32 | uint64_t(sequence.num_reserved);
  }
  std::copy_n(tokens.begin() + begin, kBlockTokens, key.tokens.begin());
  return key;
}

}  // namespace

KvCache::KvCache(const KvLayout& layout, int num_blocks, std::shared_ptr<const void> weights)
    : layout_(layout),
      pool_(num_blocks, layout.block_size_bytes()),
      weights_(std::move(weights)) {}

void KvCache::open(KvSequence* sequence) { open_.insert(sequence); }

void KvCache::close(KvSequence* sequence) {
  truncate(sequence, 0);
  sequence->passages.clear();
  open_.erase(sequence);
}

int KvCache::attach_prefix(KvSequence* sequence, Span<const TokenId> tokens) {
  if (sequence->num_computed % kBlockTokens != 0 ||
      sequence->num_registered * kBlockTokens != sequence->num_computed) {
    return 0;
  }
  const int begin = sequence->num_computed;
  const int end = std::min(static_cast<int>(tokens.size()) - 1, sequence->shareable_end());
  while (sequence->num_computed + kBlockTokens <= end) {
    const BlockId id = pool_.find_prefix(next_key(*sequence, tokens));
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
  const int end = std::min(num_computed, sequence->shareable_end());
  while ((sequence->num_registered + 1) * kBlockTokens <= end) {
    const int index = sequence->num_registered;
    const PrefixKey key = next_key(*sequence, tokens);
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

bool KvCache::attach(KvSequence* sequence, const Passages& passages, int sees_from) {
  const int seen_from = sequence->passages.empty() ? INT_MAX : sequence->sees_from;
  const int wanted_from = passages.empty() ? INT_MAX : sees_from;
  if (sequence->passages == passages && seen_from == wanted_from) return false;
  truncate(sequence, std::min(seen_from, wanted_from));
  sequence->passages = passages;
  sequence->sees_from = passages.empty() ? 0 : sees_from;
  return true;
}

std::shared_ptr<const PassageKv> KvCache::copy_passage(const KvSequence& sequence,
                                                       Span<const TokenId> tokens,
                                                       int num_head) const {
  std::vector<const uint8_t*> blocks;
  for (BlockId id : sequence.blocks) blocks.push_back(pool_.data(id));
  return PassageKv::copy(layout_, {tokens.begin(), tokens.begin() + num_head},
                         {tokens.begin() + num_head, tokens.end()}, blocks, weights_);
}

void KvCache::fork(const KvSequence& from, KvSequence* to) {
  // Blocks reserved past the computed part stay with `from`: both would write them unshared.
  to->blocks.assign(from.blocks.begin(), from.blocks.begin() + blocks_for(from.num_computed));
  to->num_computed = from.num_computed;
  to->num_registered = from.num_registered;
  to->parent_serial = from.parent_serial;
  to->num_head = from.num_head;
  to->num_reserved = from.num_reserved;
  to->passages = from.passages;
  to->sees_from = from.sees_from;
  to->private_from = from.private_from;
  for (BlockId id : to->blocks) pool_.retain(id);
}

void KvCache::check_integrity() const {
  std::vector<int> held(pool_.num_blocks(), 0);
  for (const KvSequence* sequence : open_) {
    for (BlockId id : sequence->blocks) ++held[id];
    check(sequence->num_computed <= static_cast<int>(sequence->blocks.size()) * kBlockTokens,
          ErrorKind::kInternal, "a sequence claims ", sequence->num_computed, " tokens in ",
          sequence->blocks.size(), " blocks");
    check(sequence->num_registered * kBlockTokens <=
              std::min(sequence->num_computed, sequence->shareable_end()),
          ErrorKind::kInternal, "a sequence shares ", sequence->num_registered,
          " blocks, some of them not computed or seeing passages");
  }
  pool_.check_integrity(held);
}

}  // namespace flarecore
