#include "common/huge_pages.h"

#include <cstdlib>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace flarecore {

uint8_t* allocate_huge_pages(size_t* size_bytes) {
  *size_bytes = (*size_bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, *size_bytes);
#ifdef __linux__
  if (memory != nullptr) madvise(memory, *size_bytes, MADV_HUGEPAGE);  // a wish
#endif
  return static_cast<uint8_t*>(memory);
}

}  // namespace flarecore
