// Attention over float16 KV blocks on the AMX unit, flash style.
//
// Every pair of a query row and a head sees the same operations in the same order whatever pairs go
// along, one row or many: chunks of kChunkBlocks blocks in ascending order, products as TileProduct
// says, the vector work lane by lane. What a pair does not see enters as exact zeros.
#include "cpu/kernel_tables.h"

#ifdef __AMX_BF16__

#include "cpu/simd_avx512.h"

#include "cpu/math.inc"

#include "cpu/attention_band_amx.h"

namespace flarecore {
namespace {

int64_t num_attentions = 0;

// 2^x for x <= 0, relative error below 2e-7; 0 below the smallest normal number, NaN stays NaN.
// 2^x = 2^floor(x) p(x - floor(x)), p a minimax polynomial (8.3e-8) with p(0) = 1.
FLARECORE_INLINE Vec exp2_vec(Vec x) {
  constexpr int kRoundDown = 1;
  const Vec f = _mm512_reduce_ps(x, kRoundDown);  // 0 for -inf
  Vec p = fma(set1(0.0018671317f), f, set1(0.009017027f));
  p = fma(p, f, set1(0.055799916f));
  p = fma(p, f, set1(0.24016444f));
  p = fma(p, f, set1(0.6931513f));
  p = fma(p, f, set1(1.0f));
  return _mm512_scalef_ps(p, x);
}

constexpr int kScoreVecs = kChunkTokens / kLanes;

// What a pair does not see becomes -inf; returns the largest score, lane by lane.
FLARECORE_INLINE Vec hide_scores(float* scores, int begin, int end) {
  Vec largest = set1(kMinusInfinity);
  for (int i = 0; i < kScoreVecs; ++i) {
    Vec s = load(scores + i * kLanes);
    if (begin > i * kLanes || end < (i + 1) * kLanes) {
      s = select(lanes_between(begin - i * kLanes, end - i * kLanes), s, set1(kMinusInfinity));
      store(scores + i * kLanes, s);
    }
    largest = max(largest, s);
  }
  return largest;
}

// Makes room for a new maximum in what a pair has summed up.
FLARECORE_INLINE void rescale_pair(PairBand* band, int pair, float rescale) {
  float* acc = band->acc + pair * band->acc_stride;
  for (int64_t i = 0; i < band->acc_stride; i += kLanes) {
    store(acc + i, mul(load(acc + i), set1(rescale)));
  }
}

// Scores of a tile's pairs become softmax numerators, as left tiles; maxima, sums and what was
// summed up before change accordingly. A pair whose scores so far are all -inf or not visible gets
// zeros and nothing else changes. Lane i of a vector over pairs belongs to pair i of the tile.
void soften_tile(PairBand* band, int tile, TileWork* work) {
  const int base = tile * kTileRows, count = band->pairs_of(tile);
  Vec each[kTileRows];
  for (int i = 0; i < kTileRows; ++i) {
    each[i] = i < count ? hide_scores(band->scores[base + i], band->begin[base + i],
                                      band->end[base + i])
                        : set1(kMinusInfinity);
  }
  const Vec log2_scale = set1(band->args->scale * 1.44269504f);
  const Vec old_max = load(band->max + base), chunk_max = reduce_max_each(each);
  const Vec new_max = select(less(old_max, chunk_max), chunk_max, old_max);
  const Mask moves = less(old_max, new_max);
  const Vec rescale = select(moves, exp2_vec(mul(sub(old_max, new_max), log2_scale)), set1(1.0f));
  alignas(64) float rescales[kTileRows];
  store(rescales, rescale);
  store(band->max + base, new_max);
  for (int i = 0; i < count; ++i) {
    if (i % kRowsPerPart == 0) work->advance();
    if ((moves >> i & 1) != 0) rescale_pair(band, base + i, rescales[i]);
    const float top = band->max[base + i];
    const Mask any = top == kMinusInfinity ? 0 : 0xffff;
    const auto numerator = [&](int k) __attribute__((always_inline)) {
      const Vec below = sub(load(band->scores[base + i] + k * kLanes), set1(top));
      return _mm512_maskz_mov_ps(any, exp2_vec(mul(below, log2_scale)));
    };
    each[i] = set1(0.0f);
    unrolled<kChunkBlocks>([&](auto block) __attribute__((always_inline)) {
      const Vec first = numerator(2 * block), second = numerator(2 * block + 1);
      each[i] = add(add(each[i], first), second);
      SplitTile& p = band->p[tile][block];
      split_row(first, second, p.high[i], p.low[i]);
    });
  }
  for (int i = count; i < kTileRows; ++i) each[i] = set1(0.0f);
  store(band->sum + base, fma(load(band->sum + base), rescale, reduce_add_each(each)));
}

// The chunks of a band: scores and values of one go along with the vector work of it and the next.
class BandRun {
 public:
  BandRun(PairBand* band, ChunkTiles* tiles) : args_(*band->args), band_(band), tiles_(*tiles) {}

  void run() {
    int block = args_.block_begin;
    if (!find_chunk(&block)) return;
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
      block += kChunkBlocks;
      if (!find_chunk(&block)) break;
      convert_chunk_keys();
      work_.finish();
    }
    work_.finish();
  }

 private:
  static const uint16_t* of(const void* p) { return static_cast<const uint16_t*>(p); }

  // The next chunk from *block on of which a pair sees something, and which of its blocks. Does not
  // touch what soften_tile() reads before it returns: all softening of the last chunk is done.
  bool find_chunk(int* block) {
    for (; *block < args_.block_end; *block += kChunkBlocks) {
      const int first_token = *block * kBlockTokens;
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
      chunk_ = *block;
      first_block_ = *block + begin / kBlockTokens;
      end_block_ = *block + (end + kBlockTokens - 1) / kBlockTokens;
      return true;
    }
    return false;
  }

  bool sees_chunk(int tile) const {
    for (int i = tile * kTileRows; i < tile * kTileRows + band_->pairs_of(tile); ++i) {
      if (band_->begin[i] < band_->end[i]) return true;
    }
    return false;
  }

  int dim_cols() const { return (args_.head_dim + kTileCols - 1) / kTileCols; }

  void convert_chunk_keys() {
    for (int block = first_block_; block < end_block_; ++block) {
      convert_keys(of(args_.k_blocks[block]), of(block_ahead(args_, block, false)), args_.head_dim,
                   tiles_.keys[0] + (block - first_block_) * kBlockCols, &work_);
    }
  }

  void convert_chunk_values() {
    for (int block = first_block_; block < end_block_; ++block) {
      convert_values(of(args_.v_blocks[block]), of(block_ahead(args_, block, true)), args_.head_dim,
                     tiles_.values + (block - first_block_) * dim_cols(), &work_);
    }
  }

  void begin_scores() {
    const int first_col = (first_block_ - chunk_) * kBlockTokens;
    for (int tile = 0; tile < band_->num_tiles(); ++tile) {
      scores_of_[tile] = 0;
      if (!sees_chunk(tile)) continue;
      scores_of_[tile] = work_.push({band_->q + tile * band_->dim_steps, tiles_.keys[0],
                                     band_->dim_steps, kMaxSums,
                                     (end_block_ - first_block_) * kBlockCols,
                                     band_->scores[tile * kTileRows] + first_col, kChunkTokens,
                                     false});
    }
  }

  void add_values(int tile) {
    for (int col = 0; col < dim_cols(); col += kMaxSums) {
      const int left = dim_cols() - col;
      work_.push({band_->p[tile] + (first_block_ - chunk_), tiles_.values + col,
                  end_block_ - first_block_, dim_cols(), left < kMaxSums ? left : kMaxSums,
                  band_->acc + tile * kTileRows * band_->acc_stride + col * kTileCols,
                  band_->acc_stride, true});
    }
  }

  const AttentionArgs& args_;
  PairBand* band_;
  TileWork work_;
  int chunk_ = 0, first_block_ = 0, end_block_ = 0;  // the chunk's beginning, what is seen of it
  int64_t scores_of_[kMaxBandTiles];                 // when they are there; 0: nothing is seen
  ChunkTiles& tiles_;
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

int64_t num_amx_attentions() { return __atomic_load_n(&num_attentions, __ATOMIC_RELAXED); }

void attention_amx(const AttentionArgs& args) {
  __atomic_fetch_add(&num_attentions, 1, __ATOMIC_RELAXED);
  const int num_pairs = args.num_rows * args.num_group_heads;
  auto* scratch = static_cast<Scratch*>(args.scratch);
  PairBand& band = scratch->band;
  for (int first = 0; first < num_pairs; first += band.count) {
    begin_band(args, first, num_pairs, &band);
    const TileUse use(band.count < kTileRows ? band.count : kTileRows);
    BandRun(&band, &scratch->tiles).run();
    end_band(band);
  }
}

}  // namespace flarecore

#endif
