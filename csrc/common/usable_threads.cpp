// How many threads this process may really use: CPU affinity and cgroup quota.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "common/cores.h"
#include "common/thread_pool.h"

namespace flarecore {
namespace {

constexpr int kNoLimit = 1 << 20;

int affinity_threads() {
  const int allowed = num_allowed_cores();
  return allowed > 0 ? allowed : std::max(1u, std::thread::hardware_concurrency());
}

#ifdef __linux__
// Whole cores of a quota; a fraction of a core would only be throttled.
int whole_cores(double quota, double period) {
  if (quota <= 0 || period <= 0) return kNoLimit;
  return std::max(1, static_cast<int>(std::min<double>(quota / period, kNoLimit)));
}

int quota_v2(const std::string& directory) {
  std::ifstream file(directory + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max") return kNoLimit;
  double value = 0;
  return std::istringstream(quota) >> value ? whole_cores(value, period) : kNoLimit;
}

int quota_v1(const std::string& directory) {
  std::ifstream quota_file(directory + "/cpu.cfs_quota_us");
  std::ifstream period_file(directory + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (!(quota_file >> quota) || !(period_file >> period)) return kNoLimit;
  return whole_cores(quota, period);  // -1: no quota
}

// A group is bound by its own quota and by that of every group above it.
int smallest_quota(const std::string& mount, std::string path, int (*read)(const std::string&)) {
  int limit = read(mount);
  while (!path.empty() && path != "/") {
    limit = std::min(limit, read(mount + path));
    path.erase(path.find_last_of('/'));
  }
  return limit;
}

int cgroup_threads() {
  std::ifstream file("/proc/self/cgroup");
  int limit = kNoLimit;
  std::string line;
  while (std::getline(file, line)) {  // hierarchy-id:controllers:path
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') continue;
    if (controllers == ",,") {
      limit = std::min(limit, smallest_quota("/sys/fs/cgroup", path, quota_v2));
    } else if (controllers.find(",cpu,") != std::string::npos) {
      limit = std::min(limit, smallest_quota("/sys/fs/cgroup/cpu", path, quota_v1));
    }
  }
  return limit;
}
#else
int cgroup_threads() { return kNoLimit; }
#endif

}  // namespace

int usable_num_threads() { return std::min(affinity_threads(), cgroup_threads()); }

}  // namespace flarecore
