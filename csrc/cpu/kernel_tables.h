// The kernel table of each ISA level that was built.
#pragma once

#include "cpu/kernels.h"

namespace flarecore {

const KernelTable& kernel_table_generic();
#ifdef FLARECORE_X86
const KernelTable& kernel_table_avx2();
const KernelTable& kernel_table_avx512();
const KernelTable* kernel_table_amx();  // null where the compiler lacks the level
int64_t num_amx_products();  // calls so far that worked on tiles; for tests
#endif

}  // namespace flarecore
