// How much memory there is for this process, and how much it may still take.
#pragma once

#include <cstdint>

namespace flarecore {

// Bytes that are free or can be freed, of the machine and of the control group; INT64_MAX where the
// system does not say.
int64_t available_memory_bytes();

// Bytes of the machine, or of the control group where that has fewer; INT64_MAX as above.
int64_t total_memory_bytes();

}  // namespace flarecore
