// What attention on the AMX unit works on: a band of pairs, chunks of K and V. After math.inc.
#pragma once

#include "cpu/kernels.h"
#include "cpu/tile_work_amx.h"

namespace flarecore {
namespace {

constexpr int kChunkBlocks = 2;  // whose softmax is one
constexpr int kChunkTokens = kChunkBlocks * kBlockTokens;
constexpr int kBlockCols = kBlockTokens / kTileCols;  // right tiles of a block's tokens
static_assert(kChunkBlocks * kBlockCols <= kMaxSums, "one product gives a chunk's scores");

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
  int dim_cols() const { return (args->head_dim + kTileCols - 1) / kTileCols; }
  // What a tile's pairs sum up, up to kMaxSums columns from `col` on.
  TileSums values(int tile, int col) {
    const int left = dim_cols() - col;
    return {acc + tile * kTileRows * acc_stride + col * kTileCols, acc_stride,
            left < kMaxSums ? left : kMaxSums, true};
  }
};

// The chunks of which a pair of a band sees something, in ascending order.
class Chunk {
 public:
  explicit Chunk(PairBand* band) : args_(*band->args), band_(band), next_(args_.block_begin) {}

  // Goes on to the next chunk; false if there is none. Sets what of it each pair sees, which
  // softening of the chunk before must not need any more.
  bool find() {
    for (; next_ < args_.block_end; next_ += kChunkBlocks) {
      const int first_token = next_ * kBlockTokens;
      int begin = kChunkTokens, end = 0;
      for (int i = 0; i < band_->count; ++i) {
        const int from = args_.first_visible[band_->row(i)] - first_token;
        const int to = args_.end_visible[band_->row(i)] - first_token;
        band_->begin[i] = from > 0 ? from : 0;
        band_->end[i] = to < kChunkTokens ? to : kChunkTokens;
        if (band_->begin[i] >= band_->end[i]) continue;
        begin = band_->begin[i] < begin ? band_->begin[i] : begin;
        end = band_->end[i] > end ? band_->end[i] : end;
      }
      if (begin >= end) continue;
      first_block_ = begin / kBlockTokens;
      num_blocks_ = (end + kBlockTokens - 1) / kBlockTokens - first_block_;
      block_ = next_ + first_block_;
      next_ += kChunkBlocks;
      return true;
    }
    return false;
  }

  // What is seen of the chunk: its block first_block() and the ones after it.
  int first_block() const { return first_block_; }
  int num_blocks() const { return num_blocks_; }
  const uint16_t* keys(int i) const { return of(args_.k_blocks[block_ + i]); }
  const uint16_t* values(int i) const { return of(args_.v_blocks[block_ + i]); }
  const uint16_t* keys_ahead(int i) const { return of(block_ahead(args_, block_ + i, false)); }
  const uint16_t* values_ahead(int i) const { return of(block_ahead(args_, block_ + i, true)); }
  TileSums scores(int tile) const {
    return {band_->scores[tile * kTileRows] + first_block_ * kBlockTokens, kChunkTokens,
            num_blocks_ * kBlockCols, false};
  }

 private:
  static const uint16_t* of(const void* p) { return static_cast<const uint16_t*>(p); }

  const AttentionArgs& args_;
  PairBand* band_;
  int next_;             // block where the next chunk begins
  int block_ = 0;        // the first one that is seen
  int first_block_ = 0;  // the same within the chunk
  int num_blocks_ = 0;
};

constexpr int kRowsPerPart = 4;  // of vector work while a part of the tile work goes along

// K and V of a chunk, or the units that a band of one tile is working on.
struct ChunkTiles {
  SplitTile keys[kMaxDimSteps][kMaxSums];          // [dim step][token column]
  SplitTile values[kChunkBlocks * kMaxDimCols];  // [block][dim column], as many as the head has
};

// As many pairs of a call from `first` on as a band has: their queries as left tiles, and nothing
// seen yet. The rows of a tile without a pair are zeros.
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

}  // namespace
}  // namespace flarecore
