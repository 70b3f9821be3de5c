#include "model/ggml_types.h"

namespace flarecore {

const GgmlTypeInfo* find_ggml_type(uint32_t id) {
  static constexpr struct {
    GgmlType type;
    GgmlTypeInfo info;
  } kTypes[] = {
      {GgmlType::kF32, {"F32", 1, 4}},        {GgmlType::kF16, {"F16", 1, 2}},
      {GgmlType::kQ4_0, {"Q4_0", 32, 18}},    {GgmlType::kQ4_1, {"Q4_1", 32, 20}},
      {GgmlType::kQ5_0, {"Q5_0", 32, 22}},    {GgmlType::kQ5_1, {"Q5_1", 32, 24}},
      {GgmlType::kQ8_0, {"Q8_0", 32, 34}},    {GgmlType::kQ4_K, {"Q4_K", 256, 144}},
      {GgmlType::kQ5_K, {"Q5_K", 256, 176}},  {GgmlType::kQ6_K, {"Q6_K", 256, 210}},
      {GgmlType::kBF16, {"BF16", 1, 2}},
  };
  for (const auto& entry : kTypes) {
    if (static_cast<uint32_t>(entry.type) == id) return &entry.info;
  }
  return nullptr;
}

}  // namespace flarecore
