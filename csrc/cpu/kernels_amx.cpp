// The AMX level: the AVX-512 kernels, products of many rows by tiles with the same bits, and attention
// by tiles with bits of its own where it is asked for.
#include "cpu/kernel_tables.h"

#ifdef __AMX_BF16__

#include "cpu/simd_avx512.h"

#include "cpu/blocks_amx.h"
#include "cpu/tile_use_amx.h"

#include "cpu/matmul_panel.inc"

#include "cpu/matmul_tiles_amx.inc"

namespace flarecore {
namespace {

int64_t num_products = 0;  // a builtin counts: no code of <atomic> may get this file's level

void count_product() { __atomic_fetch_add(&num_products, 1, __ATOMIC_RELAXED); }

bool multiplies_blocks(WeightFormat format) {
  return is_quantized(format) && format != WeightFormat::kQ6_K;
}

void quantize_block(const float* x, int64_t x_stride, int num_rows, int64_t n, uint8_t* cells) {
  auto* cell = reinterpret_cast<BlockCell*>(cells);
  for (int64_t i = 0; i < n; i += kGroupSize) {
    quantize_cell(x + i, x_stride, num_rows, cell++);
  }
}

void run_product(const AmxJob& job, ChunkOutputs* out) {
  switch (job.w->format) {
    case WeightFormat::kQ4_0: return amx_product<WeightFormat::kQ4_0>(job, out);
    case WeightFormat::kQ4_1: return amx_product<WeightFormat::kQ4_1>(job, out);
    case WeightFormat::kQ4_K: return amx_product<WeightFormat::kQ4_K>(job, out);
    case WeightFormat::kQ5_0: return amx_product<WeightFormat::kQ5_0>(job, out);
    case WeightFormat::kQ5_1: return amx_product<WeightFormat::kQ5_1>(job, out);
    case WeightFormat::kQ5_K: return amx_product<WeightFormat::kQ5_K>(job, out);
    case WeightFormat::kQ8_0: return amx_product<WeightFormat::kQ8_0>(job, out);
    default: return;  // none of this kernel's
  }
}

// body(first row, rows, first block) for the chunks of x.
template <typename Body>
void for_chunks(const BlockedRows& x, Body body) {
  for (int row = 0; row < x.num_rows; row += kChunkRows) {
    const int left = x.num_rows - row;
    body(row, left < kChunkRows ? left : kChunkRows,
         reinterpret_cast<const BlockCell*>(x.cells) + row / kAmxRows * x.num_groups);
  }
}

int blocks_of(int num_rows) { return (num_rows + kAmxRows - 1) / kAmxRows; }

// The first `channels` (up to 32) of each row's outputs.
void store_outputs(const ChunkOutputs& out, int num_rows, int channels, float* y,
                   int64_t y_stride, bool adds) {
  const Mask first = lanes_below(channels), second = lanes_below(channels - kLanes);
  for (int r = 0; r < num_rows; ++r, y += y_stride) {
    const float (*from)[kLanes] = out.y[r / kAmxRows][r % kAmxRows];
    Vec a = load(from[0]), b = load(from[1]);
    if (adds) {
      a = add(_mm512_maskz_loadu_ps(first, y), a);
      b = add(_mm512_maskz_loadu_ps(second, y + kLanes), b);
    }
    _mm512_mask_storeu_ps(y, first, a);
    _mm512_mask_storeu_ps(y + kLanes, second, b);
  }
}

void matmul_blocks(const PackedView& w, const BlockedRows& x, int64_t tile_begin, int64_t tile_end,
                   float* y, int64_t y_stride, bool adds) {
  count_product();
  const TileUse use;
  ChunkOutputs out;
  for_chunks(x, [&](int row, int num_rows, const BlockCell* cells) {
    for (int64_t tile = tile_begin; tile < tile_end; tile += kPanelTiles) {
      const int64_t second = tile + 1 < tile_end ? tile + 1 : tile;
      float* to = y + row * y_stride + tile * kLanes;
      run_product({&w, {tile, second}, cells, x.num_groups, blocks_of(num_rows), to, y_stride},
                  &out);
      const int64_t end = (second + 1) * kLanes < w.num_rows ? (second + 1) * kLanes : w.num_rows;
      store_outputs(out, num_rows, static_cast<int>(end - tile * kLanes), to, y_stride, adds);
    }
  });
}

void gated_blocks(const GatedBlocks& product, int64_t group_begin, int64_t group_end) {
  count_product();
  const TileUse use;
  ChunkOutputs gate, up;
  for_chunks(product.x, [&](int row, int num_rows, const BlockCell* cells) {
    const int blocks = blocks_of(num_rows);
    auto* to = reinterpret_cast<BlockCell*>(product.out) + row / kAmxRows * product.out_stride;
    for (int64_t group = group_begin; group < group_end; ++group) {
      const int64_t tile = group * kPanelTiles;
      run_product({&product.gate, {tile, tile + 1}, cells, product.x.num_groups, blocks, nullptr,
                   0}, &gate);
      run_product({&product.up, {tile, tile + 1}, cells, product.x.num_groups, blocks, nullptr, 0},
                  &up);
      for (int block = 0; block < blocks; ++block) {
        float* y = gate.y[block][0][0];
        product.activate(y, up.y[block][0][0], kAmxRows * kGroupSize, y);
        const int left = num_rows - block * kAmxRows;
        quantize_cell(y, kGroupSize, left < kAmxRows ? left : kAmxRows,
                      to + block * product.out_stride + group);
      }
    }
  });
}

void attention(const AttentionArgs& args) {
  if (args.in_tiles && args.kv_format == KvFormat::kFloat16) return attention_amx(args);
  kernel_table_avx512().attention(args);
}

}  // namespace

int64_t num_amx_products() { return __atomic_load_n(&num_products, __ATOMIC_RELAXED); }

const KernelTable* kernel_table_amx() {
  static const KernelTable table = [] {
    KernelTable t = kernel_table_avx512();
    t.name = "amx";
    t.block_rows = kAmxRows;
    t.block_cell_bytes = sizeof(BlockCell);
    t.multiplies_blocks = multiplies_blocks;
    t.quantize_block = quantize_block;
    t.matmul_blocks = matmul_blocks;
    t.gated_blocks = gated_blocks;
    t.attention = attention;
    t.kv_format = KvFormat::kFloat16;  // what becomes tiles
    t.attention_scratch_bytes = attention_amx_scratch_bytes();
    return t;
  }();
  return &table;
}

}  // namespace flarecore

#else  // the compiler lacks the level

namespace flarecore {

const KernelTable* kernel_table_amx() { return nullptr; }
int64_t num_amx_products() { return 0; }
int64_t num_amx_bands(bool) { return 0; }

}  // namespace flarecore

#endif
