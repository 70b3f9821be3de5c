// What attention on the AMX unit works on: a band of pairs, K and V as tiles.
#pragma once

#include "cpu/fetch_lines.h"
#include "cpu/kernels.h"
#include "cpu/tile_work_amx.h"

namespace flarecore {
namespace {

constexpr int kChunkBlocks = 2;  // whose softmax is one
constexpr int kChunkTokens = kChunkBlocks * kBlockTokens;
constexpr int kBlockCols = kBlockTokens / kTileCols;  // right tiles of a block's tokens
static_assert(kChunkBlocks * kBlockCols <= kMaxSums, "one product gives a chunk's scores");

constexpr int kMaxHeadDim = 512;
constexpr int kMaxDimSteps = kMaxHeadDim / kTileDepth;
constexpr int kMaxDimCols = kMaxHeadDim / kTileCols;
constexpr int kMaxBandTiles = 8;
// Tiles of queries of a band: 8 of 16 pairs for heads of up to 256 numbers, 4 for larger ones.
constexpr int kBandSteps = 64;

// Some pairs of a call, worked on together so that K and V become tiles once for them.
struct PairBand {
  const AttentionArgs* args;
  int first, count;    // pairs
  int dim_steps;       // of 32 numbers of a head
  int64_t acc_stride;  // floats of a pair in acc
  SplitTile q[kBandSteps];                                 // (tile, dim_steps)
  alignas(64) float acc[kBandSteps * kTileRows * kTileDepth];  // (pair, acc_stride): sum of p * v
  alignas(64) float scores[kMaxBandTiles * kTileRows][kChunkTokens];
  SplitTile p[kMaxBandTiles][kChunkBlocks];
  // Of each pair: largest score so far, before scaling; sum of exp; visible tokens of the chunk.
  alignas(64) float max[kMaxBandTiles * kTileRows], sum[kMaxBandTiles * kTileRows];
  int begin[kMaxBandTiles * kTileRows], end[kMaxBandTiles * kTileRows];

  int num_tiles() const { return (count + kTileRows - 1) / kTileRows; }
  // Rows of the tiles: a single tile has no more than the pairs.
  int num_rows() const { return count < kTileRows ? count : num_tiles() * kTileRows; }
  // Pairs of a tile.
  int pairs_of(int tile) const {
    const int left = count - tile * kTileRows;
    return left < kTileRows ? left : kTileRows;
  }
  int row(int pair) const { return (first + pair) / args->num_group_heads; }
};

// K and V of a chunk.
struct ChunkTiles {
  SplitTile keys[kMaxDimSteps][kMaxSums];          // [dim step][token column]
  SplitTile values[kChunkBlocks * kMaxDimCols];  // [block][dim column], as many as the head has
};

// As many pairs of a call from `first` on as a band has: their queries as left tiles, and nothing seen
// yet. The rows of a tile without a pair are zeros.
inline void begin_band(const AttentionArgs& args, int first, int num_pairs, PairBand* band) {
  band->args = &args;
  band->first = first;
  band->dim_steps = (args.head_dim + kTileDepth - 1) / kTileDepth;
  band->acc_stride = int64_t{band->dim_steps} * kTileDepth;
  const int fitting = kBandSteps / band->dim_steps;
  const int most = (fitting < kMaxBandTiles ? fitting : kMaxBandTiles) * kTileRows;
  band->count = num_pairs - first < most ? num_pairs - first : most;
  for (int i = 0; i < band->num_rows(); ++i) {
    const int head = (band->first + i) % args.num_group_heads;
    const float* q = args.q + band->row(i) * args.q_row_stride + head * args.head_dim;
    for (int step = 0; step < band->dim_steps; ++step) {
      const int left = i < band->count ? args.head_dim - step * kTileDepth : 0;
      const float* from = q + step * kTileDepth;
      SplitTile& tile = band->q[i / kTileRows * band->dim_steps + step];
      split_row(load_first(from, left, 0.0f), load_first(from + kLanes, left - kLanes, 0.0f),
                tile.high[i % kTileRows], tile.low[i % kTileRows]);
      float* acc = band->acc + i * band->acc_stride + step * kTileDepth;
      store(acc, set1(0.0f));
      store(acc + kLanes, set1(0.0f));
    }
    band->max[i] = kMinusInfinity;
    band->sum[i] = 0.0f;
  }
}

constexpr int kRowsPerPart = 4;  // of tiles converted while a part of the tile work goes along

// One step of K: rows of `tiles` from 32 dimensions at k, `count` of them if not Whole.
template <bool Whole>
FLARECORE_INLINE void convert_key_step(const uint16_t* k, const uint16_t* next, int count,
                                       SplitTile* tiles, TileWork* work) {
  const auto is_there = [&](int dim) __attribute__((always_inline)) {
    return Whole || dim < count;
  };
  const auto number = [&](int dim, int col) __attribute__((always_inline)) {
    return is_there(dim) ? load_half(k + dim * kBlockTokens + col * kTileCols) : set1(0.0f);
  };
  for (int row = 0; row < kTileRows; row += kRowsPerPart) {
    work->advance();
    unrolled<kRowsPerPart>([&](auto i) __attribute__((always_inline)) {
      const int dim = row + i, other = dim + kHalfDepth;
      if (is_there(dim)) fetch_lines<64>(next + dim * kBlockTokens);
      if (is_there(other)) fetch_lines<64>(next + other * kBlockTokens);
      unrolled<kBlockCols>([&](auto col) __attribute__((always_inline)) {
        split_column_row(number(dim, col), number(other, col), tiles[col].high[dim],
                         tiles[col].low[dim]);
      });
    });
  }
}

// K (head_dim, 32) of a block becomes right tiles [dim step][token column], steps kMaxSums apart.
inline void convert_keys(const uint16_t* k, const uint16_t* next, int head_dim, SplitTile* tiles,
                         TileWork* work) {
  for (int dim = 0; dim < head_dim; dim += kTileDepth, tiles += kMaxSums) {
    const int at = dim * kBlockTokens;
    if (head_dim - dim >= kTileDepth) {
      convert_key_step<true>(k + at, next + at, kTileDepth, tiles, work);
    } else {
      convert_key_step<false>(k + at, next + at, head_dim - dim, tiles, work);
    }
  }
}

// A row of one tile from `count` numbers of V (32, head_dim) at v. What is no finite number becomes 0
// if asked.
template <bool Whole, bool OnlyFinite>
FLARECORE_INLINE Mask convert_value_row(const uint16_t* v, int64_t head_dim, int count,
                                        uint16_t* high, uint16_t* low) {
  const auto number = [&](const uint16_t* p) __attribute__((always_inline)) {
    const Vec x = Whole ? load_half(p) : load_half_first(p, count);
    if (!OnlyFinite) return x;
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, sub(x, x), _CMP_ORD_Q), x);
  };
  return split_column_row(number(v), number(v + kHalfDepth * head_dim), high, low);
}

template <bool OnlyFinite>
FLARECORE_INLINE bool convert_value_rows(const uint16_t* v, const uint16_t* next, int head_dim,
                                         SplitTile* tiles, TileWork* work) {
  const int64_t stride = head_dim;
  Mask odd_ones = 0;
  for (int row = 0; row < kTileRows; ++row, v += stride, next += stride) {
    if (row % kRowsPerPart == 0) work->advance();
    SplitTile* tile = tiles;
    int dim = 0;
    for (; dim + kTileDepth <= head_dim; dim += kTileDepth, tile += 2) {
      fetch_lines<64>(next + dim);
      fetch_lines<64>(next + kHalfDepth * stride + dim);
      unrolled<2>([&](auto i) __attribute__((always_inline)) {
        odd_ones |= convert_value_row<true, OnlyFinite>(v + dim + i * kTileCols, stride, kTileCols,
                                                        tile[i].high[row], tile[i].low[row]);
      });
    }
    for (; dim < head_dim; dim += kTileCols, ++tile) {
      odd_ones |= convert_value_row<false, OnlyFinite>(v + dim, stride, head_dim - dim,
                                                       tile->high[row], tile->low[row]);
    }
  }
  return odd_ones != 0;
}

// V (32, head_dim) of a block becomes right tiles, one for each 16 dimensions. What is no finite
// number becomes 0: a token that nobody sees may hold anything and is multiplied by 0, and NaN of
// one that some rows see must not reach the others. Those rows have it from the token's key.
inline void convert_values(const uint16_t* v, const uint16_t* next, int head_dim, SplitTile* tiles,
                           TileWork* work) {
  if (convert_value_rows<false>(v, next, head_dim, tiles, work)) {
    convert_value_rows<true>(v, next, head_dim, tiles, work);
  }
}

}  // namespace
}  // namespace flarecore
