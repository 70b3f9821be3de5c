// Passage KV: K and V of a passage that was encoded on its own, right after a prompt head (design
// 3.5, placement parallel; Ratner et al. 2023, arXiv 2212.10947).
//
// Its tokens have the positions [head size, head size + num_tokens), whatever stands beside it, so
// that it can be attached to any sequence that begins with the head and keeps those positions free.
// It is made once and never changed; sequences share it by reference.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/span.h"
#include "kv_cache/kv_layout.h"

namespace flarecore {

class PassageKv {
 public:
  // Borrows num_blocks() blocks at `data` (64-byte aligned), which live as long as `owner`.
  // `weights` computed them: only engines that run on the same ones may attach them.
  PassageKv(const KvLayout& layout, std::vector<TokenId> head, std::vector<TokenId> tokens,
            std::shared_ptr<const void> owner, const uint8_t* data,
            const std::shared_ptr<const void>& weights);

  // Copies positions [head.size(), head.size() + tokens.size()) out of a sequence's blocks, so that
  // token i lies in slot i % 32 of block i / 32. Slots behind the last token are zero.
  static std::shared_ptr<const PassageKv> copy(const KvLayout& layout, std::vector<TokenId> head,
                                               std::vector<TokenId> tokens,
                                               Span<const uint8_t* const> blocks,
                                               const std::shared_ptr<const void>& weights);

  const std::vector<TokenId>& head() const { return head_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  int num_tokens() const { return static_cast<int>(tokens_.size()); }
  int num_blocks() const { return blocks_for(num_tokens()); }
  const uint8_t* block(int i) const { return data_ + size_t(i) * block_size_bytes_; }
  size_t size_bytes() const { return size_t(num_blocks()) * block_size_bytes_; }

  // Whether an engine with these weights and blocks of this format may attach it.
  bool fits(const std::shared_ptr<const void>& weights, KvFormat format) const {
    return format == format_ && !weights_.owner_before(weights) && !weights.owner_before(weights_);
  }

 private:
  KvFormat format_;
  size_t block_size_bytes_;
  std::vector<TokenId> head_, tokens_;
  std::shared_ptr<const void> owner_;
  const uint8_t* data_;
  std::weak_ptr<const void> weights_;
};

// What a sequence sees besides its own tokens.
using Passages = std::vector<std::shared_ptr<const PassageKv>>;

}  // namespace flarecore
