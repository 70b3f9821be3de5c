// How much memory this process may still take.
#pragma once

#include <cstdint>

namespace flarecore {

// Bytes that are free or can be freed, of the machine and of the control group; INT64_MAX where the
// system does not say.
int64_t available_memory_bytes();

}  // namespace flarecore
