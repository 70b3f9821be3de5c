// Quantised dot products of the AVX2 level: codes of 8 channels x 4 inputs times four broadcast
// activations in 16 bits, widened to 32 before they can overflow.
#pragma once

#include "cpu/dot_common.h"

namespace flarecore {
namespace {

constexpr int kDotRows = 4;
constexpr int kPanelGroups = 32;
constexpr int kPanelMinRows = 6;
constexpr int kRowStep = 24;

template <WeightFormat F>
constexpr int kPanelRows = 3;

template <WeightFormat F>
constexpr int kZeroPoint = packed_layout(F).zero;

FLARECORE_INLINE __m256i load_vector(const uint8_t* p, int j) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32 * j));
}

FLARECORE_INLINE __m256i broadcast_four(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return _mm256_set1_epi32(four);
}

FLARECORE_INLINE __m256i widen(__m256i sums) {
  return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

// Vectors j and j + 4 of a group of up to 6 bits: inputs 4 j .. 4 j + 3 and 4 j + 16 .. 4 j + 19.
template <WeightFormat F>
FLARECORE_INLINE void load_pair(const uint8_t* p, int j, __m256i* low, __m256i* high) {
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

template <WeightFormat F>
FLARECORE_INLINE void decode_codes(const uint8_t* p, uint8_t* out) {
  __m256i* vectors = reinterpret_cast<__m256i*>(out);
  if constexpr (packed_layout(F).bits == 8) {
    unrolled<8>([&](auto j) { _mm256_store_si256(vectors + j, load_vector(p, j)); });
  } else {
    unrolled<4>([&](auto j) {
      __m256i low, high;
      load_pair<F>(p, j, &low, &high);
      _mm256_store_si256(vectors + j, low);
      _mm256_store_si256(vectors + j + 4, high);
    });
  }
}

// Sums of the codes in vectors [begin, end) per channel, as CodeSums wants them.
FLARECORE_INLINE __m256i sum_vectors(const uint8_t* decoded, int begin, int end) {
  const __m256i ones = _mm256_set1_epi8(1);
  __m256i pairs = _mm256_setzero_si256();
  for (int j = begin; j < end; ++j) {
    // Unsigned ones times signed codes; those below 64 are the same either way.
    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(ones, load_vector(decoded, j)));
  }
  return _mm256_and_si256(widen(pairs), _mm256_set1_epi32(0xffff));
}

FLARECORE_INLINE void sum_codes(const uint8_t* decoded, CodeSums* sums) {
  auto* out = reinterpret_cast<__m256i*>(sums);
  _mm256_store_si256(out, sum_vectors(decoded, 0, 4));
  _mm256_store_si256(out + 1, sum_vectors(decoded, 4, 8));
}

// sum += code_sum * shift, by products of 16 bits: the upper half of a code sum is 0.
FLARECORE_INLINE __m256i add_shift(__m256i sum, __m256i code_sum, int32_t shift) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(code_sum, _mm256_set1_epi32(shift)));
}

// Keeps additions in the order written: reordered ones need more registers than there are.
FLARECORE_INLINE void keep_order(__m256i* sum) {
  __m256i value = *sum;
  __asm__("" : "+x"(value));
  *sum = value;
}

// Running integer sum of products of one row with vectors of codes. How many products fit in 16
// bits: a pair is at most 2 * 127 * code, 3810 for 4 bits (eight fit), 7874 for 5 (four), 16002 for
// 6 (two), 32512 for 8 (one; |code| <= 128 times the activation with the sign of the code).
template <WeightFormat F>
struct RowSum {
  static constexpr int kBits = packed_layout(F).bits;
  static constexpr int kFitting = kBits == 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
  __m256i narrow, wide;

  // The n-th vector of this sum, n counted from 0 at compile time; `size` is |w| for 8 bits.
  template <int N>
  FLARECORE_INLINE void add(__m256i w, __m256i size, __m256i q) {
    const __m256i products = kBits == 8 ? _mm256_maddubs_epi16(size, _mm256_sign_epi8(q, w))
                                        : _mm256_maddubs_epi16(w, q);
    __m256i sum = N % kFitting == 0 ? products : _mm256_add_epi16(narrow, products);
    if constexpr (kFitting > 2) keep_order(&sum);
    narrow = sum;
    if constexpr (N % kFitting == kFitting - 1) {
      __m256i total = N < kFitting ? widen(narrow) : _mm256_add_epi32(wide, widen(narrow));
      keep_order(&total);
      wide = total;
    }
  }
  FLARECORE_INLINE Vec as_float() const { return _mm256_cvtepi32_ps(wide); }
};

// Integer sums of R rows and two tiles over vectors [Begin, End) of decoded codes.
template <WeightFormat F, int R, int Begin, int End>
FLARECORE_INLINE void dot_panel(const uint8_t (*codes)[kGroupSize * kLanes],
                                const CodeSums* sums, const RowBlock<R>& x, int g,
                                Vec (*dot)[2]) {
  RowSum<F> sum[R][2];
  unrolled<End - Begin>([&](auto n) {
    constexpr int j = Begin + n;
    const __m256i w0 = load_vector(codes[0], j), w1 = load_vector(codes[1], j);
    const __m256i size0 = _mm256_abs_epi8(w0), size1 = _mm256_abs_epi8(w1);
    unrolled<R>([&](auto r) {
      const __m256i q = broadcast_four(x.row[r][g].q + 4 * j);
      sum[r][0].template add<n>(w0, size0, q);
      sum[r][1].template add<n>(w1, size1, q);
    });
  });
  unrolled<2>([&](auto t) {
    const auto half = [&](int i) {
      return _mm256_load_si256(reinterpret_cast<const __m256i*>(sums[t].half[i]));
    };
    // Sums of signed codes wrap within their 16 bits, where they still fit.
    const __m256i code_sum =
        End - Begin == 8 ? _mm256_and_si256(_mm256_add_epi32(half(0), half(1)),
                                            _mm256_set1_epi32(0xffff))
                         : half(Begin / 4);
    unrolled<R>([&](auto r) {
      sum[r][t].wide = add_shift(sum[r][t].wide, code_sum, x.row[r][g].shift);
      dot[r][t] = sum[r][t].as_float();
    });
  });
}

// Integer sums of R rows over the packed codes of one group; kQ6_K: of its halves.
template <WeightFormat F, int R>
FLARECORE_INLINE void dot_group(const uint8_t* codes, const RowBlock<R>& x, int64_t g, Vec* dot,
                                Vec* dot_second) {
  constexpr int kBits = packed_layout(F).bits;
  RowSum<F> sum[R], second[R];
  // Codes of up to 6 bits add up within bytes: eight of 5 bits, or four of 6.
  __m256i code_sum = _mm256_setzero_si256(), second_code_sum = code_sum;
  if constexpr (kBits == 8) {
    code_sum = sum_vectors(codes, 0, 8);
    unrolled<8>([&](auto j) {
      const __m256i w = load_vector(codes, j), size = _mm256_abs_epi8(w);
      unrolled<R>(
          [&](auto r) { sum[r].template add<j>(w, size, broadcast_four(x.row[r][g].q + 4 * j)); });
    });
  } else {
    unrolled<4>([&](auto j) {
      __m256i low, high;
      load_pair<F>(codes, j, &low, &high);
      code_sum = _mm256_add_epi8(code_sum, low);
      if constexpr (kBits == 6) {
        second_code_sum = _mm256_add_epi8(second_code_sum, high);
      } else {
        code_sum = _mm256_add_epi8(code_sum, high);
      }
      unrolled<R>([&](auto r) {
        const int8_t* q = x.row[r][g].q + 4 * j;
        if constexpr (kBits == 4) {
          sum[r].template add<2 * j>(low, low, broadcast_four(q));
          sum[r].template add<2 * j + 1>(high, high, broadcast_four(q + 16));
        } else {
          sum[r].template add<j>(low, low, broadcast_four(q));
          second[r].template add<j>(high, high, broadcast_four(q + 16));
        }
      });
    });
  }
  const auto widen_bytes = [](__m256i bytes) {
    return widen(_mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1)));
  };
  if constexpr (kBits != 8) code_sum = widen_bytes(code_sum);
  if constexpr (kBits == 6) second_code_sum = widen_bytes(second_code_sum);
  unrolled<R>([&](auto r) {
    const int32_t shift = x.row[r][g].shift;
    sum[r].wide = add_shift(sum[r].wide, code_sum, shift);
    if constexpr (kBits == 6) second[r].wide = add_shift(second[r].wide, second_code_sum, shift);
    if constexpr (kBits == 5) sum[r].wide = _mm256_add_epi32(sum[r].wide, second[r].wide);
    if constexpr (kBits == 6) dot_second[r] = second[r].as_float();
    dot[r] = sum[r].as_float();
  });
}

}  // namespace
}  // namespace flarecore
