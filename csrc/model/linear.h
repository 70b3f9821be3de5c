// Matrix products of a forward pass: activations prepared once, several matrices in one parallel run.
#pragma once

#include <vector>

#include "common/span.h"
#include "common/thread_pool.h"
#include "model/packed_matrix.h"

namespace flarecore {

// Input rows of a product: float32, and int8 with scales where a quantised matrix reads them.
class ActivationRows {
 public:
  void resize(int64_t num_rows, int64_t max_cols);
  float* row(int64_t r) { return values_.data() + r * stride_; }
  int64_t stride() const { return stride_; }

  // Quantises row r (num_cols values) for quantised matrices.
  void quantize(int64_t r, int64_t num_cols);

  const float* values() const { return values_.data(); }
  // (num_rows, stride / 32); row r is valid after quantize(r, …).
  const QuantizedGroup* groups() const { return groups_.data(); }
  int64_t group_stride() const { return stride_ / kGroupSize; }

 private:
  int64_t stride_ = 0;
  std::vector<float> values_;
  std::vector<QuantizedGroup> groups_;
};

struct LinearTarget {
  const PackedMatrix* matrix;
  float* out;  // (num_rows, *) with row stride out_stride
  int64_t out_stride;
};

// out = activations * matrix^T for each target; all targets have the same number of inputs.
void run_linear(Span<const LinearTarget> targets, const ActivationRows& input, int num_rows,
                ThreadPool* threads);

// One target's tiles [tile_begin, tile_end) on the calling thread.
void run_tiles(const LinearTarget& target, const ActivationRows& input, int num_rows,
               int64_t tile_begin, int64_t tile_end);

}  // namespace flarecore
