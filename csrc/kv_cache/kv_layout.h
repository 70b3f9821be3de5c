// How K and V lie inside a block.
#pragma once

#include <cstddef>

#include "common/kv_format.h"

namespace flarecore {

// Where K and V of one KV head lie inside a block: [layer][K, V][kv head][kv_head_bytes].
struct KvLayout {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  KvFormat format = KvFormat::kFloat16;

  size_t head_size_bytes() const { return kv_head_bytes(format, head_dim); }
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
