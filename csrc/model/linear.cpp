#include "model/linear.h"

#include <algorithm>

#include "cpu/cpu_isa.h"

namespace flarecore {

void ActivationRows::resize(int64_t num_rows, int64_t max_cols) {
  stride_ = (max_cols + kGroupSize - 1) / kGroupSize * kGroupSize;
  const size_t size = static_cast<size_t>(num_rows * stride_);
  if (values_.size() >= size) return;
  values_.resize(size);
  groups_.resize(size / kGroupSize);
}

void ActivationRows::quantize(int64_t r, int64_t num_cols) {
  kernels().quantize_row(row(r), num_cols, groups_.data() + r * group_stride());
}

void run_tiles(const LinearTarget& target, const ActivationRows& input, int num_rows,
               int64_t tile_begin, int64_t tile_end) {
  const PackedView view = target.matrix->view();
  if (is_quantized(view.format)) {
    kernels().matmul_quantized(view, input.groups(), input.group_stride(), num_rows, tile_begin,
                               tile_end, target.out, target.out_stride);
  } else {
    kernels().matmul_float(view, input.values(), input.stride(), num_rows, tile_begin, tile_end,
                           target.out, target.out_stride);
  }
}

void run_linear(Span<const LinearTarget> targets, const ActivationRows& input, int num_rows,
                ThreadPool* threads) {
  int64_t num_tiles = 0;
  for (const LinearTarget& target : targets) num_tiles += target.matrix->num_tiles();
  // A few tasks a thread even out a busy neighbour; more would only cost hand-outs.
  constexpr int64_t kTasksPerThread = 4;
  // Whole pairs of tiles, which the kernels for many rows work on.
  const int64_t chunk =
      std::max<int64_t>(1, num_tiles / (int64_t{threads->num_threads()} * kTasksPerThread) / 2) * 2;
  const int64_t num_tasks = (num_tiles + chunk - 1) / chunk;
  threads->parallel_for(num_tasks, [&](int64_t task, int) {
    int64_t begin = task * chunk, end = std::min(begin + chunk, num_tiles);
    for (const LinearTarget& target : targets) {
      const int64_t tiles = target.matrix->num_tiles();
      if (begin < tiles && end > 0) {
        run_tiles(target, input, num_rows, std::max<int64_t>(begin, 0), std::min(end, tiles));
      }
      begin -= tiles;
      end -= tiles;
    }
  });
}

}  // namespace flarecore
