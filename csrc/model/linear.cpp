#include "model/linear.h"

#include <algorithm>
#include <atomic>

namespace flarecore {

void ActivationRows::resize(int64_t num_rows, int64_t max_cols) {
  stride_ = (max_cols + kGroupSize - 1) / kGroupSize * kGroupSize;
  const int64_t block_rows = kernels().block_rows;
  const int64_t num_blocks = (num_rows + block_rows - 1) / block_rows;
  values_.grow(static_cast<size_t>(num_rows * stride_) * sizeof(float));
  groups_.grow(static_cast<size_t>(num_rows * group_stride()) * sizeof(QuantizedGroup));
  if (block_rows == 1 || !is_blocked_) return;
  cells_.grow(static_cast<size_t>(num_blocks * group_stride() * kernels().block_cell_bytes));
}

uint8_t* ActivationRows::block(int64_t first_row) {
  const int64_t index = first_row / kernels().block_rows * group_stride();
  return const_cast<uint8_t*>(cells().data()) + index * kernels().block_cell_bytes;
}

ActivationRows::Wanted ActivationRows::wanted_by(
    std::initializer_list<const PackedMatrix*> readers) const {
  Wanted wanted;
  for (const PackedMatrix* matrix : readers) {
    const WeightFormat format = matrix->view().format;
    if (!is_quantized(format)) {
      wanted.floats = true;
    } else {
      (reads_blocks(format) ? wanted.blocks : wanted.rows) = true;
    }
  }
  return wanted;
}

void ActivationRows::quantize(const float* x, int64_t x_stride, int64_t first, int count,
                              int64_t num_cols,
                              std::initializer_list<const PackedMatrix*> readers) {
  const Wanted wanted = wanted_by(readers);
  if (wanted.blocks) kernels().quantize_block(x, x_stride, count, num_cols, block(first));
  if (!wanted.rows) return;
  for (int64_t r = first; r < first + count; ++r, x += x_stride) {
    kernels().quantize_row(x, num_cols, groups() + r * group_stride());
  }
}

void ActivationRows::norm_and_quantize(int64_t first, int count, const float* x,
                                       const std::vector<float>& norm, float eps,
                                       std::initializer_list<const PackedMatrix*> readers) {
  const auto num_cols = static_cast<int64_t>(norm.size());
  const Wanted wanted = wanted_by(readers);
  const bool only_rows = wanted.rows && !wanted.blocks && !wanted.floats;
  for (int64_t r = first; r < first + count; ++r, x += num_cols) {
    if (only_rows) {
      kernels().rmsnorm_quantize(x, norm.data(), eps, num_cols, groups() + r * group_stride());
    } else {
      kernels().rmsnorm(x, norm.data(), eps, num_cols, row(r));
    }
  }
  if (!only_rows) quantize(first, count, num_cols, readers);
}

void run_tiles(const LinearTarget& target, const ActivationRows& input, int num_rows,
               int64_t tile_begin, int64_t tile_end, const uint8_t* next) {
  const PackedView view = target.matrix->view();
  if (input.reads_blocks(view.format)) {
    kernels().matmul_blocks(view, input.blocks(num_rows), tile_begin, tile_end, target.out,
                            target.out_stride, target.adds);
  } else if (is_quantized(view.format)) {
    kernels().matmul_quantized(view, input.groups(), input.group_stride(), num_rows, tile_begin,
                               tile_end, target.out, target.out_stride, next);
  } else {
    kernels().matmul_float(view, input.values(), input.stride(), num_rows, tile_begin, tile_end,
                           target.out, target.out_stride, next);
  }
}

namespace {

// A few tasks a thread even out a busy neighbour; more would only cost hand-outs.
constexpr int64_t kTasksPerThread = 8;

// More than a thread gets read while it waits, and little enough to stay in L2.
constexpr int64_t kWaitingBytes = 256 * 1024;

std::atomic<int64_t> gated_passes[2];  // of rows, of blocks

}  // namespace

TileRun::TileRun(std::initializer_list<const PackedMatrix*> matrices, const ThreadPool& threads,
                 int64_t chunk)
    : num_threads_(threads.num_threads()) {
  std::copy(matrices.begin(), matrices.end(), matrices_.begin());
  choose_chunk(chunk);
}

TileRun::TileRun(Span<const LinearTarget> targets, const ThreadPool& threads)
    : num_threads_(threads.num_threads()) {
  for (size_t i = 0; i < targets.size(); ++i) matrices_[i] = targets[i].matrix;
  choose_chunk(0);
}

void TileRun::choose_chunk(int64_t chunk) {
  for (const PackedMatrix* matrix : matrices_) {
    if (matrix != nullptr) num_tiles_ += matrix->num_tiles();
  }
  // Whole pairs of tiles, which the kernels for many rows work on.
  const int64_t wanted = int64_t{num_threads_} * kTasksPerThread;
  chunk_ = chunk != 0 ? chunk : std::max<int64_t>(1, num_tiles_ / wanted / 2) * 2;
}

const uint8_t* TileRun::address(int64_t tile) const {
  for (const PackedMatrix* matrix : matrices_) {
    if (matrix == nullptr) break;
    if (tile < matrix->num_tiles()) {
      return matrix->view().data + tile * matrix->view().tile_size_bytes;
    }
    tile -= matrix->num_tiles();
  }
  return nullptr;
}

Span<const uint8_t> TileRun::first_bytes(int thread) const {
  const int64_t begin = share_begin(thread), tiles = share_begin(thread + 1) - begin;
  if (tiles == 0) return {};
  // Where matrices differ, the size of the first one's tiles counts: only a guess is lost.
  return {address(begin), static_cast<size_t>(tiles * matrices_[0]->view().tile_size_bytes)};
}

Span<const uint8_t> read_while_waiting(const NextRead& next, int thread, int64_t asked,
                                       ThreadPool* threads) {
  const Span<const uint8_t> bytes = next.first_bytes(thread);
  const int64_t left = static_cast<int64_t>(bytes.size()) - asked;
  if (left > 0) {
    threads->read_while_waiting(thread, bytes.data() + asked, std::min(left, kWaitingBytes));
  }
  return bytes;
}

const uint8_t* TileRun::read_after(int64_t end, int thread, const NextRead* next,
                                   ThreadPool* threads) const {
  const int64_t share_end = share_begin(thread + 1);
  if (end < share_end) return address(end);
  if (end > share_end || next == nullptr) return nullptr;
  return read_while_waiting(*next, thread, kReadAheadBytes, threads).data();
}

void run_linear(Span<const LinearTarget> targets, const ActivationRows& input, int num_rows,
                ThreadPool* threads, const NextRead* next) {
  const TileRun run(targets, *threads);
  threads->parallel_for(run.num_tasks(), [&](int64_t task, int thread) {
    const int64_t task_begin = run.task_begin(task), task_end = run.task_begin(task + 1);
    int64_t base = 0;
    for (const LinearTarget& target : targets) {
      const int64_t tiles = target.matrix->num_tiles();
      const int64_t begin = std::max(task_begin, base), end = std::min(task_end, base + tiles);
      if (begin < end) {
        run_tiles(target, input, num_rows, begin - base, end - base,
                  run.read_after(end, thread, next, threads));
      }
      base += tiles;
    }
  });
}

TileRun gated_run(const PackedMatrix& gate, const ThreadPool& threads) {
  const int64_t num_groups = gate.num_rows() / kGroupSize;
  const int64_t wanted = int64_t{threads.num_threads()} * kTasksPerThread;
  const int64_t chunk = std::max<int64_t>(1, num_groups / wanted);
  return TileRun({&gate}, threads, chunk * kGroupSize / gate.view().tile);
}

void run_gated(const PackedMatrix& gate, const PackedMatrix& up,
               void (*activate)(const float*, const float*, int64_t, float*),
               const ActivationRows& input, int num_rows, ThreadPool* threads,
               ActivationRows* out, const NextRead* next) {
  const TileRun run = gated_run(gate, *threads);
  const int64_t group_tiles = kGroupSize / gate.view().tile;
  const bool in_blocks = input.reads_blocks(gate.view().format);
  gated_passes[in_blocks].fetch_add(1, std::memory_order_relaxed);
  if (in_blocks) {
    const GatedBlocks product{gate.view(), up.view(), activate, input.blocks(num_rows),
                              out->block(0), out->group_stride()};
    threads->parallel_for(run.num_tasks(), [&](int64_t task, int) {
      kernels().gated_blocks(product, run.task_begin(task) / group_tiles,
                             run.task_begin(task + 1) / group_tiles);
    });
    return;
  }
  const GatedRows product{gate.view(), up.view(), activate,
                          {input.groups(), input.group_stride(), num_rows},
                          out->groups(), out->group_stride()};
  threads->parallel_for(run.num_tasks(), [&](int64_t task, int thread) {
    const int64_t end = run.task_begin(task + 1);
    kernels().gated_rows(product, run.task_begin(task) / group_tiles, end / group_tiles,
                         run.read_after(end, thread, next, threads));
  });
}

int64_t num_gated_passes(bool in_blocks) {
  return gated_passes[in_blocks].load(std::memory_order_relaxed);
}

}  // namespace flarecore
