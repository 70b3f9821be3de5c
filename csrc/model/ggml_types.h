// GGUF tensor types: sizes.
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
  int block_values;
  int block_size_bytes;
};

// nullptr: unknown or unsupported.
const GgmlTypeInfo* find_ggml_type(uint32_t id);

}  // namespace flarecore
