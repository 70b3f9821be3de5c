// How K and V of one KV head lie inside a block: kernels and kv_cache agree on it.
#pragma once

#include <cstddef>

#include "common/types.h"

namespace flarecore {

// K is (head_dim, 32) with the token index fastest, V is (32, head_dim). kInt16 has integers, times
// a scale of each token for K and one for V (float32): K as (head_dim / 2, 32, 2), V as (16,
// kv_row, 2), so that neighbours are what one instruction multiplies and adds up; the 32 scales
// follow. A token's K has 32,700 steps in its norm, V 8,191 in its largest magnitude
// (cpu/words.inc): no less than float16 keeps of their sums, and no sum of products leaves 32 bits.
enum class KvFormat : uint8_t { kFloat32, kFloat16, kInt16 };

// Numbers between two rows of V in kInt16: whole vectors of every level.
constexpr int kv_row(int head_dim) { return (head_dim + 15) / 16 * 16; }

// Where the scales begin in kInt16.
constexpr size_t kv_scales_offset(int head_dim) {
  return size_t(kv_row(head_dim)) * kBlockTokens * sizeof(int16_t);
}

// Bytes of K, or of V, of one head in a block.
constexpr size_t kv_head_bytes(KvFormat format, int head_dim) {
  switch (format) {
    case KvFormat::kFloat32: return size_t(head_dim) * kBlockTokens * sizeof(float);
    case KvFormat::kFloat16: return size_t(head_dim) * kBlockTokens * sizeof(uint16_t);
    default: return kv_scales_offset(head_dim) + kBlockTokens * sizeof(float);
  }
}

constexpr const char* kv_format_name(KvFormat format) {
  switch (format) {
    case KvFormat::kFloat32: return "float32";
    case KvFormat::kFloat16: return "float16";
    default: return "int16";
  }
}

}  // namespace flarecore
