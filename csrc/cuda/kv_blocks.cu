// Kernel and launch of the block copy: one block of threads per 16 KiB, cache and copy.
#include "cuda/launch.h"
#include "cuda/launch_error.cuh"

namespace flarecore::cuda {
namespace {

constexpr int kPartsPerThread = 4;

__global__ void __launch_bounds__(kThreads)
    copy_blocks_kernel(const __grid_constant__ CopyBlocksArgs args) {
  const int begin = blockIdx.x * kThreads * kPartsPerThread + threadIdx.x;
  for (int part = 0; part < kPartsPerThread; ++part) {
    const int index = begin + part * kThreads;
    if (index < args.block_size) copy_block_part(args, blockIdx.y, blockIdx.z, index);
  }
}

}  // namespace

const char* launch_copy_blocks(const CopyBlocksArgs& args, void* stream) {
  constexpr int kPartsPerBlock = kThreads * kPartsPerThread;
  const dim3 grid((args.block_size + kPartsPerBlock - 1) / kPartsPerBlock, args.num_caches,
                  args.num_copies);
  copy_blocks_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(args);
  return launch_error();
}

}  // namespace flarecore::cuda
