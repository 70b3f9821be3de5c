// The kernel table of each ISA level that was built.
#pragma once

#include "cpu/kernels.h"

namespace flarecore {

const KernelTable& kernel_table_generic();
#ifdef FLARECORE_X86
const KernelTable& kernel_table_avx2();
const KernelTable& kernel_table_avx512();
const KernelTable* kernel_table_amx();  // null where the compiler lacks the level
// The AMX level's attention over float16 blocks.
void attention_amx(const AttentionArgs& args);
int64_t attention_amx_scratch_bytes();
// For tests: products by tiles so far, and bands of pairs that attention worked on, in units of one
// tile or as several tiles.
int64_t num_amx_products();
int64_t num_amx_bands(bool in_units);
#endif

}  // namespace flarecore
