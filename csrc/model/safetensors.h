// A safetensors model file, mapped into memory and checked.
//
// Layout (format description of the safetensors project): uint64 header size, the header (JSON:
// tensor name -> dtype, shape, data_offsets; "__metadata__" -> strings), then the data, which the
// tensors cover in full, without gaps or overlaps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/ggml_types.h"
#include "model/mapped_file.h"

namespace flarecore {

// "(2, 3)", for messages.
std::string show_shape(const std::vector<int64_t>& shape);

struct SafeTensor {
  std::string name;
  std::string dtype;           // as in the file: "F32", "BF16", "I64", ...
  std::vector<int64_t> shape;  // outermost first; empty for a scalar
  const uint8_t* data;         // into the mapped file; not aligned
  int64_t size_bytes;
  int64_t num_values;          // product of the shape

  bool is_float() const;  // F32, F16 or BF16
  GgmlType type() const;  // raises ModelFileError unless is_float()
};

class SafetensorsFile {
 public:
  // Reads and checks the header. Raises ModelFileError if the file is missing, cut off, damaged or
  // hostile: every tensor lies inside the file, fits its dtype and shape, and overlaps no other.
  static std::shared_ptr<const SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  const std::vector<SafeTensor>& tensors() const { return tensors_; }  // in file order
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  const SafeTensor* find(const std::string& name) const;  // nullptr: not there
  // Raises ModelFileError naming the tensor if it is missing or has another shape.
  const SafeTensor& require(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  explicit SafetensorsFile(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {}
  void read_header();
  void check_layout(const uint8_t* data, int64_t size_bytes);

  std::shared_ptr<const MappedFile> file_;
  std::vector<SafeTensor> tensors_;
  std::unordered_map<std::string, size_t> index_of_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace flarecore
