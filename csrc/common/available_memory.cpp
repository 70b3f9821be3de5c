#include "common/available_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace flarecore {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

int64_t machine_available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (int64_t kilobytes; file >> name >> kilobytes; std::getline(file, unit)) {
    if (name == "MemAvailable:") return kilobytes * 1024;
  }
  return kUnknown;
}

// The group that a container sees as its root, by cgroup version; groups inside it are not looked
// at.
struct GroupFiles {
  const char *limit, *used;
};
constexpr GroupFiles kGroups[] = {
    {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
    {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};

int64_t number_in(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : kUnknown;  // "max": no limit
}

}  // namespace

int64_t available_memory_bytes() {
  int64_t available = machine_available_bytes();
  for (const GroupFiles& group : kGroups) {
    const int64_t limit = number_in(group.limit), used = number_in(group.used);
    if (limit == kUnknown || used == kUnknown) continue;
    available = std::min(available, std::max<int64_t>(0, limit - used));
  }
  return available;
}

int64_t total_memory_bytes() {
  const int64_t num_pages = sysconf(_SC_PHYS_PAGES);
  int64_t total = num_pages > 0 ? num_pages * sysconf(_SC_PAGE_SIZE) : kUnknown;
  for (const GroupFiles& group : kGroups) total = std::min(total, number_in(group.limit));
  return total;
}

}  // namespace flarecore
