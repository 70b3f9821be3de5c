// Launches, for callers that know nothing of CUDA: each returns null or what the runtime said.
//
// Arguments have been checked. Nothing synchronises; `stream` is a cudaStream_t.
#pragma once

#include <cstdint>

#include "cuda/kv_blocks.h"
#include "cuda/rows.h"
#include "cuda/sampler_args.h"

namespace flarecore::cuda {

const char* launch_sample(const SampleArgs& args, void* stream);
const char* launch_copy_blocks(const CopyBlocksArgs& args, void* stream);
const char* launch_gather_rows(const GatherRowsArgs& args, void* stream);
const char* launch_mark_seen(const MarkSeenArgs& args, void* stream);

struct DeviceCount {
  int count;
  const char* reason;  // null, or why there is none
};
DeviceCount count_devices();
// Version of the CUDA runtime that was linked in, as 13000 for 13.0.
int runtime_version();

}  // namespace flarecore::cuda
