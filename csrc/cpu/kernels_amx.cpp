// The AMX level: the AVX-512 kernels, with tile products for many rows and the same bits.
#include "cpu/kernel_tables.h"

#ifdef __AMX_INT8__

#include "cpu/simd_avx512.h"

#include "cpu/dot_avx512.h"

#include "cpu/matmul_panel.inc"

#include "cpu/matmul_tiles_amx.inc"

namespace flarecore {
namespace {

constexpr int kAmxMinRows = 8;  // with fewer, the AVX-512 kernels do not wait for arithmetic either

template <WeightFormat F>
void amx_tiles(const QuantizedJob& job, int num_rows, int64_t tile_begin, int64_t tile_end) {
  // Rows whose activations stay in L2 while the tiles pass by.
  constexpr int64_t kCacheBytes = 512 * 1024;
  const int64_t row_bytes = job.w->num_cols / kGroupSize * sizeof(QuantizedGroup);
  const int64_t fitting = kCacheBytes / row_bytes / kAmxRows * kAmxRows;
  const int step = static_cast<int>(fitting > kAmxRows ? fitting : kAmxRows);
  TileUse use;
  for (int row = 0; row < num_rows; row += step) {
    const int count = num_rows - row < step ? num_rows - row : step;
    for (int64_t tile = tile_begin; tile < tile_end; tile += kPanelTiles) {
      amx_panel_tiles<F>(job, row, count, tile, &use);
    }
  }
}

void amx_run(const QuantizedJob& job, int num_rows, int64_t tile_begin, int64_t tile_end) {
  const auto run = [&](auto tiles) { tiles(job, num_rows, tile_begin, tile_end); };
  switch (job.w->format) {
    case WeightFormat::kQ4_0: return run(amx_tiles<WeightFormat::kQ4_0>);
    case WeightFormat::kQ4_1: return run(amx_tiles<WeightFormat::kQ4_1>);
    case WeightFormat::kQ4_K: return run(amx_tiles<WeightFormat::kQ4_K>);
    case WeightFormat::kQ5_0: return run(amx_tiles<WeightFormat::kQ5_0>);
    case WeightFormat::kQ5_1: return run(amx_tiles<WeightFormat::kQ5_1>);
    case WeightFormat::kQ5_K: return run(amx_tiles<WeightFormat::kQ5_K>);
    case WeightFormat::kQ8_0: return run(amx_tiles<WeightFormat::kQ8_0>);
    case WeightFormat::kQ6_K: return run(amx_tiles<WeightFormat::kQ6_K>);
    default: return;  // float formats are not for this kernel
  }
}

void matmul_quantized(const PackedView& w, const QuantizedGroup* x, int64_t x_stride, int num_rows,
                      int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride) {
  // Pairs of whole tiles; the AVX-512 kernels do the rest.
  const int64_t whole_tiles = w.num_rows / kLanes;
  const int64_t last = tile_end < whole_tiles ? tile_end : whole_tiles;
  const int64_t pairs = num_rows >= kAmxMinRows && last > tile_begin
                            ? (last - tile_begin) / kPanelTiles
                            : 0;
  const int64_t split = tile_begin + pairs * kPanelTiles;
  if (pairs > 0) amx_run({&w, x, x_stride, y, y_stride}, num_rows, tile_begin, split);
  if (split < tile_end) {
    kernel_table_avx512().matmul_quantized(w, x, x_stride, num_rows, split, tile_end, y, y_stride);
  }
}

}  // namespace

const KernelTable* kernel_table_amx() {
  static const KernelTable table = [] {
    KernelTable t = kernel_table_avx512();
    t.name = "amx";
    t.matmul_quantized = matmul_quantized;
    return t;
  }();
  return &table;
}

}  // namespace flarecore

#else  // the compiler lacks the level

namespace flarecore {

const KernelTable* kernel_table_amx() { return nullptr; }

}  // namespace flarecore

#endif
