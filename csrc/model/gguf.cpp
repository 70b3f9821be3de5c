// Access to what an opened GGUF file holds.
#include "model/gguf.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/check.h"
#include "common/printable.h"

namespace flarecore {
namespace {

struct TypeInfo {
  const char* name;
  int size_bytes;
};

constexpr TypeInfo kValueTypes[] = {
    {"uint8", 1},   {"int8", 1}, {"uint16", 2}, {"int16", 2}, {"uint32", 4}, {"int32", 4},
    {"float32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},  {"uint64", 8}, {"int64", 8},
    {"float64", 8},
};
constexpr uint32_t kNumValueTypes = sizeof(kValueTypes) / sizeof(kValueTypes[0]);

template <typename T>
T load(const uint8_t* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// The integer of type `type` at `data`; false if it is no integer or does not fit int64.
bool load_int(GgufValueType type, const uint8_t* data, int64_t* value) {
  switch (type) {
    case GgufValueType::kUint8: *value = load<uint8_t>(data); return true;
    case GgufValueType::kInt8: *value = load<int8_t>(data); return true;
    case GgufValueType::kUint16: *value = load<uint16_t>(data); return true;
    case GgufValueType::kInt16: *value = load<int16_t>(data); return true;
    case GgufValueType::kUint32: *value = load<uint32_t>(data); return true;
    case GgufValueType::kInt32: *value = load<int32_t>(data); return true;
    case GgufValueType::kInt64: *value = load<int64_t>(data); return true;
    case GgufValueType::kUint64:
      *value = load<int64_t>(data);
      return *value >= 0;
    default: return false;
  }
}

bool load_float(GgufValueType type, const uint8_t* data, double* value) {
  int64_t integer = 0;
  switch (type) {
    case GgufValueType::kFloat32: *value = load<float>(data); return true;
    case GgufValueType::kFloat64: *value = load<double>(data); return true;
    default:
      if (!load_int(type, data, &integer)) return false;
      *value = static_cast<double>(integer);
      return true;
  }
}

// Index of `name` in `items` through their sorted order, or -1.
template <typename T, typename Name>
int64_t find_sorted(const std::vector<T>& items, const std::vector<uint32_t>& order,
                    std::string_view name, Name name_of) {
  const auto it = std::lower_bound(
      order.begin(), order.end(), name,
      [&](uint32_t i, std::string_view n) { return name_of(items[i]) < n; });
  return it != order.end() && name_of(items[*it]) == name ? static_cast<int64_t>(*it) : -1;
}

}  // namespace

const char* gguf_type_name(GgufValueType type) {
  const uint32_t id = static_cast<uint32_t>(type);
  return id < kNumValueTypes ? kValueTypes[id].name : nullptr;
}

int gguf_type_size(GgufValueType type) {
  const uint32_t id = static_cast<uint32_t>(type);
  return id < kNumValueTypes ? kValueTypes[id].size_bytes : 0;
}

std::vector<std::string_view> gguf_strings(const GgufEntry& entry) {
  std::vector<std::string_view> strings;
  strings.reserve(entry.count);
  // The lengths were checked when the file was opened.
  const uint8_t* at = entry.data;
  for (uint64_t i = 0; i < entry.count; ++i) {
    const uint64_t length = load<uint64_t>(at);
    strings.emplace_back(reinterpret_cast<const char*>(at + sizeof length), length);
    at += sizeof length + length;
  }
  return strings;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const int64_t index = find_sorted(tensors_, tensor_order_, name,
                                    [](const GgufTensor& t) -> std::string_view { return t.name; });
  return index < 0 ? nullptr : &tensors_[static_cast<size_t>(index)];
}

const GgufTensor& GgufFile::require(std::string_view name) const {
  const GgufTensor* tensor = find(name);
  check(tensor != nullptr, ErrorKind::kModelFile, printable(path(), 512), ": the tensor \"",
        printable(name), "\" is missing; the file has ", tensors_.size(),
        " tensors, is it the model you meant?");
  return *tensor;
}

const GgufEntry* GgufFile::find_entry(std::string_view key) const {
  const int64_t index =
      find_sorted(entries_, entry_order_, key, [](const GgufEntry& e) { return e.key; });
  return index < 0 ? nullptr : &entries_[static_cast<size_t>(index)];
}

void GgufFile::fail_type(const GgufEntry& entry, const char* wanted) const {
  fail(ErrorKind::kModelFile, printable(path(), 512), ": metadata key \"", printable(entry.key),
       "\" must be ", wanted, ", it is ", entry.is_array ? "an array of " : "of type ",
       gguf_type_name(entry.type), " or out of range");
}

const GgufEntry& GgufFile::require_entry(std::string_view key, bool is_array,
                                         const char* wanted) const {
  const GgufEntry* entry = find_entry(key);
  check(entry != nullptr, ErrorKind::kModelFile, printable(path(), 512), ": metadata key \"",
        printable(key), "\" (", wanted, ") is missing; convert the model again");
  if (entry->is_array != is_array) fail_type(*entry, wanted);
  return *entry;
}

int64_t GgufFile::get_int(std::string_view key) const {
  const GgufEntry& entry = require_entry(key, false, "an integer");
  int64_t value = 0;
  if (!load_int(entry.type, entry.data, &value)) fail_type(entry, "an integer");
  return value;
}

double GgufFile::get_float(std::string_view key) const {
  const GgufEntry& entry = require_entry(key, false, "a number");
  double value = 0;
  if (!load_float(entry.type, entry.data, &value)) fail_type(entry, "a number");
  return value;
}

bool GgufFile::get_bool(std::string_view key) const {
  const GgufEntry& entry = require_entry(key, false, "a bool");
  if (entry.type != GgufValueType::kBool) fail_type(entry, "a bool");
  return *entry.data != 0;
}

std::string GgufFile::get_string(std::string_view key) const {
  const GgufEntry& entry = require_entry(key, false, "a string");
  if (entry.type != GgufValueType::kString) fail_type(entry, "a string");
  return std::string(gguf_strings(entry)[0]);
}

int64_t GgufFile::get_int(std::string_view key, int64_t fallback) const {
  return has(key) ? get_int(key) : fallback;
}

double GgufFile::get_float(std::string_view key, double fallback) const {
  return has(key) ? get_float(key) : fallback;
}

bool GgufFile::get_bool(std::string_view key, bool fallback) const {
  return has(key) ? get_bool(key) : fallback;
}

std::string GgufFile::get_string(std::string_view key, std::string_view fallback) const {
  return has(key) ? get_string(key) : std::string(fallback);
}

std::vector<int64_t> GgufFile::get_ints(std::string_view key) const {
  const GgufEntry& entry = require_entry(key, true, "an array of integers");
  std::vector<int64_t> values(entry.count);
  const int size = gguf_type_size(entry.type);
  for (uint64_t i = 0; i < entry.count; ++i) {
    if (!load_int(entry.type, entry.data + i * size, &values[i])) {
      fail_type(entry, "an array of integers");
    }
  }
  return values;
}

std::vector<double> GgufFile::get_floats(std::string_view key) const {
  const GgufEntry& entry = require_entry(key, true, "an array of numbers");
  std::vector<double> values(entry.count);
  const int size = gguf_type_size(entry.type);
  for (uint64_t i = 0; i < entry.count; ++i) {
    if (!load_float(entry.type, entry.data + i * size, &values[i])) {
      fail_type(entry, "an array of numbers");
    }
  }
  return values;
}

std::vector<std::string_view> GgufFile::get_strings(std::string_view key) const {
  const GgufEntry& entry = require_entry(key, true, "an array of strings");
  if (entry.type != GgufValueType::kString) fail_type(entry, "an array of strings");
  return gguf_strings(entry);
}

}  // namespace flarecore
