#include "kv_cache/passage_kv.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kv_cache/kv_slots.h"

namespace flarecore {

PassageKv::PassageKv(const KvLayout& layout, std::vector<TokenId> head, std::vector<TokenId> tokens,
                     std::shared_ptr<const void> owner, const uint8_t* data,
                     const std::shared_ptr<const void>& weights)
    : format_(layout.format),
      block_size_bytes_(layout.block_size_bytes()),
      head_(std::move(head)),
      tokens_(std::move(tokens)),
      owner_(std::move(owner)),
      data_(data),
      weights_(weights) {}

std::shared_ptr<const PassageKv> PassageKv::copy(const KvLayout& layout, std::vector<TokenId> head,
                                                 std::vector<TokenId> tokens,
                                                 Span<const uint8_t* const> blocks,
                                                 const std::shared_ptr<const void>& weights) {
  const int begin = static_cast<int>(head.size()), num_tokens = static_cast<int>(tokens.size());
  const size_t block_size = layout.block_size_bytes();
  const size_t size = (size_t(blocks_for(num_tokens)) * block_size + 63) / 64 * 64;
  uint8_t* memory = static_cast<uint8_t*>(std::aligned_alloc(64, size));
  if (memory == nullptr) throw std::bad_alloc();
  const std::shared_ptr<const void> owner(memory, [](const void* p) {
    std::free(const_cast<void*>(p));
  });
  std::memset(memory, 0, size);
  for (int i = 0; i < num_tokens;) {
    const int from_slot = (begin + i) % kBlockTokens, to_slot = i % kBlockTokens;
    const int count =
        std::min({kBlockTokens - from_slot, kBlockTokens - to_slot, num_tokens - i});
    copy_slots(layout, blocks[(begin + i) / kBlockTokens], from_slot,
               memory + size_t(i / kBlockTokens) * block_size, to_slot, count);
    i += count;
  }
  return std::make_shared<const PassageKv>(layout, std::move(head), std::move(tokens), owner,
                                           memory, weights);
}

}  // namespace flarecore
