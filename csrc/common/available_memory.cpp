#include "common/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace flarecore {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

int64_t machine_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (int64_t kilobytes; file >> name >> kilobytes; std::getline(file, unit)) {
    if (name == "MemAvailable:") return kilobytes * 1024;
  }
  return kUnknown;
}

// The group that a container sees as its root; groups inside it are not looked at.
int64_t group_bytes(const char* limit_path, const char* used_path) {
  std::ifstream limit_file(limit_path), used_file(used_path);
  int64_t limit = 0, used = 0;
  if (!(limit_file >> limit) || !(used_file >> used)) return kUnknown;  // "max": no limit
  return std::max<int64_t>(0, limit - used);
}

}  // namespace

int64_t available_memory_bytes() {
  return std::min({machine_bytes(),
                   group_bytes("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
                   group_bytes("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                               "/sys/fs/cgroup/memory/memory.usage_in_bytes")});
}

}  // namespace flarecore
