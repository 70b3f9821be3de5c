#include "model/weight_memory.h"

#include <cstdlib>
#include <mutex>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "common/check.h"

namespace flarecore {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kRunBytes = size_t{32} << 20;
constexpr size_t kAlignment = 64;

size_t round_up(size_t size, size_t step) { return (size + step - 1) / step * step; }

std::shared_ptr<uint8_t> allocate_run(size_t size_bytes) {
  const size_t rounded = round_up(size_bytes, kHugePage);
  void* memory = std::aligned_alloc(kHugePage, rounded);
  check(memory != nullptr, ErrorKind::kUnsupported, "no memory for ", rounded,
        " bytes of packed weights; use a smaller model or free memory");
#ifdef __linux__
  madvise(memory, rounded, MADV_HUGEPAGE);  // a wish: without it the pages are small
#endif
  return {static_cast<uint8_t*>(memory), &std::free};
}

}  // namespace

std::shared_ptr<uint8_t> allocate_weights(size_t size_bytes) {
  if (size_bytes > kRunBytes / 4) return allocate_run(size_bytes);
  static std::mutex mutex;
  static std::weak_ptr<uint8_t> current;  // weak: an unloaded model gives its memory back
  static size_t used = 0;
  std::lock_guard<std::mutex> lock(mutex);
  const size_t rounded = round_up(size_bytes, kAlignment);
  std::shared_ptr<uint8_t> run = current.lock();
  if (run == nullptr || used + rounded > kRunBytes) {
    run = allocate_run(kRunBytes);
    current = run;
    used = 0;
  }
  uint8_t* start = run.get() + used;
  used += rounded;
  return {run, start};
}

}  // namespace flarecore
