// Vector type of the AVX-512 level: 16 float lanes. Included by *_avx512.cpp only.
#pragma once

// GCC 12's own intrinsics pass a register that is deliberately left undefined.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include <cstdint>

namespace flarecore {
namespace {

constexpr int kLanes = 16;
using Vec = __m512;
using Mask = __mmask16;

inline Vec set1(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a); }

// Lanes below n.
inline Mask lanes_below(int n) {
  return static_cast<Mask>(n >= kLanes ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
}
// Lanes [begin, end).
inline Mask lanes_between(int begin, int end) {
  return static_cast<Mask>(lanes_below(end) & ~lanes_below(begin));
}
inline Vec select(Mask m, Vec yes, Vec no) { return _mm512_mask_blend_ps(m, no, yes); }
inline Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline bool all(Mask m) { return m == 0xffff; }

// The first n lanes, the others `fill`.
inline Vec load_first(const float* p, int n, float fill) {
  return _mm512_mask_loadu_ps(set1(fill), lanes_below(n), p);
}
inline void store_first(float* p, Vec a, int n) { _mm512_mask_storeu_ps(p, lanes_below(n), a); }
inline Vec load_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load_half_first(const uint16_t* p, int n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes_below(n), p));
}
inline Vec load_bfloat16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vec load_uint8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Vec load_int8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
// The second operand where one is NaN.
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec abs(Vec a) { return _mm512_andnot_ps(set1(-0.0f), a); }
// p * 2^n where the low bits of `t` hold n (math.inc), by adding n to the exponent.
inline Vec scale_by_power(Vec p, Vec t) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), n));
}

inline void store_half(uint16_t* p, Vec a) {
  const Vec clamped = max(set1(-65504.0f), min(set1(65504.0f), a));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline float reduce_add(Vec a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(Vec a) { return _mm512_reduce_max_ps(a); }

// Lane i is op over the lanes of v[i], joined as reduce_add does it: lanes 8 apart, 4, 2 and 1.
template <typename Op>
inline Vec reduce_each(const Vec* v, Op op) {
  Vec eights[8], fours[4], twos[2];
  for (int i = 0; i < 8; ++i) {
    eights[i] = op(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44),
                   _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xee));
  }
  for (int i = 0; i < 4; ++i) {
    fours[i] = op(_mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0x88),
                  _mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0xdd));
  }
  const auto low = [](Vec a, Vec b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  const auto high = [](Vec a, Vec b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  for (int i = 0; i < 2; ++i) {
    twos[i] = op(low(fours[2 * i], fours[2 * i + 1]), high(fours[2 * i], fours[2 * i + 1]));
  }
  const Vec ones = op(_mm512_shuffle_ps(twos[0], twos[1], 0x88),
                      _mm512_shuffle_ps(twos[0], twos[1], 0xdd));
  // Quarter k holds v[k], v[4 + k], v[8 + k], v[12 + k].
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_ps(order, ones);
}
inline Vec reduce_add_each(const Vec* v) {
  return reduce_each(v, [](Vec a, Vec b) { return add(a, b); });
}
inline Vec reduce_max_each(const Vec* v) {
  return reduce_each(v, [](Vec a, Vec b) { return max(a, b); });
}

inline float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

inline int32_t round_one(float x) { return _mm_cvtss_si32(_mm_set_ss(x)); }

// Rounds 32 values to nearest even, each within 128 of `shift`, and stores what lies between;
// sums[0] over all that is stored, sums[1] over the first 16.
inline void round_group(const Vec* x, int32_t shift, int8_t* q, int32_t* sums) {
  const __m512i zero = _mm512_set1_epi32(shift);
  const __m512i first = _mm512_sub_epi32(_mm512_cvtps_epi32(x[0]), zero);
  const __m512i second = _mm512_sub_epi32(_mm512_cvtps_epi32(x[1]), zero);
  __m128i* out = reinterpret_cast<__m128i*>(q);
  _mm_storeu_si128(out, _mm512_cvtsepi32_epi8(first));
  _mm_storeu_si128(out + 1, _mm512_cvtsepi32_epi8(second));
  sums[1] = _mm512_reduce_add_epi32(first);
  sums[0] = sums[1] + _mm512_reduce_add_epi32(second);
}

// 16-bit integers, two to a lane, and the sums of their products, 32 bits a lane.
using Words = __m512i;
using WordSums = __m512i;
inline WordSums zero_sums() { return _mm512_setzero_si512(); }
inline Words load_words(const int16_t* p) { return _mm512_loadu_si512(p); }
// The same two in every lane.
inline Words set1_words(const int16_t* two) {
  int32_t both;
  __builtin_memcpy(&both, two, sizeof(both));
  return _mm512_set1_epi32(both);
}
// Adds both products of a lane to its sum.
inline WordSums add_products(WordSums sum, Words a, Words b) {
  return _mm512_dpwssd_epi32(sum, a, b);
}
inline Vec to_float(WordSums sum) { return _mm512_cvtepi32_ps(sum); }
// Rounds to nearest even; each fits 16 bits. NaN gives anything.
inline void store_rounded(int16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a)));
}

}  // namespace
}  // namespace flarecore
