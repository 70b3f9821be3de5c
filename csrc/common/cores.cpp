#include "common/cores.h"

#ifdef __linux__
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#endif

namespace flarecore {

#ifdef __linux__

namespace {

static_assert(sizeof(AllowedCores) >= sizeof(cpu_set_t));

// Fails where the system knows more cores than the set holds, too.
bool get_cores(int64_t thread_id, cpu_set_t* cores) {
  return sched_getaffinity(static_cast<pid_t>(thread_id), sizeof(*cores), cores) == 0;
}

bool set_cores(int64_t thread_id, const cpu_set_t& cores) {
  return sched_setaffinity(static_cast<pid_t>(thread_id), sizeof(cores), &cores) == 0;
}

}  // namespace

int current_core() { return sched_getcpu(); }

int num_allowed_cores() {
  cpu_set_t allowed;
  return get_cores(0, &allowed) ? CPU_COUNT(&allowed) : 0;
}

bool leave_core(int core) {
  if (core < 0 || core >= CPU_SETSIZE || sched_getcpu() != core) return true;
  cpu_set_t allowed, others;
  if (!get_cores(0, &allowed)) return false;
  others = allowed;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0 || !set_cores(0, others)) return false;
  // It stays where it was moved to until the scheduler has a reason of its own.
  set_cores(0, allowed);
  return true;
}

int64_t current_thread_id() { return syscall(SYS_gettid); }

bool move_thread(int64_t thread_id, int core, AllowedCores* before) {
  if (core < 0 || core >= CPU_SETSIZE) return false;
  cpu_set_t allowed, here;
  if (!get_cores(thread_id, &allowed) || !CPU_ISSET(core, &allowed)) return false;
  CPU_ZERO(&here);
  CPU_SET(core, &here);
  std::memcpy(before->bits, &allowed, sizeof(allowed));
  return set_cores(thread_id, here);
}

void allow_cores(int64_t thread_id, const AllowedCores& cores) {
  cpu_set_t allowed;
  std::memcpy(&allowed, cores.bits, sizeof(allowed));
  set_cores(thread_id, allowed);
}

#else

int current_core() { return -1; }
int num_allowed_cores() { return 0; }
bool leave_core(int) { return true; }
int64_t current_thread_id() { return 0; }
bool move_thread(int64_t, int, AllowedCores*) { return false; }
void allow_cores(int64_t, const AllowedCores&) {}

#endif

}  // namespace flarecore
