// Blocks of K and V become tiles of the AMX unit.
#pragma once

#include "cpu/attention_band_amx.h"
#include "cpu/fetch_lines.h"

namespace flarecore {
namespace {

// Numbers of a column that the rows of a part come from: so many are asked for meanwhile, in one
// piece, which comes sooner than the lines at the places that are read.
constexpr int kPartDepth = 2 * kRowsPerPart;

// One step of K: rows of `tiles` from 32 dimensions at k, `count` of them if not Whole. Work is
// what goes along: TileWork or NoTileWork.
template <bool Whole, typename Work>
FLARECORE_INLINE void convert_key_step(const uint16_t* k, const uint16_t* next, int count,
                                       SplitTile* tiles, Work* work) {
  const auto is_there = [&](int dim) __attribute__((always_inline)) {
    return Whole || dim < count;
  };
  const auto number = [&](int dim, int col) __attribute__((always_inline)) {
    return is_there(dim) ? load_half(k + dim * kBlockTokens + col * kTileCols) : set1(0.0f);
  };
  for (int row = 0; row < kTileRows; row += kRowsPerPart) {
    work->advance();
    if (is_there(2 * row)) fetch_lines<kPartDepth * kBlockTokens * sizeof(uint16_t)>(next);
    next += kPartDepth * kBlockTokens;
    unrolled<kRowsPerPart>([&](auto i) __attribute__((always_inline)) {
      const int dim = row + i, other = dim + kHalfDepth;
      unrolled<kBlockCols>([&](auto col) __attribute__((always_inline)) {
        split_column_row(number(dim, col), number(other, col), tiles[col].high[dim],
                         tiles[col].low[dim]);
      });
    });
  }
}

// K (head_dim, 32) of a block becomes right tiles [dim step][token column], steps kMaxSums apart.
template <typename Work>
inline void convert_keys(const uint16_t* k, const uint16_t* next, int head_dim, SplitTile* tiles,
                         Work* work) {
  for (int dim = 0; dim < head_dim; dim += kTileDepth, tiles += kMaxSums) {
    const int at = dim * kBlockTokens;
    if (head_dim - dim >= kTileDepth) {
      convert_key_step<true>(k + at, next + at, kTileDepth, tiles, work);
    } else {
      convert_key_step<false>(k + at, next + at, head_dim - dim, tiles, work);
    }
  }
}

// A row of one tile from `count` numbers of V (32, stride) at v. What is no finite number becomes
// 0 if asked.
template <bool Whole, bool OnlyFinite>
FLARECORE_INLINE Mask convert_value_row(const uint16_t* v, int64_t stride, int count,
                                        uint16_t* high, uint16_t* low) {
  const auto number = [&](const uint16_t* p) __attribute__((always_inline)) {
    const Vec x = Whole ? load_half(p) : load_half_first(p, count);
    if (!OnlyFinite) return x;
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, sub(x, x), _CMP_ORD_Q), x);
  };
  return split_column_row(number(v), number(v + kHalfDepth * stride), high, low);
}

template <bool OnlyFinite, typename Work>
FLARECORE_INLINE bool convert_value_rows(const uint16_t* v, const uint16_t* next, int64_t stride,
                                         int num_dims, SplitTile* tiles, Work* work) {
  Mask odd_ones = 0;
  for (int row = 0; row < kTileRows; ++row, v += stride) {
    if (row % kRowsPerPart == 0) {
      work->advance();
      constexpr int kLineNumbers = 64 / sizeof(uint16_t);
      for (int i = 0; i < kPartDepth * num_dims; i += kLineNumbers) fetch_lines<64>(next + i);
      next += kPartDepth * num_dims;
    }
    SplitTile* tile = tiles;
    int dim = 0;
    for (; dim + kTileDepth <= num_dims; dim += kTileDepth, tile += 2) {
      unrolled<2>([&](auto i) __attribute__((always_inline)) {
        odd_ones |= convert_value_row<true, OnlyFinite>(v + dim + i * kTileCols, stride, kTileCols,
                                                        tile[i].high[row], tile[i].low[row]);
      });
    }
    for (; dim < num_dims; dim += kTileCols, ++tile) {
      odd_ones |= convert_value_row<false, OnlyFinite>(v + dim, stride, num_dims - dim,
                                                       tile->high[row], tile->low[row]);
    }
  }
  return odd_ones != 0;
}

// num_dims columns of V (32, head_dim) of a block become right tiles, one for each 16, and as many
// numbers at `next` are asked for. What is no finite number becomes 0: a token that nobody sees may
// hold anything and is multiplied by 0, and NaN of one that some rows see must not reach the
// others. Those rows have it from the token's key.
template <typename Work>
inline void convert_values(const uint16_t* v, const uint16_t* next, int head_dim, int num_dims,
                           SplitTile* tiles, Work* work) {
  if (convert_value_rows<false>(v, next, head_dim, num_dims, tiles, work)) {
    convert_value_rows<true>(v, next, head_dim, num_dims, tiles, work);
  }
}

}  // namespace
}  // namespace flarecore
