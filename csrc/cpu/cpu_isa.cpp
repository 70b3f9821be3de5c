#include "cpu/cpu_isa.h"

#include <algorithm>
#include <cstdlib>

#include "common/check.h"
#include "cpu/kernel_tables.h"

#ifdef FLARECORE_X86
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace flarecore {
namespace {

constexpr CpuIsa kAllIsas[] = {CpuIsa::kGeneric, CpuIsa::kAvx2, CpuIsa::kAvx512,
                                CpuIsa::kAmx};

#ifdef FLARECORE_X86
bool has_bits(uint64_t value, uint64_t bits) { return (value & bits) == bits; }

// Register state that the operating system saves and restores.
uint64_t read_xcr0() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Asks for the right to use tiles. The kernel enlarges a thread's state at its first tile
// instruction only, and refuses where an alternative signal stack is too small for it.
bool may_use_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool has_amx(uint64_t xcr0, uint32_t d7) {
  constexpr uint32_t kTile = 1u << 24, kBfloat16 = 1u << 22;
  constexpr uint64_t kTileState = uint64_t{3} << 17;  // configuration and data
  return kernel_table_amx() != nullptr && has_bits(d7, kTile | kBfloat16) &&
         has_bits(xcr0, kTileState) && may_use_tiles();
}

CpuIsa highest_isa() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return CpuIsa::kGeneric;
  if (!has_bits(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) return CpuIsa::kGeneric;
  const uint64_t xcr0 = read_xcr0();
  uint32_t b7, c7, d7;
  if (!has_bits(xcr0, 0x6) || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) ||
      !has_bits(b7, bit_AVX2)) {
    return CpuIsa::kGeneric;
  }
  const bool has_avx512 =
      has_bits(xcr0, 0xe6) &&  // mask registers and both halves of zmm
      has_bits(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) &&
      has_bits(c7, bit_AVX512VNNI);
  if (!has_avx512) return CpuIsa::kAvx2;
  return has_amx(xcr0, d7) ? CpuIsa::kAmx : CpuIsa::kAvx512;
}
#else
CpuIsa highest_isa() { return CpuIsa::kGeneric; }
#endif

std::string join_names(const std::vector<CpuIsa>& isas) {
  std::string names;
  for (CpuIsa isa : isas) names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  return names;
}

void check_available(CpuIsa isa, const std::vector<CpuIsa>& available) {
  check(std::find(available.begin(), available.end(), isa) != available.end(),
        ErrorKind::kUnsupported, "CPU level ", isa_name(isa),
        " is not available on this machine, which has: ", join_names(available),
        ". Unset FLARECORE_CPU_ISA or choose one of these");
}

}  // namespace

const char* isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kGeneric: return "generic";
    case CpuIsa::kAvx2: return "avx2";
    case CpuIsa::kAvx512: return "avx512";
    case CpuIsa::kAmx: return "amx";
  }
  return "unknown";
}

std::vector<CpuIsa> available_isas() {
  static const CpuIsa highest = highest_isa();
  std::vector<CpuIsa> isas;
  for (CpuIsa isa : kAllIsas) {
    if (isa <= highest) isas.push_back(isa);
  }
  return isas;
}

CpuIsa choose_isa(const char* wanted, const std::vector<CpuIsa>& available) {
  if (wanted == nullptr || *wanted == '\0') return available.back();
  for (CpuIsa isa : kAllIsas) {
    if (std::string(wanted) == isa_name(isa)) {
      check_available(isa, available);
      return isa;
    }
  }
  fail(ErrorKind::kConfig, "FLARECORE_CPU_ISA is '", wanted,
       "', which is no CPU level; choose one of: ",
       join_names({std::begin(kAllIsas), std::end(kAllIsas)}));
}

CpuIsa active_isa() {
  static const CpuIsa isa = choose_isa(std::getenv("FLARECORE_CPU_ISA"), available_isas());
  return isa;
}

const KernelTable& kernels() {
  static const KernelTable& table = kernels_of(active_isa());
  return table;
}

const KernelTable& kernels_of(CpuIsa isa) {
  check_available(isa, available_isas());
#ifdef FLARECORE_X86
  if (isa == CpuIsa::kAvx2) return kernel_table_avx2();
  if (isa == CpuIsa::kAvx512) return kernel_table_avx512();
  if (isa == CpuIsa::kAmx) return *kernel_table_amx();
#endif
  return kernel_table_generic();
}

}  // namespace flarecore
