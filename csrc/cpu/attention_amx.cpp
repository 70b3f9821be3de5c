// Attention over float16 KV blocks on the AMX unit, flash style.
//
// Every pair of a query row and a head sees the same operations in the same order whatever pairs go
// along, one row or many: chunks of kChunkBlocks blocks in ascending order, steps of 32 numbers as
// multiply_cols() says, the vector work lane by lane. What a pair does not see enters as exact
// zeros.
#include "cpu/kernel_tables.h"

#ifdef __AMX_BF16__

#include "cpu/simd_avx512.h"

#include "cpu/math.inc"

#include "cpu/attention_convert_amx.h"
#include "cpu/attention_softmax_amx.h"

namespace flarecore {
namespace {

int64_t num_bands[2] = {};  // of several tiles, in units

// The chunks of a band of several tiles: K and V become tiles once for all of them; scores and
// values of one chunk go along with the vector work of it and the next.
class BandRun {
 public:
  BandRun(PairBand* band, ChunkTiles* tiles) : chunk_(band), band_(band), tiles_(*tiles) {}

  void run() {
    if (!chunk_.find()) return;
    convert_chunk_keys();
    while (true) {
      begin_scores();
      convert_chunk_values();
      for (int tile = 0; tile < band_->num_tiles(); ++tile) {
        if (scores_of_[tile] == 0) continue;
        work_.finish(scores_of_[tile]);
        soften_tile(band_, tile, &work_);
        add_values(tile);
      }
      if (!chunk_.find()) break;
      convert_chunk_keys();
      work_.finish();
    }
    work_.finish();
  }

 private:
  bool sees_chunk(int tile) const {
    for (int i = tile * kTileRows; i < tile * kTileRows + band_->pairs_of(tile); ++i) {
      if (band_->begin[i] < band_->end[i]) return true;
    }
    return false;
  }

  void convert_chunk_keys() {
    for (int i = 0; i < chunk_.num_blocks(); ++i) {
      convert_keys(chunk_.keys(i), chunk_.keys_ahead(i), head_dim(),
                   tiles_.keys[0] + i * kBlockCols, &work_);
    }
  }

  void convert_chunk_values() {
    for (int i = 0; i < chunk_.num_blocks(); ++i) {
      convert_values(chunk_.values(i), chunk_.values_ahead(i), head_dim(), head_dim(),
                     tiles_.values + i * band_->dim_cols(), &work_);
    }
  }

  void begin_scores() {
    for (int tile = 0; tile < band_->num_tiles(); ++tile) {
      scores_of_[tile] = 0;
      if (!sees_chunk(tile)) continue;
      scores_of_[tile] = work_.push({band_->q + tile * band_->dim_steps, tiles_.keys[0],
                                     band_->dim_steps, kMaxSums, chunk_.scores(tile)});
    }
  }

  void add_values(int tile) {
    const int dim_cols = band_->dim_cols();
    for (int col = 0; col < dim_cols; col += kMaxSums) {
      work_.push({band_->p[tile] + chunk_.first_block(), tiles_.values + col, chunk_.num_blocks(),
                  dim_cols, band_->values(tile, col)});
    }
  }

  int head_dim() const { return band_->args->head_dim; }

  Chunk chunk_;
  PairBand* band_;
  TileWork work_;
  int64_t scores_of_[kMaxBandTiles];  // when they are there; 0: nothing is seen
  ChunkTiles& tiles_;
};

// The chunks of a band of one tile: K and V become tiles a unit at a time, which stay in L1 until
// they have been multiplied, one unit later. Conversion, which asks for what comes next, and
// products take turns more often than in BandRun, so that memory is never long without a request.
// The operations of every pair are those of BandRun.
class UnitRun {
 public:
  UnitRun(PairBand* band, ChunkTiles* tiles) : chunk_(band), band_(band), ring_(*tiles) {}

  void run() {
    while (chunk_.find()) {
      score();
      soften_tile(band_, 0, &nothing_);
      for (int col = 0; col < band_->dim_cols(); col += kMaxSums) add_values(col);
    }
  }

 private:
  static constexpr int kUnitCols = 2;
  static constexpr int kRingUnits = 2;
  static_assert(kUnitCols == kBlockCols && 2 * kUnitCols == kMaxSums, "a unit has half the sums");
  static_assert(kRingUnits <= kMaxDimSteps, "the ring lies in what a chunk's keys have");

  // Up to kUnitCols tiles of K or V, the queries or numerators that they are multiplied with, and
  // the sum of the first one; the next sum is the second one's.
  struct Unit {
    const SplitTile* left;
    const SplitTile* right;
    int sum, num_cols;
  };

  SplitTile* next_tiles() { return ring_.keys[num_units_ % kRingUnits]; }

  // Multiplies the unit before this one: what was written of it has left the store buffer
  // meanwhile.
  void push(const Unit& unit) {
    finish_writes(this);
    multiply(waiting_);
    finish_writes(this);  // its place in the ring may be written again
    waiting_ = unit;
    ++num_units_;
  }
  void finish() {
    push({});
    finish_writes(this);
  }

  static void multiply(const Unit& unit) {
    if (unit.num_cols == 0) return;
    _tile_loadd(4, unit.left->low, 64);
    _tile_loadd(5, unit.left->high, 64);
    const auto multiply_from = [&](auto first) __attribute__((always_inline)) {
      if (unit.num_cols == 1) {
        multiply_cols<first, 1>(unit.right);
      } else {
        multiply_cols<first, kUnitCols>(unit.right);
      }
    };
    if (unit.sum == 0) {
      multiply_from(Index<0>{});
    } else {
      multiply_from(Index<kUnitCols>{});
    }
  }

  void score() {
    const int head_dim = band_->args->head_dim;
    const TileSums sums = chunk_.scores(0);
    begin_sums(sums);
    for (int step = 0; step < band_->dim_steps; ++step) {
      const int dim = step * kTileDepth, at = dim * kBlockTokens;
      for (int i = 0; i < chunk_.num_blocks(); ++i) {
        SplitTile* tiles = next_tiles();
        convert_keys(chunk_.keys(i) + at, chunk_.keys_ahead(i) + at,
                     head_dim - dim < kTileDepth ? head_dim - dim : kTileDepth, tiles, &nothing_);
        push({band_->q + step, tiles, i * kBlockCols, kBlockCols});
      }
    }
    finish();
    end_sums(sums);
  }

  // Up to kMaxSums columns from `col` on.
  void add_values(int col) {
    const int head_dim = band_->args->head_dim;
    const TileSums sums = band_->values(0, col);
    finish_writes(this);
    begin_sums(sums);
    for (int i = 0; i < chunk_.num_blocks(); ++i) {
      for (int n = 0; n < sums.num_cols; n += kUnitCols) {
        SplitTile* tiles = next_tiles();
        const int dim = (col + n) * kTileCols, dims_left = head_dim - dim;
        convert_values(chunk_.values(i) + dim, chunk_.values_ahead(i) + dim * kBlockTokens,
                       head_dim, dims_left < kTileDepth ? dims_left : kTileDepth, tiles,
                       &nothing_);
        const int cols_left = sums.num_cols - n;
        push({band_->p[0] + chunk_.first_block() + i, tiles, n,
              cols_left < kUnitCols ? cols_left : kUnitCols});
      }
    }
    finish();
    end_sums(sums);
    finish_writes(this);
  }

  Chunk chunk_;
  PairBand* band_;
  NoTileWork nothing_;
  Unit waiting_{};
  int64_t num_units_ = 0;
  ChunkTiles& ring_;
};

struct Scratch {
  PairBand band;
  ChunkTiles tiles;
};

void end_band(const PairBand& band) {
  const AttentionArgs& args = *band.args;
  for (int i = 0; i < band.count; ++i) {
    args.row_max[band.first + i] = band.max[i] * args.scale;
    args.row_sum[band.first + i] = band.sum[i];
    float* out = args.out + int64_t{band.first + i} * args.head_dim;
    const float* acc = band.acc + i * band.acc_stride;
    for (int d = 0; d < args.head_dim; d += kLanes) {
      store_first(out + d, load(acc + d), args.head_dim - d);
    }
  }
}

}  // namespace

int64_t attention_amx_scratch_bytes() { return sizeof(Scratch); }

int64_t num_amx_bands(bool in_units) {
  return __atomic_load_n(&num_bands[in_units], __ATOMIC_RELAXED);
}

void attention_amx(const AttentionArgs& args) {
  const int num_pairs = args.num_rows * args.num_group_heads;
  auto* scratch = static_cast<Scratch*>(args.scratch);
  PairBand& band = scratch->band;
  for (int first = 0; first < num_pairs; first += band.count) {
    begin_band(args, first, num_pairs, &band);
    const TileUse use(band.count < kTileRows ? band.count : kTileRows);
    const bool in_units = band.num_tiles() == 1;
    __atomic_fetch_add(&num_bands[in_units], 1, __ATOMIC_RELAXED);
    if (in_units) {
      UnitRun(&band, &scratch->tiles).run();
    } else {
      BandRun(&band, &scratch->tiles).run();
    }
    end_band(band);
  }
}

}  // namespace flarecore

#endif
