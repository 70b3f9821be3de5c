#include "kv_cache/kv_slots.h"

#include <cstring>

namespace flarecore {
namespace {

// Numbers of Size bytes, kBlockTokens of them between two of a token.
template <size_t Size>
void scatter(const void* numbers, int count, int slot, uint8_t* k) {
  const uint8_t* from = static_cast<const uint8_t*>(numbers);
  uint8_t* to = k + size_t(slot) * Size;
  for (int i = 0; i < count; ++i, from += Size, to += kBlockTokens * Size) {
    std::memcpy(to, from, Size);
  }
}

// Where V has the first number of a token in kInt16; the others are two further each.
size_t word_place(const KvLayout& layout, int slot) {
  return size_t(slot / 2) * 2 * kv_row(layout.head_dim) + slot % 2;
}

void copy_keys(const KvLayout& layout, const uint8_t* from, uint8_t* to, int count) {
  // Of a token at a time: a float32, a float16, or two int16.
  const size_t size = layout.format == KvFormat::kFloat16 ? 2 : 4;
  const int lines = layout.format == KvFormat::kInt16 ? layout.head_dim / 2 : layout.head_dim;
  for (int i = 0; i < lines; ++i, from += kBlockTokens * size, to += kBlockTokens * size) {
    std::memcpy(to, from, count * size);
  }
}

void copy_value_words(const KvLayout& layout, const uint8_t* from, int from_slot, uint8_t* to,
                      int to_slot, int count) {
  for (int i = 0; i < count; ++i) {
    const auto* in = reinterpret_cast<const int16_t*>(from) + word_place(layout, from_slot + i);
    auto* out = reinterpret_cast<int16_t*>(to) + word_place(layout, to_slot + i);
    for (int d = 0; d < layout.head_dim; ++d) out[2 * d] = in[2 * d];
  }
}

void copy_scales(const KvLayout& layout, const uint8_t* from, int from_slot, uint8_t* to,
                 int to_slot, int count) {
  const size_t at = kv_scales_offset(layout.head_dim);
  std::memcpy(to + at + to_slot * sizeof(float), from + at + from_slot * sizeof(float),
              count * sizeof(float));
}

}  // namespace

void store_key(const KvLayout& layout, const KernelTable& kernels, const float* key, int slot,
               uint8_t* k) {
  if (layout.format == KvFormat::kFloat32) return scatter<4>(key, layout.head_dim, slot, k);
  if (layout.format == KvFormat::kFloat16) {
    uint16_t halves[kMaxHeadDim];
    kernels.to_float16(key, layout.head_dim, halves);
    return scatter<2>(halves, layout.head_dim, slot, k);
  }
  int16_t words[kMaxHeadDim];
  float* scales = reinterpret_cast<float*>(k + kv_scales_offset(layout.head_dim));
  scales[slot] = kernels.words_by_norm(key, layout.head_dim, words);
  scatter<4>(words, layout.head_dim / 2, slot, k);
}

void store_value(const KvLayout& layout, const KernelTable& kernels, const float* value, int slot,
                 uint8_t* v) {
  const size_t row = size_t(layout.head_dim) * slot;
  if (layout.format == KvFormat::kFloat32) {
    std::memcpy(v + row * sizeof(float), value, layout.head_dim * sizeof(float));
  } else if (layout.format == KvFormat::kFloat16) {
    kernels.to_float16(value, layout.head_dim, reinterpret_cast<uint16_t*>(v) + row);
  } else {
    int16_t words[kMaxHeadDim];
    float* scales = reinterpret_cast<float*>(v + kv_scales_offset(layout.head_dim));
    scales[slot] = kernels.words_by_peak(value, layout.head_dim, words);
    int16_t* out = reinterpret_cast<int16_t*>(v) + word_place(layout, slot);
    for (int d = 0; d < layout.head_dim; ++d) out[2 * d] = words[d];
  }
}

void copy_slots(const KvLayout& layout, const uint8_t* from, int from_slot, uint8_t* to,
                int to_slot, int count) {
  const bool in_words = layout.format == KvFormat::kInt16;
  const size_t size = layout.format == KvFormat::kFloat16 ? 2 : 4;
  const size_t row = size_t(layout.head_dim) * size;
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      const size_t k = layout.k_offset(layer, head), v = layout.v_offset(layer, head);
      copy_keys(layout, from + k + from_slot * size, to + k + to_slot * size, count);
      if (!in_words) {
        std::memcpy(to + v + to_slot * row, from + v + from_slot * row, count * row);
        continue;
      }
      copy_value_words(layout, from + v, from_slot, to + v, to_slot, count);
      copy_scales(layout, from + k, from_slot, to + k, to_slot, count);
      copy_scales(layout, from + v, from_slot, to + v, to_slot, count);
    }
  }
}

}  // namespace flarecore
