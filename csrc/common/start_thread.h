// Threads of our own, where the system may refuse one more.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "common/check.h"

namespace flarecore {

// A thread that runs fn(). Raises UnsupportedError if the system has none left.
template <typename Fn>
std::thread start_thread(Fn&& fn) {
  try {
    return std::thread(std::forward<Fn>(fn));
  } catch (const std::system_error& error) {
    fail(ErrorKind::kUnsupported, "the system starts no further thread (", error.what(),
         "); pass fewer threads, close engines, or raise its limits on processes (ulimit -u, "
         "pids.max of the cgroup) and memory");
  }
}

}  // namespace flarecore
