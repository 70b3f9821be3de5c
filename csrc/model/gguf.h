// GGUF model files, versions 2 and 3, little-endian.
//
// Source: the GGUF specification (ggml, docs/gguf.md). The file is mapped into memory and every
// count, length, offset and size in it is checked once, when it is opened: a damaged or hostile
// file is a ModelFileError that names the file and the place. Metadata stays in the file until it
// is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/ggml_types.h"
#include "model/mapped_file.h"

namespace flarecore {

enum class GgufValueType : uint32_t {
  kUint8 = 0, kInt8 = 1, kUint16 = 2, kInt16 = 3, kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7,
  kString = 8, kArray = 9, kUint64 = 10, kInt64 = 11, kFloat64 = 12,
};

// Name of a value type ("uint32"); nullptr for an unknown one.
const char* gguf_type_name(GgufValueType type);
// Size of a number or bool in bytes; 0 for strings, arrays and unknown types.
int gguf_type_size(GgufValueType type);

// One metadata entry: views into the mapped file, unaligned.
struct GgufEntry {
  std::string_view key;
  GgufValueType type;          // of the element, if is_array
  bool is_array;
  uint64_t count;              // elements; 1 for a scalar
  const uint8_t* data;         // numbers as they lie in the file; strings as (uint64 length, bytes)
  uint64_t size_bytes;         // of data
};

struct GgufTensor {
  std::string name;
  GgmlType type;
  std::vector<int64_t> shape;  // GGUF order, 1 to 4 sizes: shape[0] is the row length (columns)
  const uint8_t* data;         // in the mapped file, aligned to GgufFile::alignment()
  int64_t size_bytes;

  int64_t num_cols() const { return shape[0]; }
  int64_t num_rows() const {
    int64_t rows = 1;
    for (size_t i = 1; i < shape.size(); ++i) rows *= shape[i];
    return rows;
  }
};

// Immutable after open(), so that any number of threads may read it. What it hands out lives as
// long as the object. Getters raise ModelFileError, naming the key, if it is missing (and no
// fallback was given) or of another type: an integer key may be of any integer type that fits
// int64, a float key may also be an integer.
class GgufFile {
 public:
  static std::shared_ptr<const GgufFile> open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  size_t size_bytes() const { return file_->size(); }
  int version() const { return version_; }
  int64_t alignment() const { return alignment_; }

  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order
  const GgufTensor* find(std::string_view name) const;                 // nullptr: not there
  const GgufTensor& require(std::string_view name) const;

  const std::vector<GgufEntry>& entries() const { return entries_; }   // in file order
  const GgufEntry* find_entry(std::string_view key) const;             // nullptr: not there
  bool has(std::string_view key) const { return find_entry(key) != nullptr; }

  int64_t get_int(std::string_view key) const;
  int64_t get_int(std::string_view key, int64_t fallback) const;
  double get_float(std::string_view key) const;
  double get_float(std::string_view key, double fallback) const;
  bool get_bool(std::string_view key) const;
  bool get_bool(std::string_view key, bool fallback) const;
  std::string get_string(std::string_view key) const;
  std::string get_string(std::string_view key, std::string_view fallback) const;
  std::vector<int64_t> get_ints(std::string_view key) const;
  std::vector<double> get_floats(std::string_view key) const;
  std::vector<std::string_view> get_strings(std::string_view key) const;  // views into the file

 private:
  friend class GgufParser;
  GgufFile() = default;

  const GgufEntry& require_entry(std::string_view key, bool is_array, const char* wanted) const;
  [[noreturn]] void fail_type(const GgufEntry& entry, const char* wanted) const;

  std::shared_ptr<const MappedFile> file_;
  int version_ = 0;
  int64_t alignment_ = 32;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  std::vector<uint32_t> entry_order_;   // indices of entries_, by key
  std::vector<uint32_t> tensor_order_;  // indices of tensors_, by name
};

// The strings of a string array or scalar: entry.count views into the file.
std::vector<std::string_view> gguf_strings(const GgufEntry& entry);

}  // namespace flarecore
