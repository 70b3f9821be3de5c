// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace flarecore {

// The mapping lives as long as the object. Writing to or cutting off a model file while it is
// mapped is undefined for every reader of it (the system raises SIGBUS for pages that are gone):
// replace such a file by renaming a new one over it.
class MappedFile {
 public:
  // Raises ModelFileError if `path` cannot be opened, is not a regular file or is empty.
  static std::shared_ptr<const MappedFile> open(const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const { return data_; }  // page-aligned
  size_t size() const { return size_; }          // bytes, at least 1
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const uint8_t* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const uint8_t* data_;
  size_t size_;
};

}  // namespace flarecore
