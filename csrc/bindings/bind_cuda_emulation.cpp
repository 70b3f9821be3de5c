// The bodies of the CUDA kernels run on the CPU, for tests: the same code, the same splits.
//
// The calls take what flarecore._cuda takes, with addresses of host memory. Blocks run one after
// the other, in an order that `block_order` shuffles, since no result may depend on it.
#include <algorithm>
#include <numeric>
#include <random>

#include "bindings/bindings.h"
#include "bindings/cuda_arguments.h"
#include "cuda/host_block.h"
#include "cuda/sampler_chunk.h"
#include "cuda/sampler_filter.h"

namespace py = pybind11;

namespace flarecore {
namespace {

using cuda::HostBlock;
using cuda::SampleArgs;

template <typename Logit>
void emulate_typed(const SampleArgs& args, const std::vector<int>& blocks) {
  const int chunks = static_cast<int>(cuda::num_chunks(args.vocab_size));
  HostBlock block;
  for (int i : blocks) {
    cuda::SampleScratch scratch;
    cuda::sample_body<Logit>(block, scratch, args, i % chunks, i / chunks);
  }
  if (!args.filters) return;
  for (int i : blocks) {
    cuda::FilterScratch scratch;
    cuda::filter_body<Logit>(block, scratch, args, i % chunks, i / chunks);
  }
}

void emulate_sample(const py::kwargs& given) {
  KeywordReader reader("emulate_cuda_sample", given);
  const auto order = static_cast<uint32_t>(reader.integer("block_order", 0, UINT32_MAX, 0));
  const SampleArgs args = cuda::read_sample(reader).args;
  std::vector<int> blocks(cuda::num_chunks(args.vocab_size) * args.num_rows);
  std::iota(blocks.begin(), blocks.end(), 0);
  if (order != 0) std::shuffle(blocks.begin(), blocks.end(), std::mt19937(order));
  switch (args.type) {
    case cuda::LogitType::kFloat32: emulate_typed<float>(args, blocks); break;
    case cuda::LogitType::kFloat16: emulate_typed<cuda::Half>(args, blocks); break;
    case cuda::LogitType::kBfloat16: emulate_typed<cuda::Bfloat16>(args, blocks); break;
  }
}

void emulate_copies(const cuda::CopyBlocksCall& call) {
  for (const cuda::CopyBlocksArgs& args : call.launches) {
    for (int copy = args.num_copies - 1; copy >= 0; --copy) {
      for (int cache = 0; cache < args.num_caches; ++cache) {
        for (int i = 0; i < args.block_size; ++i) cuda::copy_block_part(args, cache, copy, i);
      }
    }
  }
}

template <typename Unit>
void emulate_gather(const cuda::GatherRowsArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) {
    const int64_t units = args.row_bytes / int64_t{sizeof(Unit)};
    for (int64_t i = 0; i < units; ++i) cuda::gather_part<Unit>(args, row, i);
  }
}

void emulate_gather_rows(const py::kwargs& given) {
  KeywordReader reader("emulate_cuda_gather_rows", given);
  const cuda::GatherRowsArgs args = cuda::read_gather_rows(reader).args;
  switch (args.unit) {
    case 16: emulate_gather<cuda::Bytes16>(args); break;
    case 4: emulate_gather<uint32_t>(args); break;
    case 2: emulate_gather<uint16_t>(args); break;
    default: emulate_gather<uint8_t>(args); break;
  }
}

void emulate_mark_seen(const py::kwargs& given) {
  KeywordReader reader("emulate_cuda_mark_seen", given);
  const cuda::MarkSeenArgs args = cuda::read_mark_seen(reader).args;
  if (args.clear) std::fill_n(args.seen, cuda::seen_words(args.vocab_size), 0u);
  for (int i = 0; i < args.num_tokens; ++i) cuda::mark_token(args, i);
}

}  // namespace

void bind_cuda_emulation(py::module_& testing) {
  testing.def("emulate_cuda_sample", &emulate_sample);
  testing.def("emulate_cuda_copy_blocks", [](const py::kwargs& given) {
    KeywordReader reader("emulate_cuda_copy_blocks", given);
    emulate_copies(cuda::read_copy_blocks(reader));
  });
  testing.def("emulate_cuda_gather_rows", &emulate_gather_rows);
  testing.def("emulate_cuda_mark_seen", &emulate_mark_seen);
  testing.def("emulate_cuda_sample_workspace_size", [](const py::kwargs& given) {
    KeywordReader reader("emulate_cuda_sample_workspace_size", given);
    return cuda::read_workspace_size(reader);
  });
}

}  // namespace flarecore
