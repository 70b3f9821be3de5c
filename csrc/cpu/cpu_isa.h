// Which CPU kernels run: chosen once, visible, forceable.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace flarecore {

enum class CpuIsa { kGeneric, kAvx2, kAvx512, kAmx };

const char* isa_name(CpuIsa isa);

// The levels that were built and that this CPU and operating system can run (CPUID and XCR0),
// lowest first. kAvx512 asks for F, BW, DQ, VL and VNNI, kAmx for TILE and BF16 on top, and for the
// permission to use tiles, which Linux gives to a whole process when it is asked.
std::vector<CpuIsa> available_isas();

// The level named `wanted`, or the highest of `available` if that is null or empty. Raises
// ConfigError for an unknown name and UnsupportedError for a level that is not available.
CpuIsa choose_isa(const char* wanted, const std::vector<CpuIsa>& available);

// The level in force: choose_isa of FLARECORE_CPU_ISA. Decided once a process.
CpuIsa active_isa();

// The kernels of the level in force, or of a named level (which must be available).
const KernelTable& kernels();
const KernelTable& kernels_of(CpuIsa isa);

}  // namespace flarecore
