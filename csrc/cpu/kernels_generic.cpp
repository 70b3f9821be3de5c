#include "cpu/simd_generic.h"

#include "cpu/dot_generic.h"
#include "cpu/kernel_table.inc"
#include "cpu/kernel_tables.h"

namespace flarecore {

const KernelTable& kernel_table_generic() {
  static constexpr KernelTable table = make_table("generic", KvFormat::kFloat16);
  return table;
}

}  // namespace flarecore
