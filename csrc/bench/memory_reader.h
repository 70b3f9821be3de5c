// How fast this machine reads memory: the bound of everything that streams weights.
#pragma once

#include <cstdint>
#include <memory>

#include "common/thread_pool.h"

namespace flarecore {

// A buffer that is read from end to end, shared out over threads, by the CPU level in force. It asks
// for huge pages, as packed weights do.
class MemoryReader {
 public:
  // size_bytes is rounded up to whole chunks of 256 KiB. Raises ConfigError for a size below 1 and
  // UnsupportedError if there is no memory.
  MemoryReader(int64_t size_bytes, int num_threads);
  ~MemoryReader();
  MemoryReader(const MemoryReader&) = delete;
  MemoryReader& operator=(const MemoryReader&) = delete;

  int64_t size_bytes() const { return size_bytes_; }
  double read_once();  // seconds of one pass; raises FlarecoreError if a word was not read

 private:
  int64_t size_bytes_;
  uint64_t* words_ = nullptr;
  std::unique_ptr<ThreadPool> threads_;
};

}  // namespace flarecore
