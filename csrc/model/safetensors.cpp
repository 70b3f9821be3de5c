#include "model/safetensors.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "common/check.h"
#include "common/printable.h"
#include "model/byte_reader.h"
#include "model/json_cursor.h"

namespace flarecore {
namespace {

// As the reference implementation: a header is read as a whole before anything in it is believed.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxDims = 16;

// Bits of one value; 0: unknown.
int dtype_bits(const std::string& dtype) {
  static const std::unordered_map<std::string, int> kBits = {
      {"F64", 64},  {"I64", 64},  {"U64", 64},    {"F32", 32},    {"I32", 32},
      {"U32", 32},  {"F16", 16},  {"BF16", 16},   {"I16", 16},    {"U16", 16},
      {"I8", 8},    {"U8", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"BOOL", 8}};
  const auto found = kBits.find(dtype);
  return found == kBits.end() ? 0 : found->second;
}

// What the header says about a tensor, with its place as `data_offsets`.
struct Entry {
  std::optional<std::string> dtype;
  std::optional<std::vector<int64_t>> shape, offsets;
};

std::vector<int64_t> read_integers(JsonCursor& json, size_t limit, const char* what) {
  std::vector<int64_t> values;
  json.read_array(what, [&] {
    if (values.size() == limit) json.fail_here(what);
    values.push_back(json.read_integer("a non-negative integer"));
  });
  return values;
}

Entry read_entry(JsonCursor& json) {
  Entry entry;
  json.read_object("a tensor's description", [&](const std::string& key) {
    if (key == "dtype" && !entry.dtype) {
      entry.dtype = json.read_string("a dtype");
    } else if (key == "shape" && !entry.shape) {
      entry.shape = read_integers(json, kMaxDims, "a shape of at most 16 dimensions");
    } else if (key == "data_offsets" && !entry.offsets) {
      entry.offsets = read_integers(json, 2, "two data_offsets");
    } else {
      json.fail_here("dtype, shape and data_offsets, each once");
    }
  });
  if (!entry.dtype || !entry.shape || !entry.offsets || entry.offsets->size() != 2) {
    json.fail_here("dtype, shape and two data_offsets");
  }
  return entry;
}

// Product of the shape and size in bytes, or -1 where they overflow.
std::pair<int64_t, int64_t> sizes_of(const std::vector<int64_t>& shape, int bits) {
  int64_t values = 1, size_bits = 0;
  for (int64_t dim : shape) {
    if (__builtin_mul_overflow(values, dim, &values)) return {-1, -1};
  }
  if (__builtin_mul_overflow(values, static_cast<int64_t>(bits), &size_bits)) return {-1, -1};
  return {values, size_bits / 8};
}

}  // namespace

std::string show_shape(const std::vector<int64_t>& shape) {
  std::ostringstream out;
  out << '(';
  for (size_t i = 0; i < shape.size(); ++i) out << (i ? ", " : "") << shape[i];
  out << ')';
  return out.str();
}

bool SafeTensor::is_float() const { return dtype == "F32" || dtype == "F16" || dtype == "BF16"; }

GgmlType SafeTensor::type() const {
  check(is_float(), ErrorKind::kModelFile, "tensor ", printable(name), " is stored as ",
        printable(dtype), "; supported are F32, F16 and BF16");
  return dtype == "F32" ? GgmlType::kF32 : dtype == "F16" ? GgmlType::kF16 : GgmlType::kBF16;
}

std::shared_ptr<const SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile(MappedFile::open(path)));
  file->read_header();
  return file;
}

void SafetensorsFile::read_header() {
  const std::string shown = printable(path(), 512);
  ByteReader reader(file_->data(), file_->size(), shown);
  const uint64_t header_bytes = reader.read<uint64_t>("the header's size");
  check(header_bytes <= kMaxHeaderBytes, ErrorKind::kModelFile, shown, ": a header of ",
        header_bytes, " bytes is over the limit of ", kMaxHeaderBytes,
        "; this is no safetensors file or a damaged one");
  const uint8_t* header = reader.take(header_bytes, "the header");
  const uint8_t* data = reader.here();
  const int64_t data_bytes = static_cast<int64_t>(reader.remaining());
  JsonCursor json({reinterpret_cast<const char*>(header), header_bytes}, shown + ": header");
  json.read_object("an object of tensors", [&](const std::string& name) {
    if (name == "__metadata__") {
      json.read_object("metadata", [&](const std::string& key) {
        metadata_[key] = json.read_string("a metadata string");
      });
      return;
    }
    Entry entry = read_entry(json);
    const int64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
    const std::string what = shown + ": tensor " + printable(name);
    check(begin <= end && end <= data_bytes, ErrorKind::kModelFile, what, " has the data_offsets [",
          begin, ", ", end, "), the file holds ", data_bytes, " bytes of data");
    const int bits = dtype_bits(*entry.dtype);
    check(bits != 0, ErrorKind::kModelFile, what, " has the unknown dtype ",
          printable(*entry.dtype));
    const auto [num_values, size_bytes] = sizes_of(*entry.shape, bits);
    check(size_bytes == end - begin, ErrorKind::kModelFile, what, ": shape ",
          show_shape(*entry.shape), " of ", *entry.dtype, " does not fit the ", end - begin,
          " bytes of its data_offsets");
    check(index_of_.emplace(name, tensors_.size()).second, ErrorKind::kModelFile, what,
          " is described twice");
    tensors_.push_back({name, std::move(*entry.dtype), std::move(*entry.shape), data + begin,
                        size_bytes, num_values});
  });
  json.expect_end();
  check_layout(data, data_bytes);
}

void SafetensorsFile::check_layout(const uint8_t* data, int64_t size_bytes) {
  std::vector<const SafeTensor*> order;
  for (const SafeTensor& tensor : tensors_) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const SafeTensor* a, const SafeTensor* b) {
    return std::pair(a->data, a->size_bytes) < std::pair(b->data, b->size_bytes);
  });
  const uint8_t* end = data;
  for (const SafeTensor* tensor : order) {
    check(tensor->data == end, ErrorKind::kModelFile, printable(path(), 512), ": tensor ",
          printable(tensor->name), " begins at byte ", tensor->data - data, " of the data, not at ",
          end - data, ": tensors must lie side by side without gaps or overlaps");
    end += tensor->size_bytes;
  }
  check(end - data == size_bytes, ErrorKind::kModelFile, printable(path(), 512),
        ": the tensors end at byte ", end - data, " of the data, the file has ", size_bytes,
        "; it is cut off or damaged");
}

const SafeTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_of_.find(name);
  return found == index_of_.end() ? nullptr : &tensors_[found->second];
}

const SafeTensor& SafetensorsFile::require(const std::string& name,
                                           const std::vector<int64_t>& shape) const {
  const SafeTensor* tensor = find(name);
  check(tensor != nullptr, ErrorKind::kModelFile, printable(path(), 512), ": the tensor ",
        printable(name), " is missing; the file is for another architecture");
  check(tensor->shape == shape, ErrorKind::kModelFile, printable(path(), 512), ": tensor ",
        printable(name), " has the shape ", show_shape(tensor->shape),
        ", the model's configuration asks for ", show_shape(shape));
  return *tensor;
}

}  // namespace flarecore
