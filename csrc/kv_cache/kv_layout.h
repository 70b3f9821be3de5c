// How K and V lie inside a block.
#pragma once

#include <cstddef>

#include "common/types.h"

namespace flarecore {

// Where K and V of one KV head lie inside a block: [layer][K, V][kv head][32 x head_dim values],
// K as (head_dim, 32) with the token index fastest, V as (32, head_dim).
struct KvLayout {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  bool float16 = true;

  size_t value_size_bytes() const { return float16 ? 2 : 4; }
  size_t head_size_bytes() const { return size_t(head_dim) * kBlockTokens * value_size_bytes(); }
  size_t block_size_bytes() const { return size_t(num_layers) * 2 * num_kv_heads * head_size_bytes(); }
  size_t k_offset(int layer, int kv_head) const {
    return (size_t(layer) * 2 * num_kv_heads + kv_head) * head_size_bytes();
  }
  size_t v_offset(int layer, int kv_head) const {
    return k_offset(layer, kv_head) + num_kv_heads * head_size_bytes();
  }
};

inline constexpr int blocks_for(int num_tokens) {
  return (num_tokens + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace flarecore
