// The calls of flarecore._cuda as plain arguments, checked. Shared by the module, which launches
// them, and the emulation, which runs them on the CPU (there the addresses are of host memory).
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "bindings/keyword_reader.h"
#include "cuda/kv_blocks.h"
#include "cuda/rows.h"
#include "cuda/sampler_args.h"

namespace flarecore::cuda {

struct SampleCall {
  SampleArgs args;
  void* stream;
};

// Copies as many launches as they need.
struct CopyBlocksCall {
  std::vector<CopyBlocksArgs> launches;
  void* stream;
};

struct GatherRowsCall {
  GatherRowsArgs args;
  void* stream;
};

struct MarkSeenCall {
  MarkSeenArgs args;
  void* stream;
};

// All raise ConfigError, which names the argument, its range and what was got. `reader` has been
// asked for whatever the caller takes beyond these arguments.
SampleCall read_sample(KeywordReader& reader);
CopyBlocksCall read_copy_blocks(KeywordReader& reader);
GatherRowsCall read_gather_rows(KeywordReader& reader);
MarkSeenCall read_mark_seen(KeywordReader& reader);
int64_t read_workspace_size(KeywordReader& reader);

}  // namespace flarecore::cuda
