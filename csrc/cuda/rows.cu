// Kernels and launches of the row gather and of the set of seen tokens.
#include "cuda/kv_blocks.h"
#include "cuda/launch.h"
#include "cuda/launch_error.cuh"

namespace flarecore::cuda {
namespace {

template <typename Unit>
__global__ void __launch_bounds__(kThreads) gather_kernel(const GatherRowsArgs args) {
  const int64_t units = args.row_bytes / int64_t{sizeof(Unit)};
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < units;
       i += int64_t{gridDim.x} * kThreads) {
    gather_part<Unit>(args, blockIdx.y, i);
  }
}

template <typename Unit>
void launch_gather(const GatherRowsArgs& args, cudaStream_t stream) {
  constexpr int64_t kBlockUnits = int64_t{kThreads} * 4;
  const int64_t units = args.row_bytes / int64_t{sizeof(Unit)};
  const int64_t blocks = (units + kBlockUnits - 1) / kBlockUnits;
  const dim3 grid(static_cast<unsigned>(blocks < 1024 ? blocks : 1024), args.num_rows);
  gather_kernel<Unit><<<grid, kThreads, 0, stream>>>(args);
}

// One block: clearing must be over before the first bit is set.
__global__ void __launch_bounds__(kThreads) mark_seen_kernel(const MarkSeenArgs args) {
  if (args.clear) {
    const int words = static_cast<int>((args.vocab_size + 31) / 32);
    for (int i = threadIdx.x; i < words; i += kThreads) args.seen[i] = 0;
    __syncthreads();
  }
  for (int i = threadIdx.x; i < args.num_tokens; i += kThreads) mark_token(args, i);
}

}  // namespace

const char* launch_gather_rows(const GatherRowsArgs& args, void* stream) {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (args.unit) {
    case 16: launch_gather<Bytes16>(args, cuda_stream); break;
    case 4: launch_gather<uint32_t>(args, cuda_stream); break;
    case 2: launch_gather<uint16_t>(args, cuda_stream); break;
    default: launch_gather<uint8_t>(args, cuda_stream); break;
  }
  return launch_error();
}

const char* launch_mark_seen(const MarkSeenArgs& args, void* stream) {
  mark_seen_kernel<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(args);
  return launch_error();
}

}  // namespace flarecore::cuda
