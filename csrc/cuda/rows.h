// Gather of rows by index, and the set of seen tokens that the repetition penalty looks at.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/host_device.h"
#include "cuda/memory.h"
#include "cuda/sampler_args.h"

namespace flarecore::cuda {

struct GatherRowsArgs {
  const char* source;  // (num_source_rows, row_bytes), rows source_stride bytes apart
  char* out;           // (num_rows, row_bytes)
  int64_t source_stride, out_stride, row_bytes;
  int32_t num_source_rows, num_rows;
  const int32_t* indices;  // (num_rows)
  int32_t unit;            // bytes moved at once: 16, 4, 2 or 1, which everything is a multiple of
};

struct MarkSeenArgs {
  uint32_t* seen;         // (seen_words(vocab_size)): one row
  const int32_t* tokens;  // (num_tokens)
  int32_t vocab_size, num_tokens;
  bool clear;
};

// Moves unit number `index` of a row. An index out of range gives bytes 0xff: NaN in every type.
template <typename Unit>
FLARECORE_DEVICE void gather_part(const GatherRowsArgs& a, int row, int64_t index) {
  const int32_t from = a.indices[row];
  Unit value;
  memset(&value, 0xff, sizeof(value));
  if (from >= 0 && from < a.num_source_rows) {
    value = reinterpret_cast<const Unit*>(a.source + from * a.source_stride)[index];
  }
  reinterpret_cast<Unit*>(a.out + row * a.out_stride)[index] = value;
}

FLARECORE_DEVICE void mark_token(const MarkSeenArgs& a, int index) {
  const int32_t id = a.tokens[index];
  if (id >= 0 && id < a.vocab_size) atomic_or(a.seen + id / 32, 1u << (id % 32));
}

}  // namespace flarecore::cuda
