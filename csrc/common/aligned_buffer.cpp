#include "common/aligned_buffer.h"

#include <cstdlib>
#include <cstring>

#include "common/check.h"
#include "common/huge_pages.h"

namespace flarecore {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

void AlignedBuffer::Free::operator()(uint8_t* memory) const { std::free(memory); }

void AlignedBuffer::grow(size_t size_bytes) {
  if (size_bytes <= size_bytes_) return;
  memory_.reset();
  size_bytes_ = 0;
  size_t rounded = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  memory_.reset(size_bytes >= kHugePage / 2
                    ? allocate_huge_pages(&rounded)
                    : static_cast<uint8_t*>(std::aligned_alloc(kAlignment, rounded)));
  check(memory_ != nullptr, ErrorKind::kUnsupported, "no memory for a work space of ", rounded,
        " bytes; use a smaller max_batch_tokens or free memory");
  std::memset(memory_.get(), 0, rounded);
  size_bytes_ = rounded;
}

}  // namespace flarecore
