// Bounds-checked little-endian reading from the bytes of a file.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "common/check.h"

namespace flarecore {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "model files are read as little-endian");

// A position in [0, size]. Every step is checked before it is taken; what does not fit is a
// ModelFileError that names the file, the byte and `what` was being read.
class ByteReader {
 public:
  ByteReader(const uint8_t* data, uint64_t size, std::string_view shown_path)
      : data_(data), size_(size), shown_path_(shown_path) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return size_ - position_; }
  const uint8_t* here() const { return data_ + position_; }

  // Moves past `num_bytes` and returns where they start.
  const uint8_t* take(uint64_t num_bytes, const char* what) {
    if (num_bytes > remaining()) fail_cut_off(num_bytes, what);
    const uint8_t* start = here();
    position_ += num_bytes;
    return start;
  }

  template <typename T>
  T read(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof value, what), sizeof value);
    return value;
  }

  // A GGUF string: uint64 length, then that many bytes. The view is into the file.
  std::string_view read_string(const char* what) {
    const uint64_t length = read<uint64_t>(what);
    return {reinterpret_cast<const char*>(take(length, what)), static_cast<size_t>(length)};
  }

 private:
  [[noreturn]] void fail_cut_off(uint64_t num_bytes, const char* what) const {
    fail(ErrorKind::kModelFile, shown_path_, ": cut off or damaged at byte ", position_, ": ", what,
         " needs ", num_bytes, " bytes, the file has ", remaining(),
         " left; download or convert it again");
  }

  const uint8_t* data_;
  uint64_t size_;
  std::string shown_path_;
  uint64_t position_ = 0;
};

}  // namespace flarecore
