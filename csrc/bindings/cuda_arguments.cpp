#include "bindings/cuda_arguments.h"

#include <algorithm>
#include <limits>
#include <set>

#include "common/types.h"

namespace py = pybind11;

namespace flarecore::cuda {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxRows = 65535;  // of a launch grid
constexpr int64_t kMaxStride = int64_t{1} << 48;
constexpr int64_t kDefaultCandidates = 1 << 15;

struct TypeName {
  const char* name;
  LogitType type;
  int64_t size;
};
constexpr TypeName kTypes[] = {{"float32", LogitType::kFloat32, 4},
                               {"float16", LogitType::kFloat16, 2},
                               {"bfloat16", LogitType::kBfloat16, 2}};

void* read_stream(KeywordReader& reader) {
  return reinterpret_cast<void*>(reader.integer("stream", 0, INT64_MAX));
}

void check_stride(const char* name, int64_t stride, const char* of, int64_t least) {
  check(stride >= least, ErrorKind::kConfig, name, " must be at least ", of, " = ", least, ", got ",
        stride);
}

void check_address(const char* name, const void* pointer, int64_t alignment) {
  check(reinterpret_cast<uintptr_t>(pointer) % alignment == 0, ErrorKind::kConfig, name,
        " must be aligned to ", alignment, " bytes, got address ",
        reinterpret_cast<uintptr_t>(pointer));
}

struct CacheLayout {
  std::vector<py::object> caches;
  int64_t num_blocks, num_heads, block_tokens, token_bytes, block_stride_bytes;
  void* stream;
};

CacheLayout read_cache_layout(KeywordReader& reader) {
  CacheLayout layout;
  layout.caches = reader.list("caches");
  layout.num_blocks = reader.integer("num_blocks", 1, kMaxInt32);
  layout.num_heads = reader.integer("num_heads", 1, 1 << 16);
  layout.token_bytes = reader.integer("token_bytes", 16, 1 << 16);
  layout.block_stride_bytes = reader.integer("block_stride_bytes", 16, kMaxStride);
  layout.stream = read_stream(reader);
  layout.block_tokens = reader.integer("block_tokens", 1, 1 << 16, kBlockTokens);
  return layout;
}

void check_layout(const CacheLayout& layout) {
  check(layout.token_bytes % 16 == 0, ErrorKind::kConfig,
        "token_bytes must be a multiple of 16, got ", layout.token_bytes);
  check(layout.block_stride_bytes % 16 == 0, ErrorKind::kConfig,
        "block_stride_bytes must be a multiple of 16, got ", layout.block_stride_bytes);
  const int64_t block_bytes = layout.num_heads * layout.block_tokens * layout.token_bytes;
  check(block_bytes <= kMaxInt32, ErrorKind::kConfig,
        "num_heads * block_tokens * token_bytes must be at most ", kMaxInt32, ", got ",
        block_bytes);
  check_stride("block_stride_bytes", layout.block_stride_bytes,
               "num_heads * block_tokens * token_bytes", block_bytes);
}

// What may go side by side in any order: nothing is written twice, or read where another writes.
void check_copies(const std::vector<BlockCopy>& copies) {
  std::set<int32_t> destinations, read;
  for (const BlockCopy& copy : copies) {
    check(destinations.insert(copy.destination).second, ErrorKind::kConfig,
          "copies must not name a destination twice, got block ", copy.destination, " again");
    const bool truncates = copy.source == copy.destination && copy.first == 0;
    if (truncates) continue;  // every part stays where it is, or becomes zero
    read.insert({copy.source, copy.following});
  }
  for (int32_t block : read) {
    check(destinations.count(block) == 0, ErrorKind::kConfig,
          "copies must not write a block that one of them reads, got block ", block,
          "; use two calls");
  }
}

BlockCopy read_copy(KeywordReader& reader, const CacheLayout& layout, const py::object& item) {
  const std::vector<int64_t> n = reader.integers("copies", item, 5);
  const int64_t first = n[3], num_tokens = n[4], size = layout.block_tokens;
  check(first >= 0 && first < size && num_tokens >= 0 && num_tokens <= size, ErrorKind::kConfig,
        "copies must take 0 to ", size, " tokens from one of 0 to ", size - 1, " on, got ",
        num_tokens, " from ", first);
  const bool has_following = first + num_tokens > size;
  for (size_t i = 0; i < 3; ++i) {
    if (i == 1 && !has_following) continue;
    check(n[i] >= 0 && n[i] < layout.num_blocks, ErrorKind::kConfig, "copies names block ", n[i],
          ", the cache has blocks 0 to ", layout.num_blocks - 1);
  }
  // Where no second block is needed, the first one stands for it.
  return {static_cast<int32_t>(n[0]), static_cast<int32_t>(has_following ? n[1] : n[0]),
          static_cast<int32_t>(n[2]), static_cast<int32_t>(first),
          static_cast<int32_t>(num_tokens)};
}

CopyBlocksCall plan_copies(KeywordReader& reader, const CacheLayout& layout,
                           const std::vector<BlockCopy>& copies) {
  std::vector<Bytes16*> caches;
  for (const py::object& cache : layout.caches) {
    caches.push_back(reinterpret_cast<Bytes16*>(reader.to_address("caches", cache, 16)));
  }
  CopyBlocksCall call;
  call.stream = layout.stream;
  for (size_t c = 0; c < caches.size(); c += kMaxCaches) {
    for (size_t b = 0; b < copies.size(); b += kMaxCopies) {
      CopyBlocksArgs args = {};
      args.num_caches = static_cast<int32_t>(std::min<size_t>(kMaxCaches, caches.size() - c));
      args.num_copies = static_cast<int32_t>(std::min<size_t>(kMaxCopies, copies.size() - b));
      std::copy_n(caches.begin() + c, args.num_caches, args.caches);
      std::copy_n(copies.begin() + b, args.num_copies, args.copies);
      args.block_stride = layout.block_stride_bytes / 16;
      args.block_tokens = static_cast<int32_t>(layout.block_tokens);
      args.token_size = static_cast<int32_t>(layout.token_bytes / 16);
      args.block_size = static_cast<int32_t>(layout.num_heads * layout.block_tokens) *
                        args.token_size;
      call.launches.push_back(args);
    }
  }
  return call;
}

// The optional ways to choose from something else than the raw logits.
void read_choice_arguments(KeywordReader& reader, SampleArgs* a) {
  a->choice = reader.optional_pointer<const void>("choice_logits", 1);
  a->choice_stride = reader.integer("choice_stride", 0, kMaxStride, 0);
  a->seen = reader.optional_pointer<uint32_t>("seen");
  a->penalties = reader.optional_pointer<const float>("penalties");
  a->bias = reader.optional_pointer<const float>("bias");
  a->bias_stride = reader.integer("bias_stride", 0, kMaxStride, 0);
}

void check_choice_arguments(const TypeName& type, SampleArgs* a) {
  if (a->choice != nullptr) {
    check_address("choice_logits", a->choice, type.size);
    check_stride("choice_stride", a->choice_stride, "vocab_size", a->vocab_size);
  } else {
    a->choice = a->logits;
    a->choice_stride = a->logits_stride;
  }
  check((a->seen == nullptr) == (a->penalties == nullptr), ErrorKind::kConfig,
        "seen and penalties go together: give both or neither");
  check(a->bias_stride == 0 || a->bias_stride >= a->vocab_size, ErrorKind::kConfig,
        "bias_stride must be 0 (one row for all) or at least vocab_size = ", a->vocab_size,
        ", got ", a->bias_stride);
}

}  // namespace

SampleCall read_sample(KeywordReader& reader) {
  SampleCall call = {};
  SampleArgs& a = call.args;
  a.logits = reader.pointer<const void>("logits", 1);
  a.logits_stride = reader.integer("logits_stride", 1, kMaxStride);
  const std::string dtype = reader.text("dtype");
  a.num_rows = static_cast<int32_t>(reader.integer("num_rows", 1, kMaxRows));
  a.vocab_size = static_cast<int32_t>(reader.integer("vocab_size", 1, kMaxVocabSize));
  a.token_flags = reader.pointer<const uint8_t>("token_flags");
  a.floats = reader.pointer<const float>("floats");
  a.ints = reader.pointer<const int64_t>("ints");
  a.positions = reader.pointer<int32_t>("positions");
  a.tokens = reader.pointer<int32_t>("tokens");
  a.flags = reader.pointer<int32_t>("flags");
  a.num_sampled = reader.pointer<int32_t>("num_sampled");
  a.min_prob = reader.pointer<float>("min_prob");
  a.history_tokens = reader.pointer<int32_t>("history_tokens");
  a.history_probs = reader.pointer<float>("history_probs");
  a.history_flags = reader.pointer<uint8_t>("history_flags");
  a.history_capacity = static_cast<int32_t>(reader.integer("history_capacity", 1, kMaxInt32));
  void* workspace = reader.pointer<void>("workspace", 16);
  const int64_t workspace_bytes = reader.integer("workspace_bytes", 1, INT64_MAX);
  call.stream = read_stream(reader);
  a.candidate_capacity = static_cast<int32_t>(
      reader.integer("candidate_capacity", 1, kMaxVocabSize, kDefaultCandidates));
  read_choice_arguments(reader, &a);
  a.advance = reader.flag("advance", true);
  a.filters = reader.flag("filters", true);
  reader.finish();

  const TypeName* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                      [&](const TypeName& t) { return dtype == t.name; });
  check(type != std::end(kTypes), ErrorKind::kConfig,
        "dtype must be float32, float16 or bfloat16, got '", dtype, "'");
  a.type = type->type;
  check_address("logits", a.logits, type->size);
  check_stride("logits_stride", a.logits_stride, "vocab_size", a.vocab_size);
  check_choice_arguments(*type, &a);
  const int64_t needed = split_workspace(a.num_rows, a.vocab_size, a.candidate_capacity, workspace,
                                         workspace_bytes, &a);
  check(workspace_bytes >= needed, ErrorKind::kConfig, "workspace_bytes must be at least ", needed,
        " for ", a.num_rows, " rows of ", a.vocab_size, " logits, got ", workspace_bytes,
        "; ask sample_workspace_size()");
  return call;
}

int64_t read_workspace_size(KeywordReader& reader) {
  const int64_t rows = reader.integer("max_rows", 1, kMaxRows);
  const int64_t vocab_size = reader.integer("vocab_size", 1, kMaxVocabSize);
  const int64_t candidates =
      reader.integer("candidate_capacity", 1, kMaxVocabSize, kDefaultCandidates);
  reader.finish();
  return split_workspace(rows, vocab_size, candidates, nullptr, 0, nullptr);
}

CopyBlocksCall read_copy_blocks(KeywordReader& reader) {
  const std::vector<py::object> items = reader.list("copies");
  const CacheLayout layout = read_cache_layout(reader);
  reader.finish();
  check_layout(layout);
  std::vector<BlockCopy> copies;
  for (const py::object& item : items) copies.push_back(read_copy(reader, layout, item));
  check_copies(copies);
  return plan_copies(reader, layout, copies);
}

GatherRowsCall read_gather_rows(KeywordReader& reader) {
  GatherRowsCall call = {};
  GatherRowsArgs& a = call.args;
  a.source = reader.pointer<const char>("source");
  a.source_stride = reader.integer("source_stride_bytes", 1, kMaxStride);
  a.num_source_rows = static_cast<int32_t>(reader.integer("num_source_rows", 1, kMaxInt32));
  a.indices = reader.pointer<const int32_t>("indices");
  a.num_rows = static_cast<int32_t>(reader.integer("num_rows", 1, kMaxRows));
  a.row_bytes = reader.integer("row_bytes", 1, kMaxInt32);
  a.out = reader.pointer<char>("out");
  a.out_stride = reader.integer("out_stride_bytes", 1, kMaxStride);
  call.stream = read_stream(reader);
  reader.finish();
  check_stride("source_stride_bytes", a.source_stride, "row_bytes", a.row_bytes);
  check_stride("out_stride_bytes", a.out_stride, "row_bytes", a.row_bytes);
  const auto source = reinterpret_cast<uintptr_t>(a.source);
  const auto out = reinterpret_cast<uintptr_t>(a.out);
  const uint64_t source_end = source + (a.num_source_rows - 1) * a.source_stride + a.row_bytes;
  const uint64_t out_end = out + (a.num_rows - 1) * a.out_stride + a.row_bytes;
  check(out_end <= source || source_end <= out, ErrorKind::kConfig,
        "out must not overlap source: rows would be read after they were written");
  const uint64_t all = source | out | a.source_stride | a.out_stride | a.row_bytes;
  a.unit = all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
  return call;
}

MarkSeenCall read_mark_seen(KeywordReader& reader) {
  MarkSeenCall call = {};
  MarkSeenArgs& a = call.args;
  a.seen = reader.pointer<uint32_t>("seen");
  a.vocab_size = static_cast<int32_t>(reader.integer("vocab_size", 1, kMaxVocabSize));
  a.tokens = reader.optional_pointer<const int32_t>("tokens");
  a.num_tokens = static_cast<int32_t>(reader.integer("num_tokens", 0, kMaxInt32));
  call.stream = read_stream(reader);
  a.clear = reader.flag("clear", true);
  reader.finish();
  check(a.tokens != nullptr || a.num_tokens == 0, ErrorKind::kConfig,
        "tokens must be an address for ", a.num_tokens, " tokens, got 0");
  return call;
}

}  // namespace flarecore::cuda
