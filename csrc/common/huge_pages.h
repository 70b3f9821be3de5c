// Memory in huge pages, where the system gives them: small ones cost a table walk each.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flarecore {

constexpr size_t kHugePage = size_t{2} << 20;

// Whole huge pages of at least size_bytes; *size_bytes becomes their size. Null if there is no
// memory. To be freed by std::free.
uint8_t* allocate_huge_pages(size_t* size_bytes);

}  // namespace flarecore
