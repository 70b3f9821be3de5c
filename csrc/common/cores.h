// Which core runs a thread, and moving threads between cores. Does nothing where the system has no
// such calls (anything but Linux).
#pragma once

#include <cstdint>

namespace flarecore {

// The core that runs this thread, -1 where the system does not say.
int current_core();

// How many cores this thread may use, 0 where the system does not say.
int num_allowed_cores();

// Moves this thread away if it runs on `core`; the cores it may use stay what they were. False if
// it has to stay there.
bool leave_core(int core);

int64_t current_thread_id();

// The cores that a thread may use, as the system writes them.
struct AllowedCores {
  alignas(8) unsigned char bits[128];
};

// Has a thread run on `core` and nowhere else; `before` is what allow_cores() takes to undo it.
// False if it may not use that core or is not moved.
bool move_thread(int64_t thread_id, int core, AllowedCores* before);
void allow_cores(int64_t thread_id, const AllowedCores& cores);

}  // namespace flarecore
