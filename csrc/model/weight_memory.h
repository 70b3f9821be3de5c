// Memory of packed weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace flarecore {

// 64-byte aligned memory; it goes back when the last pointer to it and to its neighbours is gone.
// Matrices lie side by side in large runs that ask for huge pages, since streaming weights through
// small pages loses a tenth of the bandwidth for one row and more for several. Thread-safe. Raises
// UnsupportedError if there is no memory.
std::shared_ptr<uint8_t> allocate_weights(size_t size_bytes);

}  // namespace flarecore
