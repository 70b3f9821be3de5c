#include "model/weight_memory.h"

#include <cstdlib>
#include <mutex>

#include "common/check.h"
#include "common/huge_pages.h"

namespace flarecore {
namespace {

constexpr size_t kRunBytes = size_t{32} << 20;
constexpr size_t kAlignment = 64;

std::shared_ptr<uint8_t> allocate_run(size_t size_bytes) {
  uint8_t* memory = allocate_huge_pages(&size_bytes);
  check(memory != nullptr, ErrorKind::kUnsupported, "no memory for ", size_bytes,
        " bytes of packed weights; use a smaller model or free memory");
  return {memory, &std::free};
}

}  // namespace

std::shared_ptr<uint8_t> allocate_weights(size_t size_bytes) {
  if (size_bytes > kRunBytes / 4) return allocate_run(size_bytes);
  static std::mutex mutex;
  static std::weak_ptr<uint8_t> current;  // weak: an unloaded model gives its memory back
  static size_t used = 0;
  std::lock_guard<std::mutex> lock(mutex);
  const size_t rounded = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
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
