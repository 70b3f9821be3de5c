#include "model/ggml_types.h"

#include <cstring>

#include "common/check.h"
#include "cpu/half.h"

namespace flarecore {
namespace {

constexpr GgmlTypeInfo kF32{"F32", 1, 4}, kF16{"F16", 1, 2}, kBF16{"BF16", 1, 2};
constexpr GgmlTypeInfo kQ4_0{"Q4_0", 32, 18}, kQ4_1{"Q4_1", 32, 20}, kQ5_0{"Q5_0", 32, 22};
constexpr GgmlTypeInfo kQ5_1{"Q5_1", 32, 24}, kQ8_0{"Q8_0", 32, 34};
constexpr GgmlTypeInfo kQ4_K{"Q4_K", 256, 144}, kQ5_K{"Q5_K", 256, 176}, kQ6_K{"Q6_K", 256, 210};

uint16_t read_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

uint32_t read_u32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// Low nibbles are values 0..15 of the block, high nibbles values 16..31.
void read_nibbles(const uint8_t* q, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = q[i] & 15;
    codes[i + 16] = q[i] >> 4;
  }
}

void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  const uint32_t high = read_u32(bits);
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>(((high >> i) & 1) << 4);
}

void set_simple(GgmlGroup* g, int zero) {
  g->zero = zero;
  g->scale[0] = g->scale[1] = float_from_half(g->d);
  g->has_min = zero == 0;
  g->min = g->has_min ? float_from_half(g->m) : 0.0f;
}

// Q4_K and Q5_K: eight 6-bit scales and minima in 12 bytes. The first four of each sit in the low
// bits of bytes 0..3 and 4..7; the last four are split over bytes 8..11 and the spare high bits.
void set_k_scales(const uint8_t* block, int sub, GgmlGroup* g) {
  const uint8_t* s = block + 4;
  uint8_t scale, min;
  if (sub < 4) {
    scale = s[sub] & 63;
    min = s[sub + 4] & 63;
  } else {
    scale = static_cast<uint8_t>((s[sub + 4] & 15) | ((s[sub - 4] >> 6) << 4));
    min = static_cast<uint8_t>((s[sub + 4] >> 4) | ((s[sub] >> 6) << 4));
  }
  g->d = read_u16(block);
  g->m = read_u16(block + 2);
  g->sub_scale[0] = g->sub_scale[1] = scale;
  g->sub_min = min;
  g->zero = 0;
  g->has_min = true;
  g->scale[0] = g->scale[1] = float_from_half(g->d) * static_cast<float>(scale);
  g->min = -(float_from_half(g->m) * static_cast<float>(min));
}

// Two sub-blocks of 32 share 32 bytes: the even one in the low nibbles, the odd one in the high.
void read_k_nibbles(const uint8_t* q, int sub, uint8_t* codes) {
  const int shift = 4 * (sub & 1);
  for (int i = 0; i < 32; ++i) codes[i] = (q[32 * (sub / 2) + i] >> shift) & 15;
}

void read_q6_k(const uint8_t* block, int sub, GgmlGroup* g) {
  const int half = sub / 4, quarter = sub % 4;  // 128 values; 32 of them
  const uint8_t* low = block + 64 * half + 32 * (quarter & 1);
  const uint8_t* high = block + 128 + 32 * half;
  for (int i = 0; i < 32; ++i) {
    const int nibble = (low[i] >> (4 * (quarter / 2))) & 15;
    g->codes[i] = static_cast<uint8_t>(nibble | (((high[i] >> (2 * quarter)) & 3) << 4));
  }
  g->d = read_u16(block + 208);
  g->zero = 32;
  for (int i = 0; i < 2; ++i) {
    g->sub_scale[i] = block[192 + 2 * sub + i];
    g->scale[i] = float_from_half(g->d) *
                  static_cast<float>(static_cast<int8_t>(g->sub_scale[i]));
  }
}

}  // namespace

const GgmlTypeInfo* find_ggml_type(uint32_t id) {
  switch (static_cast<GgmlType>(id)) {
    case GgmlType::kF32: return &kF32;
    case GgmlType::kF16: return &kF16;
    case GgmlType::kBF16: return &kBF16;
    case GgmlType::kQ4_0: return &kQ4_0;
    case GgmlType::kQ4_1: return &kQ4_1;
    case GgmlType::kQ5_0: return &kQ5_0;
    case GgmlType::kQ5_1: return &kQ5_1;
    case GgmlType::kQ8_0: return &kQ8_0;
    case GgmlType::kQ4_K: return &kQ4_K;
    case GgmlType::kQ5_K: return &kQ5_K;
    case GgmlType::kQ6_K: return &kQ6_K;
  }
  return nullptr;
}

const GgmlTypeInfo& ggml_type_info(GgmlType type) {
  const GgmlTypeInfo* info = find_ggml_type(static_cast<uint32_t>(type));
  check(info != nullptr, ErrorKind::kInternal, "tensor type ", static_cast<uint32_t>(type),
        " is not one of the supported types");
  return *info;
}

void read_ggml_group(GgmlType type, const uint8_t* row, int64_t group, GgmlGroup* g) {
  const GgmlTypeInfo& info = ggml_type_info(type);
  const int groups_per_block = info.block_values / 32;
  check(groups_per_block > 0, ErrorKind::kInternal, info.name, " has no groups of 32");
  const uint8_t* block = row + group / groups_per_block * info.block_size_bytes;
  const int sub = static_cast<int>(group % groups_per_block);
  *g = GgmlGroup{};
  g->d = read_u16(block);
  switch (type) {
    case GgmlType::kQ4_0:
      read_nibbles(block + 2, g->codes);
      return set_simple(g, 8);
    case GgmlType::kQ4_1:
      g->m = read_u16(block + 2);
      read_nibbles(block + 4, g->codes);
      return set_simple(g, 0);
    case GgmlType::kQ5_0:
      read_nibbles(block + 6, g->codes);
      add_fifth_bits(block + 2, g->codes);
      return set_simple(g, 16);
    case GgmlType::kQ5_1:
      g->m = read_u16(block + 2);
      read_nibbles(block + 8, g->codes);
      add_fifth_bits(block + 4, g->codes);
      return set_simple(g, 0);
    case GgmlType::kQ8_0:
      for (int i = 0; i < 32; ++i) g->codes[i] = block[2 + i] ^ 0x80;  // two's complement + 128
      return set_simple(g, 128);
    case GgmlType::kQ4_K:
      read_k_nibbles(block + 16, sub, g->codes);
      return set_k_scales(block, sub, g);
    case GgmlType::kQ5_K:
      read_k_nibbles(block + 48, sub, g->codes);
      for (int i = 0; i < 32; ++i) {
        g->codes[i] |= static_cast<uint8_t>(((block[16 + i] >> sub) & 1) << 4);
      }
      return set_k_scales(block, sub, g);
    case GgmlType::kQ6_K:
      return read_q6_k(block, sub, g);
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
      break;  // no groups: refused above
  }
}

void restore_group(const GgmlGroup& g, float* out) {
  for (int i = 0; i < 32; ++i) {
    const float scale = g.scale[i / 16];
    out[i] = g.has_min ? static_cast<float>(g.codes[i]) * scale + g.min
                       : static_cast<float>(g.codes[i] - g.zero) * scale;
  }
}

void dequantize(GgmlType type, const uint8_t* data, int64_t num_values, float* out) {
  const GgmlTypeInfo& info = ggml_type_info(type);
  check(num_values >= 0 && num_values % info.block_values == 0, ErrorKind::kModelFile, info.name,
        " values come in blocks of ", info.block_values, ", got ", num_values, " values");
  if (type == GgmlType::kF32) {
    std::memcpy(out, data, static_cast<size_t>(num_values) * sizeof(float));
    return;
  }
  if (type == GgmlType::kF16 || type == GgmlType::kBF16) {
    for (int64_t i = 0; i < num_values; ++i) {
      const uint16_t bits = read_u16(data + 2 * i);
      out[i] = type == GgmlType::kF16 ? float_from_half(bits) : float_from_bfloat16(bits);
    }
    return;
  }
  GgmlGroup g;
  for (int64_t group = 0; group < num_values / 32; ++group) {
    read_ggml_group(type, data, group, &g);
    restore_group(g, out + 32 * group);
  }
}

}  // namespace flarecore
