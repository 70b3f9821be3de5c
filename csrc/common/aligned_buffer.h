// Memory for kernels that only ever grows: 64-byte aligned, in huge pages where it is large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace flarecore {

class AlignedBuffer {
 public:
  // At least size_bytes bytes; what was in it is lost if it has to grow. New memory is zeros.
  // Raises UnsupportedError if there is none.
  void grow(size_t size_bytes);
  uint8_t* data() { return memory_.get(); }
  const uint8_t* data() const { return memory_.get(); }
  size_t size_bytes() const { return size_bytes_; }

 private:
  struct Free {
    void operator()(uint8_t* memory) const;
  };
  std::unique_ptr<uint8_t, Free> memory_;
  size_t size_bytes_ = 0;
};

}  // namespace flarecore
