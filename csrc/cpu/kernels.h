// CPU kernels: the contracts. Pointers and sizes only; a kernel allocates and throws nothing.
//
// Every kernel exists once per ISA level (generic, avx2, avx512, amx), compiled from one source per
// family with that level's flags; cpu_isa.h picks the level once. Bit-identity (design, guarantee
// 1): each output row has one fixed order of accumulation per level, whatever rows, tiles or
// threads go along with it. Scalars are float32 unless said otherwise, matrices row-major.
#pragma once

#include <cstdint>

#include "common/kv_format.h"

namespace flarecore {

// How the values of a packed weight matrix are stored (model/packed_matrix.h makes them): one
// format per tensor type, lossless, interleaved for the kernels (cpu/packed_layout.h).
// `tile` output channels lie together; the last tile is padded with channels of value 0.
enum class WeightFormat : uint8_t {
  kF32,   // (tile, K) float32, stored [K][tile]
  kF16,   // the same in float16
  kBF16,  // the same in bfloat16
  kQ4_0,  // unsigned 4-bit, value = (q - 8) * scale, float16 scale per group of 32
  kQ4_1,  // unsigned 4-bit, value = q * scale + min, float16 scale and min per group
  kQ4_K,  // as kQ4_1, scale = d * s and min = -(dmin * m): float16 d, dmin per 256, 6-bit s, m
  kQ5_0,  // as kQ4_0 with 5 bits, value = (q - 16) * scale
  kQ5_1,  // as kQ4_1 with 5 bits
  kQ5_K,  // as kQ4_K with 5 bits
  kQ8_0,  // signed 8-bit, value = q * scale, float16 scale per group
  kQ6_K,  // unsigned 6-bit, value = (q - 32) * scale per 16 inputs: float16 d per 256, int8 s
};

static inline constexpr bool is_quantized(WeightFormat f) { return f >= WeightFormat::kQ4_0; }

// Borrowed view of a packed matrix W (num_rows = output channels, num_cols = inputs K).
struct PackedView {
  WeightFormat format;
  int64_t num_rows;         // output channels, before padding
  int64_t num_cols;         // inputs; a multiple of 32 (256 for k-quants) if quantised
  int tile;                 // output channels per tile: KernelTable::tile of the packing level
  const uint8_t* data;      // 64-byte aligned
  int64_t tile_size_bytes;  // distance between two tiles, a multiple of 64
};

// How far ahead the products of few rows ask for weights, into L2: one stream that far ahead keeps
// as much in flight as several side by side, and leaves the registers to the rows. In whole tiles,
// so that codes and scales are asked for once each.
constexpr int64_t kReadAheadBytes = 16 * 1024;

// Activations of one row and group of 32 inputs in 8 bits, with what the kernels multiply next: one
// stream a row, so that a block of rows needs few addresses. A quantised matrix of activations is
// (num_rows, K / 32) of these.
struct QuantizedGroup {
  float scale;           // x = (q + shift) * scale
  float sum;             // scale times the sum of q + shift: what a minimum or zero point takes
  float first_half_sum;  // the same over the first 16
  int32_t shift;         // in [-126, 127]: the range of the group, 0 included, need not be even
  int8_t q[kGroupSize];  // in [-127, 127]
};

// Activations of many rows, quantised as quantize_row does, in the order of the level's products
// for many rows: blocks of KernelTable::block_rows rows, a block (num_groups) cells of
// block_cell_bytes. What a cell holds is the level's own affair.
struct BlockedRows {
  const uint8_t* cells;  // 64-byte aligned
  int64_t num_groups;    // cells between two blocks
  int num_rows;
};

// activate(x * gate^T, x * up^T), quantised: the feed-forward block up to its last product.
template <typename Rows, typename Out>
struct GatedProduct {
  PackedView gate, up;  // of one shape, the number of channels a multiple of 32
  void (*activate)(const float* gate, const float* up, int64_t n, float* y);  // silu_mul, ...
  Rows x;
  Out* out;            // groups or cells of the same rows
  int64_t out_stride;  // groups between two rows, cells between two blocks
};

// Activations of few rows, (num_rows, *) with row stride `stride` groups.
struct QuantizedRows {
  const QuantizedGroup* groups;
  int64_t stride;
  int num_rows;
};

using GatedRows = GatedProduct<QuantizedRows, QuantizedGroup>;
using GatedBlocks = GatedProduct<BlockedRows, uint8_t>;

// Blocks between the one worked on and the one asked for, into L2: the pieces of a block are too
// short for the processor to see them coming.
constexpr int kAttentionBlocksAhead = 2;

// Attention of up to kMaxAttentionRows query rows of one sequence that share one KV head, over the
// KV blocks [block_begin, block_end). Row i sees the token positions [first_visible[i],
// end_visible[i]); both are absolute, end_visible is at most block_end * 32 of the written tokens.
// Block layout per KV head: common/kv_format.h.
struct AttentionArgs {
  const float* q;                // (num_rows, num_group_heads, head_dim), row stride q_row_stride
  int64_t q_row_stride;          // floats between two query rows
  int num_rows;                  // query rows, at most kMaxAttentionRows
  int num_group_heads;           // query heads that share the KV head
  int head_dim;                  // a multiple of 8, at most kMaxHeadDim
  float scale;                   // multiplies q.k
  KvFormat kv_format;            // of k_blocks and v_blocks
  const void* const* k_blocks;   // [block index] -> K of this head in that block
  const void* const* v_blocks;   // [block index] -> V of this head in that block
  int block_begin, block_end;    // block indices
  const int32_t* first_visible;  // (num_rows)
  const int32_t* end_visible;    // (num_rows)
  float* out;                    // (num_rows, num_group_heads, head_dim) unnormalised sum of p * v
  float* row_max;                // (num_rows, num_group_heads); -inf where nothing is visible
  float* row_sum;                // (num_rows, num_group_heads) sum of exp(score - row_max)
  // Whether a level that has tile products for float16 blocks takes them. They have bits of their
  // own (within 2^-16 of a sum's terms), so this may depend on the rows' places and on the range
  // only.
  bool in_tiles = false;
  void* scratch = nullptr;  // for tiles: KernelTable::attention_scratch_bytes of the thread's own
  // What the thread reads after the last block, in pieces of a block's K and V in turns; null where
  // nothing is known. It is only asked for.
  const void* ahead[2 * kAttentionBlocksAhead] = {};
  int* num_converted = nullptr;  // counts blocks converted to float32 for many rows; for tests
};
// Whose cache lines to ask for while a block's K or V is read: the block further on or what follows
// the last one; the block itself where nothing is known.
static inline const void* block_ahead(const AttentionArgs& args, int block, bool is_v) {
  const void* const* blocks = is_v ? args.v_blocks : args.k_blocks;
  const int next = block + kAttentionBlocksAhead;
  if (next < args.block_end) return blocks[next];
  const void* other = args.ahead[2 * (next - args.block_end) + is_v];
  return other != nullptr ? other : blocks[block];
}
constexpr int kMaxAttentionRows = 32;
constexpr int kMaxHeadDim = 512;
constexpr int kMaxGroupHeads = 16;

// What one pass over a run of logits leaves behind; runs are joined in index order by the sampler.
struct LogitStats {
  float max;         // largest logit of the run
  int32_t argmax;    // its first index, relative to the run
  float sum;         // sum of exp(l - max)
  float sum_scaled;  // sum of exp((l - max) * inverse_temperature)
};

struct KernelTable {
  const char* name;  // "generic", "avx2", "avx512" or "amx"
  int tile;          // output channels per packed tile

  // y[i] = x[i] * weight[i] / sqrt(mean(x^2) + eps); x and y may be the same. (n)
  void (*rmsnorm)(const float* x, const float* weight, float eps, int64_t n, float* y);
  // y[i] = (x[i] - mean) / sqrt(var + eps) * weight[i] + bias[i]. (n)
  void (*layernorm)(const float* x, const float* weight, const float* bias, float eps, int64_t n,
                    float* y);
  // Quantises one row per group of 32, in kActivationSteps (packed_layout.h) from the lowest to the
  // highest value, 0 included: scale = range / steps, shift = round(lowest / scale) + 127, q =
  // round(x / scale) - shift, to nearest even (all 0 where the range < 1e-35). n is a multiple of
  // 32; out is (n / 32).
  void (*quantize_row)(const float* x, int64_t n, QuantizedGroup* out);
  // quantize_row of rmsnorm, which is never in memory. n is a multiple of 32.
  void (*rmsnorm_quantize)(const float* x, const float* weight, float eps, int64_t n,
                           QuantizedGroup* out);
  // y = silu(gate) * up, y = gelu_tanh(gate) * up, y = gelu_erf(x). (n), in place allowed. Within
  // 2e-6 of the exact value, relative where |x| < 5, else relative to max(|y|, 1e-6).
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* y);
  void (*gelu_tanh_mul)(const float* gate, const float* up, int64_t n, float* y);
  void (*gelu_erf)(const float* x, int64_t n, float* y);
  // y += x. (n)
  void (*add)(const float* x, int64_t n, float* y);

  // Rotates pairs of a head by angles given as cosine and sine (half): pairs (2 i, 2 i + 1), the
  // order that GGUF's Llama weights are permuted for, or pairs (i, i + half).
  void (*rotate_neighbours)(float* head, const float* cosine, const float* sine, int half);
  void (*rotate_halves)(float* head, const float* cosine, const float* sine, int half);

  // y[r, c] = sum_k x[r, k] * W[c, k] for the channels of tiles [tile_begin, tile_end), num_rows
  // >= 1. x is (num_rows, K) with row stride x_stride, y (num_rows, *) with row stride y_stride;
  // padding channels are not written. For kF32, kF16, kBF16. `next` is what the thread will read
  // after the last tile, if known: some of it is asked for already.
  void (*matmul_float)(const PackedView& w, const float* x, int64_t x_stride, int num_rows,
                       int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride,
                       const uint8_t* next);
  // The same over quantised activations, x_stride groups between two rows. For the kQ formats.
  // Integer sums within a group are exact; groups are added in ascending order in float32.
  void (*matmul_quantized)(const PackedView& w, const QuantizedGroup* x, int64_t x_stride,
                           int num_rows, int64_t tile_begin, int64_t tile_end, float* y,
                           int64_t y_stride, const uint8_t* next);

  // The same for many rows: activations in blocks. Every output has the bits of matmul_quantized.
  int block_rows, block_cell_bytes;
  bool (*multiplies_blocks)(WeightFormat format);
  // Quantises the rows of one block, num_rows of them (1 to block_rows). x is (num_rows, n) with
  // row stride x_stride, n a multiple of 32.
  void (*quantize_block)(const float* x, int64_t x_stride, int num_rows, int64_t n,
                         uint8_t* cells);
  // `adds`: y += the product, which is rounded first.
  void (*matmul_blocks)(const PackedView& w, const BlockedRows& x, int64_t tile_begin,
                        int64_t tile_end, float* y, int64_t y_stride, bool adds);
  // Groups of 32 channels [group_begin, group_end), that is of the output's groups.
  void (*gated_blocks)(const GatedBlocks& product, int64_t group_begin, int64_t group_end);
  // The same for few rows; `next` as in matmul_quantized.
  void (*gated_rows)(const GatedRows& product, int64_t group_begin, int64_t group_end,
                     const uint8_t* next);

  // Softmax numerators over one split of the context (flash style, blocks in ascending order).
  void (*attention)(const AttentionArgs& args);
  int64_t attention_scratch_bytes;  // 64-byte aligned, more than a stack should hold; 0: none

  // Statistics of one run of logits (n >= 1); -inf entries are allowed, inverse_temperature is
  // finite and above 0. All -inf: max = -inf, argmax = 0, both sums 0.
  void (*logit_stats)(const float* logits, int64_t n, float inverse_temperature, LogitStats* out);

  // float32 -> float16, round to nearest even; what overflows becomes +-65504. (n)
  void (*to_float16)(const float* x, int64_t n, uint16_t* y);

  // x in 16-bit integers, rounded to nearest even: in 32,700 steps of its norm, or in 8,191 of its
  // largest magnitude. Returns what a step stands for, NaN where something is no finite number. (n),
  // n at most kMaxHeadDim; words has room for kv_row(n).
  float (*words_by_norm)(const float* x, int64_t n, int16_t* words);
  float (*words_by_peak)(const float* x, int64_t n, int16_t* words);
  // What K and V are kept as where they may be rounded: what attention is fastest with.
  KvFormat kv_format;

  // Scale and minimum of the 4-bit codes with the smallest squared error, of nine starts
  // (model/quantize.h), for each group of 32 weights. x is (num_groups, 32), finite; scales >= 0
  // and mins are (num_groups). The same bits on every level.
  void (*search_q4)(const float* x, int64_t num_groups, float* scales, float* mins);

  // Yardsticks of the benchmarks: the sum of n words, read as fast as the level can, and the largest
  // of n >= 1 numbers, none of them NaN.
  uint64_t (*sum_words)(const uint64_t* words, int64_t n);
  float (*max_of)(const float* x, int64_t n);
};

}  // namespace flarecore
