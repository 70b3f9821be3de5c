// What a sampler launch is given: pointers into device memory and sizes, nothing else.
//
// The state's tensors are those of kernels/sampling_state.py, whose columns and flags are repeated
// here, so that either sampler can serve the same rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace flarecore::cuda {

constexpr int kThreads = 256;                         // of every sampler block
constexpr int kPerThread = 4;                         // consecutive logits of one thread
constexpr int kChunk = kThreads * kPerThread;         // logits of one block, whatever the batch
constexpr int kIdBits = 18;                           // of a token id in a packed key
constexpr int64_t kMaxVocabSize = int64_t{1} << kIdBits;
constexpr int kMaxChunks = kMaxVocabSize / kChunk;
constexpr int kGroupLogits = 32 * kPerThread;         // logits that share one group maximum
constexpr int kGroups = kChunk / kGroupLogits;        // group maxima of a chunk
static_assert(kMaxChunks <= kThreads, "the joining block gives each chunk a thread");

enum FloatColumn { kTemperature, kTopP, kMinP, kBeta, kTheta, kNumFloats };
enum IntColumn { kSeed, kStream, kPass, kTopK, kHalt, kNumInts };

enum TokenFlag : int32_t {
  kFlagMayEnd = 2,        // a sentence may end with the token
  kFlagSettles = 4,       // the token shows what follows a terminator before it
  kFlagTable = 31,        // bits that the caller's table over the vocabulary may use
  kFlagBelowBeta = 32,    // confidence < beta
  kFlagBelowTheta = 64,   // confidence < theta
  kFlagInvalid = 128,     // no finite logit, or a NaN or +inf among them; confidence is 0
  kFlagFull = 256,        // only in the row's flags: no room for another token
  kFlagLooked = 512,      // only there: a token that settles came after one that may end
};

enum class LogitType { kFloat32, kFloat16, kBfloat16 };

// What a block leaves of its chunk. Sums are in units of 2^-42 (sampler_math.h).
struct alignas(16) ChunkStats {
  float top, raw_top;         // largest logit, to choose from and raw
  int64_t weight, raw_weight; // sums of exp relative to them: scaled by temperature, and not
  int32_t arg;                // first id with the largest logit
  int32_t padding;
};

// What the first launch leaves of a row that filters.
struct alignas(16) RowStats {
  float top, raw_top;
  int64_t weight, raw_weight;
  float threshold;  // no filter keeps a logit below it
  int32_t padding;
};

// Zero between launches: what arrived, and what is still to be done.
struct alignas(16) RowCounters {
  int32_t chunks, filter_chunks;  // blocks that arrived
  int32_t num_candidates;
  int32_t is_pending;  // the second launch finishes the row
};

struct Candidate {
  uint64_t key;    // pack_key: logit and id
  int64_t weight;  // in units of 2^-42
};

struct SampleArgs {
  const void* logits;      // (num_rows, vocab_size) raw
  const void* choice;      // like logits: what to choose from; equal to logits by default
  int64_t logits_stride;   // elements between rows
  int64_t choice_stride;
  LogitType type;
  int32_t num_rows, vocab_size;
  const uint8_t* token_flags;  // (vocab_size)
  const float* floats;         // (num_rows, kNumFloats)
  const int64_t* ints;         // (num_rows, kNumInts)
  int32_t *positions, *tokens, *flags, *num_sampled;  // (num_rows)
  float* min_prob;                                    // (num_rows)
  int32_t* history_tokens;  // (num_rows, history_capacity), as the next two
  float* history_probs;
  uint8_t* history_flags;
  int32_t history_capacity;
  uint32_t* seen;          // (num_rows, seen_words(vocab_size)) or null
  const float* penalties;  // (num_rows), null as seen is
  const float* bias;       // (num_rows or 1, vocab_size) or null
  int64_t bias_stride;     // 0: one row for all
  bool advance, filters;
  // Parts of the workspace, see split_workspace.
  RowCounters* counters;  // (max_rows)
  RowStats* row_stats;    // (max_rows)
  ChunkStats* chunks;     // (max_rows, num_chunks)
  float* group_tops;      // (max_rows, num_chunks, kGroups)
  Candidate* candidates;  // (max_rows, candidate_capacity)
  int32_t candidate_capacity;
};

constexpr int64_t num_chunks(int64_t vocab_size) { return (vocab_size + kChunk - 1) / kChunk; }
constexpr int64_t seen_words(int64_t vocab_size) { return (vocab_size + 31) / 32; }

// Bytes that a launch of `num_rows` rows needs. Sets the pointers of `args` if it is given, to parts
// of the `workspace_bytes` bytes at `workspace`, which are at least that many.
//
// Counters lie at the beginning, all else at the end: launches of fewer rows than the workspace is
// for must leave zero what the counters of more rows will be.
inline int64_t split_workspace(int64_t num_rows, int64_t vocab_size, int64_t candidate_capacity,
                               void* workspace, int64_t workspace_bytes, SampleArgs* args) {
  SampleArgs unused;
  SampleArgs* out = args != nullptr ? args : &unused;
  const int64_t chunks = num_chunks(vocab_size);
  const int64_t end = workspace_bytes / 16 * 16;
  int64_t used = 0;
  const auto take = [&](auto** pointer, int64_t count) {
    using T = std::remove_reference_t<decltype(**pointer)>;
    used += (count * int64_t{sizeof(T)} + 15) / 16 * 16;
    if (args != nullptr) *pointer = reinterpret_cast<T*>(static_cast<char*>(workspace) + end - used);
  };
  take(&out->row_stats, num_rows);
  take(&out->chunks, num_rows * chunks);
  take(&out->group_tops, num_rows * chunks * kGroups);
  take(&out->candidates, num_rows * candidate_capacity);
  out->counters = static_cast<RowCounters*>(workspace);
  return used + num_rows * int64_t{sizeof(RowCounters)};
}

}  // namespace flarecore::cuda
