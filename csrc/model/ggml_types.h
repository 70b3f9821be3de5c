// Tensor types of a GGUF file: sizes and the slow, obvious dequantisation.
//
// Source: the GGUF specification and the block layouts of its tensor types.
#pragma once

#include <cstdint>

namespace flarecore {

enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

struct GgmlTypeInfo {
  const char* name;
  int block_values;      // values that share one block; a row holds whole blocks
  int block_size_bytes;  // bytes of one block
};

// The supported type with this id; nullptr if it is unknown or not supported.
const GgmlTypeInfo* find_ggml_type(uint32_t id);

// Info of a supported type.
const GgmlTypeInfo& ggml_type_info(GgmlType type);

// Values [32 * group, 32 * group + 32) of a row as stored: integer codes and the numbers that scale
// them. Quantised types only. The value of code i is
//   min formats (Q4_1, Q5_1, Q4_K, Q5_K):  codes[i] * scale[i / 16] + min
//   the others:                           (codes[i] - zero) * scale[i / 16]
// with scale and min in float32, which is the specification's own arithmetic.
struct GgmlGroup {
  uint8_t codes[32];  // unsigned; Q8_0: q + 128
  int zero;           // 8, 16, 128, 32; 0 for the min formats
  bool has_min;
  float scale[2];     // of the first and the second 16 values
  float min;
  // The stored numbers behind scale and min, for lossless repacking.
  uint16_t d, m;      // float16: d and m, or d and dmin
  uint8_t sub_scale[2];  // k-quants: 6-bit scale (both equal), or int8 scales of Q6_K
  uint8_t sub_min;       // k-quants: 6-bit minimum
};
void read_ggml_group(GgmlType type, const uint8_t* row, int64_t group, GgmlGroup* out);

// out (32): the values of a group, by the arithmetic above.
void restore_group(const GgmlGroup& group, float* out);

// out (num_values) float32 from whole blocks at `data`; num_values is a multiple of block_values.
void dequantize(GgmlType type, const uint8_t* data, int64_t num_values, float* out);

}  // namespace flarecore
