// Reads the header of a GGUF file and checks it.
#include <algorithm>
#include <limits>
#include <numeric>

#include "common/check.h"
#include "common/printable.h"
#include "model/byte_reader.h"
#include "model/gguf.h"

namespace flarecore {
namespace {

constexpr uint64_t kMaxNameBytes = 65535;  // of a key (the specification's limit) or tensor name
constexpr uint32_t kMaxDims = 4;
constexpr int64_t kMinAlignment = 8;  // the specification's; keeps float pointers aligned
// Smallest possible entry: a key of one byte and a value of one; a tensor with one dimension.
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// Types that exist but that find_ggml_type() does not know, for the message.
const char* unsupported_type_name(uint32_t id) {
  static constexpr struct { uint32_t id; const char* name; } kNames[] = {
      {4, "Q4_2"}, {5, "Q4_3"}, {9, "Q8_1"}, {10, "Q2_K"}, {11, "Q3_K"}, {15, "Q8_K"},
      {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"},
      {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"}, {24, "I8"}, {25, "I16"}, {26, "I32"},
      {27, "I64"}, {28, "F64"}, {29, "IQ1_M"}, {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"},
      {33, "Q4_0_8_8"}, {34, "TQ1_0"}, {35, "TQ2_0"}, {39, "MXFP4"},
  };
  for (const auto& entry : kNames) {
    if (entry.id == id) return entry.name;
  }
  return "unknown";
}

// a * b, or false if it does not fit int64.
bool multiply(uint64_t a, uint64_t b, uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product) &&
         *product <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

}  // namespace

class GgufParser {
 public:
  explicit GgufParser(std::shared_ptr<const MappedFile> file)
      : shown_path_(printable(file->path(), 512)),
        in_(file->data(), file->size(), shown_path_),
        out_(new GgufFile) {
    out_->file_ = std::move(file);
  }

  std::shared_ptr<const GgufFile> parse() {
    read_magic_and_version();
    const uint64_t num_tensors = in_.read<uint64_t>("the tensor count");
    const uint64_t num_entries = in_.read<uint64_t>("the metadata count");
    check_count(num_entries, kMinEntryBytes, "metadata entries");
    out_->entries_.reserve(num_entries);
    for (uint64_t i = 0; i < num_entries; ++i) out_->entries_.push_back(read_entry());
    out_->entry_order_ = sorted_order(out_->entries_, "the metadata key",
                                      [](const GgufEntry& e) { return e.key; });
    read_alignment();
    check_count(num_tensors, kMinTensorBytes, "tensors");
    out_->tensors_.reserve(num_tensors);
    offsets_.reserve(num_tensors);
    for (uint64_t i = 0; i < num_tensors; ++i) read_tensor();
    out_->tensor_order_ =
        sorted_order(out_->tensors_, "the tensor name",
                     [](const GgufTensor& t) -> std::string_view { return t.name; });
    place_tensors();
    check_overlap();
    return std::shared_ptr<const GgufFile>(std::move(out_));
  }

 private:
  template <typename... Args>
  void ensure(bool condition, const Args&... why) const {
    check(condition, ErrorKind::kModelFile, shown_path_, ": ", why...);
  }

  // Before anything is allocated: could that many items lie in the bytes that are left?
  void check_count(uint64_t count, uint64_t min_bytes, const char* items) const {
    ensure(count <= in_.remaining() / min_bytes && count <= std::numeric_limits<uint32_t>::max(),
           "the header counts ", count, " ", items, ", but the ", in_.remaining(),
           " bytes left hold at most ", in_.remaining() / min_bytes,
           "; the file is damaged, download it again");
  }

  void read_magic_and_version() {
    const auto* magic = reinterpret_cast<const char*>(in_.take(4, "the magic number"));
    ensure(std::string_view(magic, 4) == "GGUF", "not a GGUF file: it starts with \"",
           printable({magic, 4}), "\", expected \"GGUF\"");
    const uint32_t version = in_.read<uint32_t>("the version");
    ensure((version & 0xFFFF) != 0 || version == 0,
           "a big-endian GGUF file (version field ", version,
           "); only little-endian files are supported, convert it for this machine");
    ensure(version != 1,
           "GGUF version 1 is not supported (versions 2 and 3 are); convert the model again");
    ensure(version == 2 || version == 3, "GGUF version ", version,
           " is unknown; versions 2 and 3 are supported");
    out_->version_ = static_cast<int>(version);
  }

  std::string_view read_name(const char* what) {
    const uint64_t start = in_.position();
    const std::string_view name = in_.read_string(what);
    ensure(!name.empty() && name.size() <= kMaxNameBytes, what, " at byte ", start, " has ",
           name.size(), " bytes; allowed are 1 to ", kMaxNameBytes);
    return name;
  }

  GgufEntry read_entry() {
    GgufEntry entry{read_name("a metadata key"), {}, false, 1, nullptr, 0};
    const auto read_type = [&] {
      return static_cast<GgufValueType>(in_.read<uint32_t>("the type of a metadata value"));
    };
    entry.type = read_type();
    if (entry.type == GgufValueType::kArray) {
      entry.is_array = true;
      entry.type = read_type();
      entry.count = in_.read<uint64_t>("the length of a metadata array");
      ensure(entry.type != GgufValueType::kArray, "metadata key \"", printable(entry.key),
             "\" is an array of arrays, which is not supported");
    }
    ensure(gguf_type_name(entry.type) != nullptr, "metadata key \"", printable(entry.key),
           "\" has the unknown value type ", static_cast<uint32_t>(entry.type));
    read_value(&entry);
    return entry;
  }

  void read_value(GgufEntry* entry) {
    const bool is_string = entry->type == GgufValueType::kString;
    const uint64_t min_size = is_string ? sizeof(uint64_t) : gguf_type_size(entry->type);
    // One division covers every product below: count * min_size fits the file.
    ensure(entry->count <= in_.remaining() / min_size, "metadata key \"", printable(entry->key),
           "\" counts ", entry->count, " values, the ", in_.remaining(),
           " bytes left hold at most ", in_.remaining() / min_size);
    const uint64_t begin = in_.position();
    entry->data = in_.here();
    if (is_string) {
      for (uint64_t i = 0; i < entry->count; ++i) in_.read_string("a string in the metadata");
    } else {
      in_.take(entry->count * min_size, "a metadata value");
    }
    entry->size_bytes = in_.position() - begin;
    if (entry->type == GgufValueType::kBool) {
      ensure(std::all_of(entry->data, entry->data + entry->size_bytes,
                         [](uint8_t byte) { return byte <= 1; }),
             "metadata key \"", printable(entry->key), "\" holds a bool that is neither 0 nor 1");
    }
  }

  void read_alignment() {
    const GgufEntry* entry = out_->find_entry("general.alignment");
    if (entry == nullptr) return;
    ensure(!entry->is_array && entry->type == GgufValueType::kUint32,
           "\"general.alignment\" must be a uint32");
    const int64_t value = out_->get_int("general.alignment");
    ensure(value >= kMinAlignment && (value & (value - 1)) == 0, "\"general.alignment\" is ", value,
           ", it must be a power of two of at least ", kMinAlignment);
    out_->alignment_ = value;
  }

  void read_tensor() {
    GgufTensor tensor{std::string(read_name("a tensor name")), {}, {}, nullptr, 0};
    const std::string shown = printable(tensor.name);
    const uint32_t num_dims = in_.read<uint32_t>("the number of dimensions of a tensor");
    ensure(num_dims >= 1 && num_dims <= kMaxDims, "tensor \"", shown, "\" has ", num_dims,
           " dimensions; allowed are 1 to ", kMaxDims);
    uint64_t num_values = 1;
    for (uint32_t i = 0; i < num_dims; ++i) {
      const uint64_t size = in_.read<uint64_t>("a dimension of a tensor");
      ensure(size >= 1 && multiply(num_values, size, &num_values), "tensor \"", shown,
             "\": dimension ", i, " is ", size,
             "; each must be at least 1 and their product below 2^63");
      tensor.shape.push_back(static_cast<int64_t>(size));
    }
    const uint32_t type_id = in_.read<uint32_t>("the type of a tensor");
    const GgmlTypeInfo* info = find_ggml_type(type_id);
    ensure(info != nullptr, "tensor \"", shown, "\" has the type ", type_id, " (",
           unsupported_type_name(type_id),
           "), which is not supported; quantise the model to F32, F16, BF16, Q4_0, Q4_1, Q5_0, "
           "Q5_1, Q8_0, Q4_K, Q5_K or Q6_K");
    tensor.type = static_cast<GgmlType>(type_id);
    const uint64_t block_values = static_cast<uint64_t>(info->block_values);
    ensure(static_cast<uint64_t>(tensor.shape[0]) % block_values == 0, "tensor \"", shown,
           "\": its rows of ", tensor.shape[0], " values are no multiple of the ", block_values,
           " values in a block of ", info->name);
    uint64_t size_bytes = 0;
    ensure(multiply(num_values / block_values, info->block_size_bytes, &size_bytes), "tensor \"",
           shown, "\" would have 2^63 bytes or more");
    tensor.size_bytes = static_cast<int64_t>(size_bytes);
    offsets_.push_back(in_.read<uint64_t>("the offset of a tensor"));
    out_->tensors_.push_back(std::move(tensor));
  }

  // The data section starts at the next multiple of the alignment; offsets count from there.
  void place_tensors() {
    const uint64_t alignment = static_cast<uint64_t>(out_->alignment_);
    const uint64_t file_size = out_->file_->size();
    // No overflow: a position in a file is below 2^63, the alignment at most 2^31.
    const uint64_t start = (in_.position() + alignment - 1) / alignment * alignment;
    const uint64_t available = file_size > start ? file_size - start : 0;
    for (size_t i = 0; i < offsets_.size(); ++i) {
      GgufTensor& tensor = out_->tensors_[i];
      const uint64_t size = static_cast<uint64_t>(tensor.size_bytes);
      ensure(offsets_[i] % alignment == 0, "tensor \"", printable(tensor.name),
             "\" lies at offset ", offsets_[i], ", which is no multiple of the alignment ",
             alignment);
      ensure(offsets_[i] <= available && size <= available - offsets_[i], "tensor \"",
             printable(tensor.name), "\" has ", size, " bytes at offset ", offsets_[i],
             ", but the data section has ", available, "; the file is cut off, download it again");
      tensor.data = out_->file_->data() + start + offsets_[i];
    }
  }

  // Two tensors may share one range (tied weights); a partial overlap is a damaged offset or size.
  void check_overlap() const {
    std::vector<const GgufTensor*> by_place;
    for (const GgufTensor& tensor : out_->tensors_) by_place.push_back(&tensor);
    std::sort(by_place.begin(), by_place.end(), [](const GgufTensor* a, const GgufTensor* b) {
      return a->data != b->data ? a->data < b->data : a->size_bytes < b->size_bytes;
    });
    for (size_t i = 1; i < by_place.size(); ++i) {
      const GgufTensor& a = *by_place[i - 1];
      const GgufTensor& b = *by_place[i];
      const bool same = a.data == b.data && a.size_bytes == b.size_bytes;
      ensure(same || a.data + a.size_bytes <= b.data, "the tensors \"", printable(a.name),
             "\" and \"", printable(b.name), "\" overlap; the file is damaged, download it again");
    }
  }

  // Indices of `items` sorted by name. Sorting rather than hashing: no file can make it slow.
  template <typename T, typename Name>
  std::vector<uint32_t> sorted_order(const std::vector<T>& items, const char* what,
                                     Name name) const {
    std::vector<uint32_t> order(items.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return name(items[a]) < name(items[b]); });
    for (size_t i = 1; i < order.size(); ++i) {
      ensure(name(items[order[i - 1]]) != name(items[order[i]]), what, " \"",
             printable(name(items[order[i]])), "\" is there twice");
    }
    return order;
  }

  std::string shown_path_;
  ByteReader in_;
  std::unique_ptr<GgufFile> out_;
  std::vector<uint64_t> offsets_;  // of the tensors, from the start of the data section
};

std::shared_ptr<const GgufFile> GgufFile::open(const std::string& path) {
  return GgufParser(MappedFile::open(path)).parse();
}

}  // namespace flarecore
