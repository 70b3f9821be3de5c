// Groups of 32 values in a packed tile: writing and reading one channel's. Internal to the packer.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/half.h"
#include "cpu/packed_layout.h"
#include "model/ggml_types.h"

namespace flarecore {

// Addresses of the fields of one channel in one group of a tile.
struct GroupFields {
  PackedLayout layout;
  int tile;
  uint8_t* codes;   // of the group; vectors of tile * 4 bytes
  uint8_t* scales;  // of the group
  uint8_t* supers;  // of the group's 256 inputs
  int channel;

  uint8_t* code_byte(int vector, int i) const {
    return codes + (vector * tile + channel) * 4 + i;
  }
  uint8_t* scale_field(int field, int size) const {
    return scales + (field * tile + channel) * size;
  }
  uint8_t* super_field(int field) const { return supers + (field * tile + channel) * 2; }
};

static inline GroupFields fields_of(const PackedView& w, uint8_t* tile_data, int64_t group,
                                    int channel) {
  const PackedLayout layout = packed_layout(w.format);
  const int64_t super = group / (kSuperSize / kGroupSize);
  return {layout,
          w.tile,
          tile_data + group * layout.code_bytes * w.tile,
          tile_data + scales_offset(layout, w.tile, w.num_cols) +
              group * layout.scale_bytes * w.tile,
          tile_data + supers_offset(layout, w.tile, w.num_cols) +
              super * layout.super_bytes * w.tile,
          channel};
}

// Four codes side by side go into one word of a vector; the tile's memory starts out as zeros.
static inline void store_codes(const uint8_t* codes, const GroupFields& f) {
  const int bits = f.layout.bits;
  uint8_t bytes[8][4] = {};
  if (bits == 8) {
    for (int i = 0; i < 32; ++i) bytes[i / 4][i % 4] = codes[i] ^ 0x80;
    for (int j = 0; j < 8; ++j) std::memcpy(f.code_byte(j, 0), bytes[j], 4);
    return;
  }
  for (int i = 0; i < 16; ++i) {
    const int low = codes[i] & 15, high = codes[i + 16] & 15;
    bytes[i / 4][i % 4] = static_cast<uint8_t>(low | (high << 4));
  }
  for (int i = 0; i < 32 && bits > 4; ++i) {
    const int j = i / 4, above = codes[i] >> 4;
    uint8_t& plane = bits == 5 ? bytes[4][i % 4] : bytes[4 + j / 4][i % 4];
    plane |= static_cast<uint8_t>(bits == 5 ? above << j : above << (2 * (j % 4)));
  }
  const int vectors = f.layout.code_bytes / 4;
  for (int v = 0; v < vectors; ++v) std::memcpy(f.code_byte(v, 0), bytes[v], 4);
}

// The codes as the kernels read them: 8-bit ones are signed.
static inline void load_codes(const GroupFields& f, int* codes) {
  const int bits = f.layout.bits;
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 4; ++i) {
      int code;
      if (bits == 8) {
        code = static_cast<int8_t>(*f.code_byte(j, i));
      } else {
        code = (*f.code_byte(j % 4, i) >> (j < 4 ? 0 : 4)) & 15;
        if (bits == 5) code |= ((*f.code_byte(4, i) >> j) & 1) << 4;
        if (bits == 6) code |= ((*f.code_byte(4 + j / 4, i) >> (2 * (j % 4))) & 3) << 4;
      }
      codes[4 * j + i] = code;
    }
  }
}

static inline void store_group(const GgmlGroup& g, const GroupFields& f) {
  store_codes(g.codes, f);
  if (f.layout.super_bytes == 0) {
    std::memcpy(f.scale_field(0, 2), &g.d, 2);
    if (f.layout.scale_bytes == 4) std::memcpy(f.scale_field(1, 2), &g.m, 2);
    return;
  }
  const bool has_min = f.layout.has_min;
  *f.scale_field(0, 1) = g.sub_scale[0];
  *f.scale_field(1, 1) = has_min ? g.sub_min : g.sub_scale[1];
  std::memcpy(f.super_field(0), &g.d, 2);
  if (has_min) std::memcpy(f.super_field(1), &g.m, 2);
}

static inline float load_half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return float_from_half(bits);
}

// The inverse of store_group: the 32 values, by the arithmetic of the specification.
static inline void load_group(const GroupFields& f, float* out) {
  int codes[32];
  load_codes(f, codes);
  const bool has_min = f.layout.has_min;
  float scale[2], min = 0.0f;
  if (f.layout.super_bytes == 0) {
    scale[0] = scale[1] = load_half(f.scale_field(0, 2));
    if (has_min) min = load_half(f.scale_field(1, 2));
  } else {
    const float d = load_half(f.super_field(0));
    const uint8_t first = *f.scale_field(0, 1), second = *f.scale_field(1, 1);
    if (has_min) {
      scale[0] = scale[1] = d * static_cast<float>(first);
      min = -(load_half(f.super_field(1)) * static_cast<float>(second));
    } else {
      scale[0] = d * static_cast<float>(static_cast<int8_t>(first));
      scale[1] = d * static_cast<float>(static_cast<int8_t>(second));
    }
  }
  for (int i = 0; i < 32; ++i) {
    const float q = static_cast<float>(codes[i] - f.layout.zero);
    out[i] = has_min ? q * scale[i / 16] + min : q * scale[i / 16];
  }
}

}  // namespace flarecore
