// The softmax of attention on the AMX unit. After math.inc.
#pragma once

#include "cpu/attention_band_amx.h"

namespace flarecore {
namespace {

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

// What a pair does not see becomes -inf; returns the largest score, lane by lane. NaN is no largest
// one, as it would hide the others: it comes out of the numerators.
FLARECORE_INLINE Vec hide_scores(float* scores, int begin, int end) {
  Vec largest = set1(kMinusInfinity);
  for (int i = 0; i < kScoreVecs; ++i) {
    Vec s = load(scores + i * kLanes);
    if (begin > i * kLanes || end < (i + 1) * kLanes) {
      s = select(lanes_between(begin - i * kLanes, end - i * kLanes), s, set1(kMinusInfinity));
      store(scores + i * kLanes, s);
    }
    largest = max(s, largest);  // `largest` where s is NaN
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
template <typename Work>
void soften_tile(PairBand* band, int tile, Work* work) {
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

}  // namespace
}  // namespace flarecore
