#include "cpu/simd_avx512.h"

#include "cpu/dot_avx512.h"
#include "cpu/kernel_table.inc"
#include "cpu/kernel_tables.h"

namespace flarecore {

const KernelTable& kernel_table_avx512() {
  static constexpr KernelTable table = make_table("avx512", KvFormat::kInt16);
  return table;
}

}  // namespace flarecore
