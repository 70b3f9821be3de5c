#include "common/aligned_buffer.h"

#include <cstdlib>
#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "common/check.h"

namespace flarecore {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlignment = 64;

}  // namespace

void AlignedBuffer::Free::operator()(uint8_t* memory) const { std::free(memory); }

void AlignedBuffer::grow(size_t size_bytes) {
  if (size_bytes <= size_bytes_) return;
  const bool is_large = size_bytes >= kHugePage / 2;
  const size_t step = is_large ? kHugePage : kAlignment;
  const size_t rounded = (size_bytes + step - 1) / step * step;
  memory_.reset();
  size_bytes_ = 0;
  memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(step, rounded)));
  check(memory_ != nullptr, ErrorKind::kUnsupported, "no memory for a work space of ", rounded,
        " bytes; use a smaller max_batch_tokens or free memory");
#ifdef __linux__
  if (is_large) madvise(memory_.get(), rounded, MADV_HUGEPAGE);  // a wish
#endif
  std::memset(memory_.get(), 0, rounded);
  size_bytes_ = rounded;
}

}  // namespace flarecore
