// Vector type of the AVX2 level: 8 float lanes. Included by *_avx2.cpp only.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace flarecore {
namespace {

constexpr int kLanes = 8;
using Vec = __m256;
using Mask = __m256;

inline Vec set1(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a); }

// Lanes [begin, end).
inline Mask lanes_between(int begin, int end) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i from = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(begin - 1));
  const __m256i to = _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane);
  return _mm256_castsi256_ps(_mm256_and_si256(from, to));
}
inline Vec select(Mask m, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, m); }
inline Mask less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline bool all(Mask m) { return _mm256_movemask_ps(m) == 0xff; }

// The first n lanes, the others `fill`.
inline Vec load_first(const float* p, int n, float fill) {
  const Mask m = lanes_between(0, n);
  return select(m, _mm256_maskload_ps(p, _mm256_castps_si256(m)), set1(fill));
}
inline void store_first(float* p, Vec a, int n) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(lanes_between(0, n)), a);
}
inline Vec load_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vec load_half_first(const uint16_t* p, int n) {
  alignas(16) uint16_t lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load_half(lanes);
}
inline Vec load_bfloat16(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Vec load_uint8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Vec load_int8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }  // a * b + c
// The second operand where one is NaN.
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec abs(Vec a) { return _mm256_andnot_ps(set1(-0.0f), a); }
// p * 2^n where the low bits of `t` hold n (math.inc), by adding n to the exponent.
inline Vec scale_by_power(Vec p, Vec t) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
}

inline void store_half(uint16_t* p, Vec a) {
  const Vec limit = set1(65504.0f);
  const Vec clamped = max(set1(-65504.0f), min(limit, a));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline float reduce_add(Vec a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(Vec a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

// int8 values of a group of 32: sums[0] over all, sums[1] over the first 16.
inline void sum_group(__m256i q, int32_t* sums) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
  const __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  __m128i low = _mm256_castsi256_si128(quads), high = _mm256_extracti128_si256(quads, 1);
  low = _mm_add_epi32(low, _mm_unpackhi_epi64(low, low));
  high = _mm_add_epi32(high, _mm_unpackhi_epi64(high, high));
  low = _mm_add_epi32(low, _mm_shuffle_epi32(low, 1));
  high = _mm_add_epi32(high, _mm_shuffle_epi32(high, 1));
  sums[1] = _mm_cvtsi128_si32(low);
  sums[0] = sums[1] + _mm_cvtsi128_si32(high);
}

inline int32_t round_one(float x) { return _mm_cvtss_si32(_mm_set_ss(x)); }

// Rounds 32 values to nearest even, each within 128 of `shift`, and stores what lies between; sums
// as in sum_group.
inline void round_group(const Vec* x, int32_t shift, int8_t* q, int32_t* sums) {
  const __m256i zero = _mm256_set1_epi32(shift);
  const auto rounded = [&](int i) { return _mm256_sub_epi32(_mm256_cvtps_epi32(x[i]), zero); };
  const __m256i a = _mm256_packs_epi32(rounded(0), rounded(1));
  const __m256i b = _mm256_packs_epi32(rounded(2), rounded(3));
  // Packing works on 128-bit halves: put the quarters back in order.
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b),
                                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
  sum_group(bytes, sums);
}

// 16-bit integers, two to a lane, and the sums of their products, 32 bits a lane.
using Words = __m256i;
using WordSums = __m256i;
inline WordSums zero_sums() { return _mm256_setzero_si256(); }
inline Words load_words(const int16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
// The same two in every lane.
inline Words set1_words(const int16_t* two) {
  int32_t both;
  __builtin_memcpy(&both, two, sizeof(both));
  return _mm256_set1_epi32(both);
}
// Adds both products of a lane to its sum.
inline WordSums add_products(WordSums sum, Words a, Words b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}
inline Vec to_float(WordSums sum) { return _mm256_cvtepi32_ps(sum); }
// Rounds to nearest even; each fits 16 bits. NaN gives anything.
inline void store_rounded(int16_t* p, Vec a) {
  const __m256i whole = _mm256_cvtps_epi32(a);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi32(_mm256_castsi256_si128(whole),
                                   _mm256_extracti128_si256(whole, 1)));
}

}  // namespace
}  // namespace flarecore

#include "cpu/simd_reduce_each.h"
