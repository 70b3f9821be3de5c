// Quantised dot products of the AVX-512 level: VNNI multiplies unsigned codes of 16 channels x 4
// inputs by four broadcast activations and adds them up in 32 bits.
#pragma once

#include "cpu/dot_common.h"

namespace flarecore {
namespace {

constexpr int kDotRows = 8;
constexpr int kPanelGroups = 16;
constexpr int kPanelMinRows = 9;
constexpr int kRowStep = 24;

template <WeightFormat F>
constexpr int kPanelRows = 6;

// VNNI wants unsigned codes: 8-bit ones are raised by 128.
template <WeightFormat F>
constexpr int kZeroPoint = packed_layout(F).bits == 8 ? 128 : packed_layout(F).zero;

// w[j]: codes of inputs 4 j .. 4 j + 3 for all channels of the tile.
template <WeightFormat F>
FLARECORE_INLINE void load_codes(const uint8_t* p, __m512i* w) {
  constexpr int kBits = packed_layout(F).bits;
  const auto vector = [&](int j) { return _mm512_load_si512(p + 64 * j); };
  if constexpr (kBits == 8) {
    unrolled<8>([&](auto j) { w[j] = _mm512_xor_si512(vector(j), _mm512_set1_epi8(-128)); });
    return;
  }
  const __m512i nibble = _mm512_set1_epi8(15);
  unrolled<4>([&](auto j) {
    const __m512i both = vector(j);
    w[j] = _mm512_and_si512(both, nibble);
    w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
  });
  // high = (plane << left) & mask, or shifted right; or-ed in by one ternary operation.
  const auto add_high = [&](__m512i code, __m512i shifted, int mask) {
    constexpr int kAndThenOr = 0xf8;  // a | (b & c)
    return _mm512_ternarylogic_epi32(code, shifted, _mm512_set1_epi8(static_cast<char>(mask)),
                                     kAndThenOr);
  };
  if constexpr (kBits == 5) {
    const __m512i plane = vector(4);
    unrolled<4>([&](auto j) {
      w[j] = add_high(w[j], _mm512_slli_epi16(plane, 4 - j), 16);
      w[j + 4] = add_high(w[j + 4], _mm512_srli_epi16(plane, j), 16);
    });
  }
  if constexpr (kBits == 6) {
    unrolled<2>([&](auto half) {
      const __m512i plane = vector(4 + half);
      __m512i* out = w + 4 * half;
      out[0] = add_high(out[0], _mm512_slli_epi16(plane, 4), 48);
      out[1] = add_high(out[1], _mm512_slli_epi16(plane, 2), 48);
      out[2] = add_high(out[2], plane, 48);
      out[3] = add_high(out[3], _mm512_srli_epi16(plane, 2), 48);
    });
  }
}

template <WeightFormat F>
FLARECORE_INLINE void decode_codes(const uint8_t* p, uint8_t* out) {
  __m512i w[8];
  load_codes<F>(p, w);
  unrolled<8>([&](auto j) { _mm512_store_si512(out + 64 * j, w[j]); });
}

FLARECORE_INLINE __m512i broadcast_four(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return _mm512_set1_epi32(four);
}

// Sums of the codes in vectors [Begin, End), per channel.
template <int Begin, int End>
FLARECORE_INLINE __m512i sum_vectors(const __m512i* w) {
  __m512i sum = _mm512_setzero_si512();
  unrolled<End - Begin>([&](auto i) {
    sum = _mm512_dpbusd_epi32(sum, w[Begin + i], _mm512_set1_epi8(1));
  });
  return sum;
}

// The same for codes of which four or eight vectors add up within a byte.
template <int Begin, int End>
FLARECORE_INLINE __m512i sum_small_vectors(const __m512i* w) {
  __m512i sum = w[Begin];
  unrolled<End - Begin - 1>([&](auto i) { sum = _mm512_add_epi8(sum, w[Begin + 1 + i]); });
  return _mm512_dpbusd_epi32(_mm512_setzero_si512(), sum, _mm512_set1_epi8(1));
}

FLARECORE_INLINE void sum_codes(const uint8_t* decoded, CodeSums* sums) {
  const auto* w = reinterpret_cast<const __m512i*>(decoded);
  _mm512_store_si512(sums->half[0], sum_vectors<0, 4>(w));
  _mm512_store_si512(sums->half[1], sum_vectors<4, 8>(w));
}

// code_sum * shift: the products of 16 bits add up to that, since the upper half is 0.
FLARECORE_INLINE __m512i times_shift(__m512i code_sum, int32_t shift) {
  return _mm512_madd_epi16(code_sum, _mm512_set1_epi32(shift));
}

// Integer sums of R rows and two tiles over vectors [Begin, End) of decoded codes.
template <WeightFormat F, int R, int Begin, int End>
FLARECORE_INLINE void dot_panel(const uint8_t (*codes)[kGroupSize * kLanes],
                                const CodeSums* sums, const RowBlock<R>& x, int g,
                                Vec (*dot)[2]) {
  __m512i sum[R][2];
  unrolled<2>([&](auto t) {
    const auto half = [&](int i) { return _mm512_load_si512(sums[t].half[i]); };
    const __m512i code_sum = End - Begin == 8 ? _mm512_add_epi32(half(0), half(1))
                                              : half(Begin / 4);
    unrolled<R>([&](auto r) {
      sum[r][t] = times_shift(code_sum, x.row[r][g].shift);
    });
  });
  unrolled<End - Begin>([&](auto i) {
    const int j = Begin + i;
    const __m512i w0 = _mm512_load_si512(codes[0] + 64 * j);
    const __m512i w1 = _mm512_load_si512(codes[1] + 64 * j);
    unrolled<R>([&](auto r) {
      const __m512i q = broadcast_four(x.row[r][g].q + 4 * j);
      sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], w0, q);
      sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], w1, q);
    });
  });
  unrolled<R>([&](auto r) {
    dot[r][0] = _mm512_cvtepi32_ps(sum[r][0]);
    dot[r][1] = _mm512_cvtepi32_ps(sum[r][1]);
  });
}

// Integer sums of R rows over the packed codes of one group; kQ6_K: of its halves.
template <WeightFormat F, int R>
FLARECORE_INLINE void dot_group(const uint8_t* codes, const RowBlock<R>& x, int64_t g, Vec* dot,
                                Vec* dot_second) {
  constexpr int kBits = packed_layout(F).bits;
  constexpr bool kHalves = F == WeightFormat::kQ6_K;
  __m512i w[8], code_sum, second_code_sum;
  load_codes<F>(codes, w);
  if constexpr (kHalves) {
    code_sum = sum_small_vectors<0, 4>(w);
    second_code_sum = sum_small_vectors<4, 8>(w);
  } else {
    code_sum = kBits == 8 ? sum_vectors<0, 8>(w) : sum_small_vectors<0, 8>(w);
  }
  // The rows take turns: what waits for one row's sum leaves room for the next row's.
  __m512i first[R], second[R];
  unrolled<R>([&](auto r) {
    const int32_t shift = x.row[r][g].shift;
    first[r] = times_shift(code_sum, shift);
    second[r] = kHalves ? times_shift(second_code_sum, shift) : _mm512_setzero_si512();
  });
  unrolled<4>([&](auto j) {
    unrolled<R>([&](auto r) {
      const int8_t* q = x.row[r][g].q;
      first[r] = _mm512_dpbusd_epi32(first[r], w[j], broadcast_four(q + 4 * j));
      second[r] = _mm512_dpbusd_epi32(second[r], w[j + 4], broadcast_four(q + 16 + 4 * j));
    });
  });
  unrolled<R>([&](auto r) {
    if constexpr (kHalves) {
      dot[r] = _mm512_cvtepi32_ps(first[r]);
      dot_second[r] = _mm512_cvtepi32_ps(second[r]);
    } else {
      dot[r] = _mm512_cvtepi32_ps(_mm512_add_epi32(first[r], second[r]));
    }
  });
}

}  // namespace
}  // namespace flarecore
