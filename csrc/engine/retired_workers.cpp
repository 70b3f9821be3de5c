#include "engine/retired_workers.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace flarecore {
namespace {

struct Worker {
  std::thread thread;
  std::shared_ptr<std::atomic<bool>> ended;
};

struct Workers {
  std::mutex mutex;
  std::vector<Worker> list;
  const pid_t process_id = getpid();
};

// Never destroyed, and left behind in a forked child: the threads stayed in the parent.
Workers& workers() {
  static std::atomic<Workers*> current{new Workers};
  if (current.load()->process_id != getpid()) current.store(new Workers);
  return *current.load();
}

}  // namespace

void retire_worker(std::thread worker, std::shared_ptr<std::atomic<bool>> ended) {
  Workers& retired = workers();
  std::lock_guard<std::mutex> guard(retired.mutex);
  // Those that have ended are let go, so that the list does not grow.
  const auto first_ended = std::partition(
      retired.list.begin(), retired.list.end(), [](const Worker& w) { return !w.ended->load(); });
  for (auto it = first_ended; it != retired.list.end(); ++it) it->thread.join();
  retired.list.erase(first_ended, retired.list.end());
  retired.list.push_back({std::move(worker), std::move(ended)});
}

void join_retired_workers() {
  Workers& retired = workers();
  std::vector<Worker> list;
  {
    std::lock_guard<std::mutex> guard(retired.mutex);
    list.swap(retired.list);
  }
  for (Worker& worker : list) worker.thread.join();
}

}  // namespace flarecore
