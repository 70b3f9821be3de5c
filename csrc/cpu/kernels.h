// CPU kernels: the contracts. Pointers and sizes only; a kernel allocates nothing and throws nothing.
//
// Every kernel exists once per ISA level (generic, avx2, avx512), compiled from one source per
// family with that level's flags; cpu_isa.h picks the level once. Bit-identity (design, guarantee 1):
// each output row has one fixed order of accumulation per level, whatever rows, tiles or threads go
// along with it. Scalars are float32 unless said otherwise, matrices row-major.
#pragma once

#include <cstdint>

#include "common/types.h"

namespace flarecore {

// How the values of a packed weight matrix are stored (model/packed_matrix.h makes them).
// `tile` output channels lie together: value k of all channels of a tile before value k + 1 (float
// formats), or interleaved four inputs at a time (quantised formats); the last tile is padded with 0.
enum class WeightFormat : uint8_t {
  kF32,   // (tile, K) float32, stored [K][tile]
  kF16,   // the same in float16
  kBF16,  // the same in bfloat16
  kQ4,    // unsigned 4-bit, value = q * scale + min, scale and min per group of 32
  kQ5,    // unsigned 5-bit, the same
  kQ8,    // signed 8-bit, value = q * scale, scale per group of 32
  kQ6,    // signed 6-bit widened to 8, value = q * scale, scale per group of 16
};

// Borrowed view of a packed matrix W (num_rows = output channels, num_cols = inputs K).
struct PackedView {
  WeightFormat format;
  bool wide_scales;         // scales and minima are float32 (k-quants), not float16
  int64_t num_rows;         // output channels, before padding
  int64_t num_cols;         // inputs; a multiple of 32 for the quantised formats
  int tile;                 // output channels per tile: KernelTable::tile of the level that packed it
  const uint8_t* data;      // 64-byte aligned
  int64_t tile_size_bytes;  // distance between two tiles
};

// Activations quantised per row and group of 32 (num_rows, K): x = q * scale.
struct QuantizedRows {
  const int8_t* q;       // (num_rows, K), values in [-127, 127]
  const float* scale;    // (num_rows, K / 32)
  const int32_t* sum;    // (num_rows, K / 32) sum of q over the group
  int64_t num_cols;      // K
};

// Attention of up to kMaxAttentionRows query rows of one sequence that share one KV head, over the
// KV blocks [block_begin, block_end). Row i sees the token positions [first_visible[i],
// end_visible[i]); both are absolute, end_visible is at most block_end * 32 of the written tokens.
// Block layout per KV head: K is (head_dim, 32) with the token index fastest, V is (32, head_dim).
struct AttentionArgs {
  const float* q;                // (num_rows, num_group_heads, head_dim), row stride q_row_stride
  int64_t q_row_stride;          // floats between two query rows
  int num_rows;                  // query rows, at most kMaxAttentionRows
  int num_group_heads;           // query heads that share the KV head
  int head_dim;                  // a multiple of 8, at most 512
  float scale;                   // multiplies q.k
  bool kv_float16;               // element type of k_blocks / v_blocks: float16, else float32
  const void* const* k_blocks;   // [block index] -> K of this head in that block
  const void* const* v_blocks;   // [block index] -> V of this head in that block
  int block_begin, block_end;    // block indices
  const int32_t* first_visible;  // (num_rows)
  const int32_t* end_visible;    // (num_rows)
  float* out;                    // (num_rows, num_group_heads, head_dim) unnormalised sum of p * v
  float* row_max;                // (num_rows, num_group_heads); -inf where nothing is visible
  float* row_sum;                // (num_rows, num_group_heads) sum of exp(score - row_max)
};
constexpr int kMaxAttentionRows = 8;
constexpr int kMaxGroupHeads = 16;

// What one pass over a run of logits leaves behind; runs are joined in index order by the sampler.
struct LogitStats {
  float max;         // largest logit of the run
  int32_t argmax;    // its first index, relative to the run
  float sum;         // sum of exp(l - max)
  float sum_scaled;  // sum of exp((l - max) * inverse_temperature)
};

struct KernelTable {
  const char* name;  // "generic", "avx2" or "avx512"
  int tile;          // output channels per packed tile

  // y[i] = x[i] * weight[i] / sqrt(mean(x^2) + eps); x and y may be the same. (n)
  void (*rmsnorm)(const float* x, const float* weight, float eps, int64_t n, float* y);
  // y[i] = (x[i] - mean) / sqrt(var + eps) * weight[i] + bias[i]. (n)
  void (*layernorm)(const float* x, const float* weight, const float* bias, float eps, int64_t n,
                    float* y);
  // Quantises one row per group of 32: scale = max|x| / 127, q = x / scale rounded to nearest even
  // (all 0 where the group is 0). n is a multiple of 32; scale and sum are (n / 32).
  void (*quantize_row)(const float* x, int64_t n, int8_t* q, float* scale, int32_t* sum);
  // y = silu(gate) * up, y = gelu_tanh(gate) * up, y = gelu_erf(x). (n), in place allowed
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* y);
  void (*gelu_tanh_mul)(const float* gate, const float* up, int64_t n, float* y);
  void (*gelu_erf)(const float* x, int64_t n, float* y);
  // y += x. (n)
  void (*add)(const float* x, int64_t n, float* y);

  // y[r, c] = sum_k x[r, k] * W[c, k] for the channels of tiles [tile_begin, tile_end), any num_rows
  // >= 1. x is (num_rows, K) with row stride x_stride, y (num_rows, *) with row stride y_stride;
  // padding channels are not written. For kF32, kF16, kBF16.
  void (*matmul_float)(const PackedView& w, const float* x, int64_t x_stride, int num_rows,
                       int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride);
  // The same over quantised activations. For kQ4, kQ5, kQ8, kQ6. Integer sums within a group are
  // exact; groups are added in ascending order in float32.
  void (*matmul_quantized)(const PackedView& w, const QuantizedRows& x, int num_rows,
                           int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride);

  // Softmax numerators over one split of the context (flash style, blocks in ascending order).
  void (*attention)(const AttentionArgs& args);

  // Statistics of one run of logits (n >= 1); -inf entries are allowed.
  void (*logit_stats)(const float* logits, int64_t n, float inverse_temperature, LogitStats* out);

  // float32 -> float16, round to nearest even; what overflows becomes +-65504. (n)
  void (*to_float16)(const float* x, int64_t n, uint16_t* y);
};

}  // namespace flarecore
