// A weight matrix in the kernels' run-time format.
#pragma once

#include <cstdint>
#include <memory>

#include "common/thread_pool.h"
#include "cpu/kernels.h"
#include "model/ggml_types.h"
#include "model/quantize.h"

namespace flarecore {

// A tensor as it lies in a file: row-major, rows = output channels.
struct TensorView {
  GgmlType type;
  const uint8_t* data;
  int64_t num_rows, num_cols;
};

enum class PackMode {
  kFloat32,    // every value dequantised to float32
  kQuantized,  // each type keeps its lossless run-time format; F32, F16, BF16 stay what they are
};

// Owns the packed weights, 64-byte aligned. Copies share them. Packing loses nothing, unless it is
// told to quantise.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  // `tile` is KernelTable::tile of the level that will read the matrix; `pool` may be null.
  // Raises ModelFileError if num_cols is not a whole number of the type's blocks or a side is < 1.
  static PackedMatrix pack(const TensorView& source, PackMode mode, int tile, ThreadPool* pool);

  // The same with values of F32, F16 or BF16 quantised first: `mode` kQuantized keeps them in that
  // format, kFloat32 holds the float32 values that it stands for. num_cols is a multiple of 32.
  // `error` gets what that changed, summed row by row, whatever the tile and the threads. A row
  // with a value that no group can hold is left as zeros; the first one is in error->first_bad_row.
  static PackedMatrix pack_quantizing(const TensorView& source, Quantize quantize, PackMode mode,
                                      const KernelTable& kernels, ThreadPool* pool,
                                      QuantizationError* error);

  PackedView view() const { return view_; }
  int64_t num_rows() const { return view_.num_rows; }
  int64_t num_cols() const { return view_.num_cols; }
  int64_t num_tiles() const { return (view_.num_rows + view_.tile - 1) / view_.tile; }
  int64_t size_bytes() const { return num_tiles() * view_.tile_size_bytes; }

  // Row `row` in [0, num_rows) as float32 (num_cols): exactly the values that were packed.
  void dequantize_row(int64_t row, float* out) const;

  // The same row of a quantised matrix as it is stored, without the interleaving: codes (num_cols)
  // as the kernels read them, scales and supers with the fields of each group (of each 256 inputs)
  // side by side.
  void export_row(int64_t row, int8_t* codes, uint8_t* scales, uint8_t* supers) const;

 private:
  void allocate(const TensorView& source, WeightFormat format, int tile);
  template <typename F>
  void for_tiles(ThreadPool* pool, F&& pack_tile);

  std::shared_ptr<uint8_t> memory_;
  PackedView view_{WeightFormat::kF32, 0, 0, 1, nullptr, 0};
};

}  // namespace flarecore
