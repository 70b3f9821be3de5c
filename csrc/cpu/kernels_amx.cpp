// The AMX level: the AVX-512 kernels, with tile products for many rows and the same bits.
#include "cpu/kernel_tables.h"

#ifdef __AMX_INT8__

#include "cpu/simd_avx512.h"

#include "cpu/dot_avx512.h"

#include "cpu/matmul_panel.inc"

#include "cpu/matmul_tiles_amx.inc"

namespace flarecore {
namespace {

constexpr int kAmxMinRows = 32;  // with fewer, decoding the weights costs more than is won
int64_t num_products = 0;        // a builtin counts: no code of <atomic> may get this file's level

template <WeightFormat F>
void amx_tiles(const QuantizedJob& job, int num_rows, int64_t tile_begin, int64_t tile_end) {
  const TileUse use;
  for (int row = 0; row < num_rows; row += kChunkRows) {
    const int count = num_rows - row < kChunkRows ? num_rows - row : kChunkRows;
    for (int64_t tile = tile_begin; tile < tile_end; tile += kPanelTiles) {
      amx_panel_tiles<F>(job, row, count, tile);
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
    default: return;  // none of this kernel's
  }
}

void matmul_quantized(const PackedView& w, const QuantizedGroup* x, int64_t x_stride, int num_rows,
                      int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride) {
  // Blocks of 16 rows times pairs of whole tiles; the AVX-512 kernels do the rest.
  const KernelTable& rest = kernel_table_avx512();
  const int64_t whole_tiles = w.num_rows / kLanes;
  const int64_t last = tile_end < whole_tiles ? tile_end : whole_tiles;
  const bool fits = num_rows >= kAmxMinRows && w.format != WeightFormat::kQ6_K;
  const int rows = fits ? num_rows / kAmxRows * kAmxRows : 0;
  int64_t split = tile_begin;
  if (rows > 0 && last > tile_begin) {
    split += (last - tile_begin) / kPanelTiles * kPanelTiles;
  }
  if (split > tile_begin) {
    __atomic_fetch_add(&num_products, 1, __ATOMIC_RELAXED);
    amx_run({&w, x, x_stride, y, y_stride}, rows, tile_begin, split);
    if (rows < num_rows) {
      rest.matmul_quantized(w, x + rows * x_stride, x_stride, num_rows - rows, tile_begin, split,
                            y + rows * y_stride, y_stride);
    }
  }
  if (split < tile_end) {
    rest.matmul_quantized(w, x, x_stride, num_rows, split, tile_end, y, y_stride);
  }
}

}  // namespace

int64_t num_amx_products() { return __atomic_load_n(&num_products, __ATOMIC_RELAXED); }

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
int64_t num_amx_products() { return 0; }

}  // namespace flarecore

#endif
