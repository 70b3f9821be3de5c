// Where the numbers of a packed tile lie: shared by the packer and the kernels.
//
// A quantised tile of T channels and K inputs is three arrays, one after the other:
//   codes   [K / 32][T * code_bytes]   integer codes of a group, T channels interleaved
//   scales  [K / 32][T * scale_bytes]  numbers of a group, each field as T neighbours
//   supers  [K / 256][T * super_bytes] k-quants: float16 d (and dmin), each as T neighbours
// Codes of a group are vectors of T * 4 bytes; byte 4 * c + i of a vector belongs to channel c:
//   8-bit: vector j (of 8) holds input 4 * j + i, signed
//   4-bit: vector j (of 4) holds input 4 * j + i in the low nibble, 4 * (j + 4) + i in the high
//   5-bit: as 4-bit; a fifth vector holds the high bit of input 4 * j + i in bit j
//   6-bit: as 4-bit; two more vectors p hold the high two bits of input 4 * (4 * p + j) + i in
//          bits 2 * j, 2 * j + 1
// Scale fields: float16 scale (and min); kQ4_K, kQ5_K: uint8 s, m; kQ6_K: int8 s of each half.
//
// Functions are static: a file compiled for one ISA level must not lend its copy to another file.
#pragma once

#include "cpu/kernels.h"

namespace flarecore {

struct PackedLayout {
  int bits;         // of a code
  bool has_min;     // value = code * scale + min, else value = (code - zero) * scale
  int zero;
  int code_bytes;   // per channel and group of 32
  int scale_bytes;  // per channel and group of 32
  int super_bytes;  // per channel and 256 inputs; 0: no k-quant
};

static constexpr PackedLayout packed_layout(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_0: return {4, false, 8, 16, 2, 0};
    case WeightFormat::kQ4_1: return {4, true, 0, 16, 4, 0};
    case WeightFormat::kQ4_K: return {4, true, 0, 16, 2, 4};
    case WeightFormat::kQ5_0: return {5, false, 16, 20, 2, 0};
    case WeightFormat::kQ5_1: return {5, true, 0, 20, 4, 0};
    case WeightFormat::kQ5_K: return {5, true, 0, 20, 2, 4};
    case WeightFormat::kQ8_0: return {8, false, 0, 32, 2, 0};
    case WeightFormat::kQ6_K: return {6, false, 32, 24, 2, 2};
    default: return {0, false, 0, 0, 0, 0};
  }
}

constexpr int kSuperSize = 256;

// Steps between the lowest and the highest activation of a group, 0 included: both ends rounded, a
// value lies up to 254 above the lowest, which is what int8 without -128 holds.
constexpr float kActivationSteps = 253.0f;

static constexpr int float_value_bytes(WeightFormat format) {
  return format == WeightFormat::kF32 ? 4 : 2;
}

static constexpr int64_t scales_offset(const PackedLayout& layout, int tile, int64_t num_cols) {
  return num_cols / kGroupSize * layout.code_bytes * tile;
}

static constexpr int64_t supers_offset(const PackedLayout& layout, int tile, int64_t num_cols) {
  return scales_offset(layout, tile, num_cols) +
         num_cols / kGroupSize * layout.scale_bytes * tile;
}

// Rounded up to whole cache lines.
static constexpr int64_t packed_tile_bytes(WeightFormat format, int tile, int64_t num_cols) {
  const PackedLayout layout = packed_layout(format);
  const int64_t bytes = is_quantized(format)
                            ? supers_offset(layout, tile, num_cols) +
                                  num_cols / kSuperSize * layout.super_bytes * tile
                            : num_cols * tile * float_value_bytes(format);
  return (bytes + 63) / 64 * 64;
}

}  // namespace flarecore
