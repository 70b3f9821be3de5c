// Kernels and launches of the fused sampler; what they do is in sampler_chunk.h, sampler_filter.h.
#include "cuda/device_block.cuh"
#include "cuda/launch.h"
#include "cuda/launch_error.cuh"
#include "cuda/sampler_chunk.h"
#include "cuda/sampler_filter.h"

namespace flarecore::cuda {
namespace {

// Four blocks on a multiprocessor: without the hint ptxas aims higher and spills.
template <typename Logit>
__global__ void __launch_bounds__(kThreads, 4)
    sample_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ DeviceBlock::Scratch block_scratch;
  __shared__ SampleScratch scratch;
  DeviceBlock block(&block_scratch);
  sample_body<Logit>(block, scratch, args, blockIdx.x, blockIdx.y);
}

template <typename Logit>
__global__ void __launch_bounds__(kThreads, 4)
    filter_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ DeviceBlock::Scratch block_scratch;
  __shared__ FilterScratch scratch;
  DeviceBlock block(&block_scratch);
  filter_body<Logit>(block, scratch, args, blockIdx.x, blockIdx.y);
}

template <typename Logit>
void launch_typed(const SampleArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(num_chunks(args.vocab_size)), args.num_rows);
  sample_kernel<Logit><<<grid, kThreads, 0, stream>>>(args);
  if (args.filters) filter_kernel<Logit><<<grid, kThreads, 0, stream>>>(args);
}

}  // namespace

const char* launch_sample(const SampleArgs& args, void* stream) {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (args.type) {
    case LogitType::kFloat32: launch_typed<float>(args, cuda_stream); break;
    case LogitType::kFloat16: launch_typed<Half>(args, cuda_stream); break;
    case LogitType::kBfloat16: launch_typed<Bfloat16>(args, cuda_stream); break;
  }
  return launch_error();
}

}  // namespace flarecore::cuda
