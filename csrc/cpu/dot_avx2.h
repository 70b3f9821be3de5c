// Quantised dot products of the AVX2 level: codes of 8 channels x 4 inputs times four broadcast
// activations in 16 bits, widened to 32 before they can overflow.
#pragma once

#include "cpu/dot_common.h"

namespace flarecore {
namespace {

constexpr int kDotRows = 4;
constexpr int kPrefetchAhead = 1024;

inline __m256i load_vector(const uint8_t* p, int j) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32 * j));
}

inline __m256i broadcast_four(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return _mm256_set1_epi32(four);
}

inline __m256i widen(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }

// Codes j (low) and j + 4 (high) of a 4- or 5-bit group, or of a 6-bit one.
template <WeightFormat F>
inline void load_pair(const uint8_t* p, int j, __m256i* low, __m256i* high) {
  constexpr int kBits = packed_layout(F).bits;
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i both = load_vector(p, j);
  *low = _mm256_and_si256(both, nibble);
  *high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
  if constexpr (kBits == 5) {
    const __m256i bit = _mm256_set1_epi8(16), plane = load_vector(p, 4);
    *low = _mm256_or_si256(*low, _mm256_and_si256(_mm256_slli_epi16(plane, 4 - j), bit));
    *high = _mm256_or_si256(*high, _mm256_and_si256(_mm256_srli_epi16(plane, j), bit));
  }
  if constexpr (kBits == 6) {
    const __m256i bits = _mm256_set1_epi8(48);
    const auto shifted = [&](__m256i plane) {
      return j < 2 ? _mm256_slli_epi16(plane, 4 - 2 * j) : _mm256_srli_epi16(plane, 2 * j - 4);
    };
    *low = _mm256_or_si256(*low, _mm256_and_si256(shifted(load_vector(p, 4)), bits));
    *high = _mm256_or_si256(*high, _mm256_and_si256(shifted(load_vector(p, 5)), bits));
  }
}

// Integer sums of R rows over one group. 4 and 5 bits: a product pair is at most 31 * 127 * 2 = 7874
// in size, so four of them fit in 16 bits; with 15 * 127 * 2 = 3810, all eight do.
template <WeightFormat F, int R>
inline void dot_small(const uint8_t* codes, const ActivationRows<R>& x, int64_t g, __m256i* sum) {
  constexpr bool kWidenHalves = packed_layout(F).bits == 5;
  __m256i low_sum[R], high_sum[R];
  for (int j = 0; j < 4; ++j) {
    __m256i low, high;
    load_pair<F>(codes, j, &low, &high);
    for (int r = 0; r < R; ++r) {
      const int8_t* q = x.q[r] + g * kGroupSize + 4 * j;
      const __m256i a = _mm256_maddubs_epi16(low, broadcast_four(q));
      const __m256i b = _mm256_maddubs_epi16(high, broadcast_four(q + 16));
      if constexpr (kWidenHalves) {
        low_sum[r] = j == 0 ? a : _mm256_add_epi16(low_sum[r], a);
        high_sum[r] = j == 0 ? b : _mm256_add_epi16(high_sum[r], b);
      } else {
        const __m256i ab = _mm256_add_epi16(a, b);
        low_sum[r] = j == 0 ? ab : _mm256_add_epi16(low_sum[r], ab);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    sum[r] = widen(low_sum[r]);
    if constexpr (kWidenHalves) sum[r] = _mm256_add_epi32(sum[r], widen(high_sum[r]));
  }
}

// 6 bits: 63 * 127 * 2 = 16002, two fit. Sums of the two halves of the group.
template <WeightFormat F, int R>
inline void dot_six(const uint8_t* codes, const ActivationRows<R>& x, int64_t g, __m256i* first,
                    __m256i* second) {
  for (int j = 0; j < 4; j += 2) {
    __m256i low[2], high[2];
    load_pair<F>(codes, j, &low[0], &high[0]);
    load_pair<F>(codes, j + 1, &low[1], &high[1]);
    for (int r = 0; r < R; ++r) {
      const int8_t* q = x.q[r] + g * kGroupSize + 4 * j;
      const auto pair = [](const __m256i* w, const int8_t* from) {
        return widen(_mm256_add_epi16(_mm256_maddubs_epi16(w[0], broadcast_four(from)),
                                      _mm256_maddubs_epi16(w[1], broadcast_four(from + 4))));
      };
      const __m256i a = pair(low, q), b = pair(high, q + 16);
      first[r] = j == 0 ? a : _mm256_add_epi32(first[r], a);
      second[r] = j == 0 ? b : _mm256_add_epi32(second[r], b);
    }
  }
}

// 8 bits, signed: |w| times x with the sign of w; 128 * 127 * 2 = 32512, one fits.
template <int R>
inline void dot_eight(const uint8_t* codes, const ActivationRows<R>& x, int64_t g, __m256i* sum) {
  for (int j = 0; j < 8; ++j) {
    const __m256i w = load_vector(codes, j);
    const __m256i size = _mm256_abs_epi8(w);
    for (int r = 0; r < R; ++r) {
      const __m256i q = broadcast_four(x.q[r] + g * kGroupSize + 4 * j);
      const __m256i a = widen(_mm256_maddubs_epi16(size, _mm256_sign_epi8(q, w)));
      sum[r] = j == 0 ? a : _mm256_add_epi32(sum[r], a);
    }
  }
}

template <WeightFormat F, int R>
inline void dot_tile(const uint8_t* tile, int64_t num_cols, const ActivationRows<R>& x, Vec* out) {
  constexpr int kZero = packed_layout(F).zero;
  constexpr int kCodeBytes = packed_layout(F).code_bytes * kLanes;
  Vec acc[R];
  for (int r = 0; r < R; ++r) acc[r] = set1(0.0f);
  for_each_group<F>(tile, num_cols, [&](const uint8_t* codes, const uint8_t* scales,
                                        const uint8_t* supers, int64_t g) {
    for (int at = 0; at < kCodeBytes; at += 64) __builtin_prefetch(codes + kPrefetchAhead + at);
    __m256i first[R], second[R];
    if constexpr (F == WeightFormat::kQ8_0) {
      dot_eight<R>(codes, x, g, first);
    } else if constexpr (F == WeightFormat::kQ6_K) {
      dot_six<F, R>(codes, x, g, first, second);
    } else {
      dot_small<F, R>(codes, x, g, first);
    }
    const GroupScales s = load_scales<F, kZero>(scales, supers);
    for (int r = 0; r < R; ++r) {
      Vec sum_second = set1(0.0f);
      if constexpr (F == WeightFormat::kQ6_K) sum_second = _mm256_cvtepi32_ps(second[r]);
      acc[r] = add_group<F, kZero>(acc[r], s, _mm256_cvtepi32_ps(first[r]), sum_second,
                                   x.scale[r][g], x.sums[r] + 2 * g);
    }
  });
  for (int r = 0; r < R; ++r) out[r] = acc[r];
}

}  // namespace
}  // namespace flarecore
