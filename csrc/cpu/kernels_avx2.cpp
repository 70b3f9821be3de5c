#include "cpu/simd_avx2.h"

#include "cpu/dot_avx2.h"
#include "cpu/kernel_table.inc"
#include "cpu/kernel_tables.h"

namespace flarecore {

const KernelTable& kernel_table_avx2() {
  static constexpr KernelTable table = make_table("avx2", KvFormat::kFloat16);
  return table;
}

}  // namespace flarecore
