// Matrix products of a forward pass: activations prepared once, several matrices in one parallel
// run.
#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <vector>

#include "common/aligned_buffer.h"
#include "common/span.h"
#include "common/thread_pool.h"
#include "cpu/cpu_isa.h"
#include "model/packed_matrix.h"

namespace flarecore {

// From this many rows on a pass takes the kernels for many rows.
constexpr int64_t kManyRows = 32;

// Input rows of a product: float32, and int8 with scales where a quantised matrix reads them. Many
// rows are quantised in the blocks of the level's kernels for many rows; formats that these do not
// take get rows of QuantizedGroup as few rows do.
class ActivationRows {
 public:
  void resize(int64_t num_rows, int64_t max_cols);
  float* row(int64_t r) { return values() + r * stride_; }
  int64_t stride() const { return stride_; }

  // Whether the next rows go in blocks. Never both ways at once: a product reads what was quantised
  // last.
  void set_blocked(bool is_blocked) { is_blocked_ = is_blocked; }
  // Rows that quantize() takes at a time.
  int block_rows() const { return is_blocked_ ? kernels().block_rows : 1; }
  bool reads_blocks(WeightFormat format) const {
    return is_blocked_ && kernels().multiplies_blocks(format);
  }

  // Quantises the num_cols values of rows [first, first + count), a whole block or what is left of
  // the last one, as each of the quantised `readers` wants them.
  void quantize(int64_t first, int count, int64_t num_cols,
                std::initializer_list<const PackedMatrix*> readers) {
    quantize(row(first), stride_, first, count, num_cols, readers);
  }
  // The same for rows that lie elsewhere, from x on, x_stride floats apart.
  void quantize(const float* x, int64_t x_stride, int64_t first, int count, int64_t num_cols,
                std::initializer_list<const PackedMatrix*> readers);

  // The same for the RMS norm of `count` rows of x, (num_cols) floats apart. Where only the codes
  // of single rows are read, the norm itself is never in memory.
  void norm_and_quantize(int64_t first, int count, const float* x, const std::vector<float>& norm,
                         float eps, std::initializer_list<const PackedMatrix*> readers);

  float* values() { return reinterpret_cast<float*>(values_.data()); }
  const float* values() const { return reinterpret_cast<const float*>(values_.data()); }
  // (num_rows, stride / 32); row r is valid after quantize() or norm_and_quantize().
  const QuantizedGroup* groups() const {
    return reinterpret_cast<const QuantizedGroup*>(groups_.data());
  }
  QuantizedGroup* groups() { return reinterpret_cast<QuantizedGroup*>(groups_.data()); }
  int64_t group_stride() const { return stride_ / kGroupSize; }
  BlockedRows blocks(int num_rows) const { return {cells().data(), group_stride(), num_rows}; }
  uint8_t* block(int64_t first_row);  // cells of the block that begins with this row

 private:
  // Where a block is one row, both ways share the memory.
  const AlignedBuffer& cells() const { return kernels().block_rows == 1 ? groups_ : cells_; }

  // What readers want of an input.
  struct Wanted {
    bool floats = false, rows = false, blocks = false;
  };
  Wanted wanted_by(std::initializer_list<const PackedMatrix*> readers) const;

  int64_t stride_ = 0;
  bool is_blocked_ = false;
  AlignedBuffer values_, groups_, cells_;
};

struct LinearTarget {
  const PackedMatrix* matrix;
  float* out;  // (num_rows, *) with row stride out_stride
  int64_t out_stride;
  bool adds = false;  // to what is there; only where the input reads_blocks() for the matrix
};

// What a run reads, known before it begins, so that the run before it can ask for it.
class NextRead {
 public:
  // What `thread` reads first; empty if it has no share.
  virtual Span<const uint8_t> first_bytes(int thread) const = 0;

 protected:
  ~NextRead() = default;
};

// The tiles of matrices that one run multiplies, as one sequence, in chunks that are its tasks.
class TileRun final : public NextRead {
 public:
  // Up to three matrices; `chunk` 0: as many tiles as suit a product.
  TileRun(std::initializer_list<const PackedMatrix*> matrices, const ThreadPool& threads,
          int64_t chunk = 0);
  TileRun(Span<const LinearTarget> targets, const ThreadPool& threads);

  int64_t num_tasks() const { return (num_tiles_ + chunk_ - 1) / chunk_; }
  int64_t task_begin(int64_t task) const { return std::min(task * chunk_, num_tiles_); }
  // The first tile of a thread's share; that of `thread + 1` is its end.
  int64_t share_begin(int thread) const {
    return task_begin(ThreadPool::share_begin(num_tasks(), thread, num_threads_));
  }
  // Where a tile lies; null behind the last one.
  const uint8_t* address(int64_t tile) const;
  Span<const uint8_t> first_bytes(int thread) const override;
  // What `thread` reads when it is through with the tiles before `end`; null if these lie behind
  // its share or nothing is known of the `next` run. At the end of its share it will ask for the
  // next one while it waits.
  const uint8_t* read_after(int64_t end, int thread, const NextRead* next,
                            ThreadPool* threads) const;

 private:
  void choose_chunk(int64_t chunk);

  std::array<const PackedMatrix*, 3> matrices_{};
  int num_threads_;
  int64_t num_tiles_ = 0, chunk_ = 1;
};

// out = activations * matrix^T for each target; all targets have the same number of inputs. `next`
// is the run after this one, if it is known.
void run_linear(Span<const LinearTarget> targets, const ActivationRows& input, int num_rows,
                ThreadPool* threads, const NextRead* next = nullptr);

// The gate and up products, activated and quantised into `out` as its quantize() would: the
// products themselves never leave the cache. All rows of `input` are in blocks, or none.
void run_gated(const PackedMatrix& gate, const PackedMatrix& up,
               void (*activate)(const float*, const float*, int64_t, float*),
               const ActivationRows& input, int num_rows, ThreadPool* threads,
               ActivationRows* out, const NextRead* next = nullptr);
// What `thread` reads first in `next`. The first `asked` bytes are the caller's to ask for, the
// thread asks for the rest while it waits.
Span<const uint8_t> read_while_waiting(const NextRead& next, int thread, int64_t asked,
                                       ThreadPool* threads);
// The tiles of `gate` as run_gated shares them out.
TileRun gated_run(const PackedMatrix& gate, const ThreadPool& threads);

int64_t num_gated_passes(bool in_blocks);  // calls of run_gated so far; for tests

// One target's tiles [tile_begin, tile_end) on the calling thread, which reads `next` after them.
void run_tiles(const LinearTarget& target, const ActivationRows& input, int num_rows,
               int64_t tile_begin, int64_t tile_end, const uint8_t* next = nullptr);

}  // namespace flarecore
