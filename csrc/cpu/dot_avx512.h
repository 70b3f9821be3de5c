// Quantised dot products of the AVX-512 level: VNNI multiplies unsigned codes of 16 channels x 4
// inputs by four broadcast activations and adds them up in 32 bits.
#pragma once

#include "cpu/dot_common.h"

namespace flarecore {
namespace {

constexpr int kDotRows = 8;
constexpr int kPrefetchAhead = 2048;

// VNNI wants unsigned codes: 8-bit ones are raised by 128.
template <WeightFormat F>
constexpr int kZeroPoint = packed_layout(F).bits == 8 ? 128 : packed_layout(F).zero;

// w[j]: codes of inputs 4 j .. 4 j + 3 for all channels of the tile.
template <WeightFormat F>
inline void load_codes(const uint8_t* p, __m512i* w) {
  constexpr int kBits = packed_layout(F).bits;
  const auto vector = [&](int j) { return _mm512_load_si512(p + 64 * j); };
  if constexpr (kBits == 8) {
    for (int j = 0; j < 8; ++j) w[j] = _mm512_xor_si512(vector(j), _mm512_set1_epi8(-128));
    return;
  }
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int j = 0; j < 4; ++j) {
    const __m512i both = vector(j);
    w[j] = _mm512_and_si512(both, nibble);
    w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
  }
  // high = (plane << left) & mask, or shifted right; or-ed in by one ternary operation.
  const auto add_high = [&](__m512i code, __m512i shifted, int mask) {
    constexpr int kAndThenOr = 0xf8;  // a | (b & c)
    return _mm512_ternarylogic_epi32(code, shifted, _mm512_set1_epi8(static_cast<char>(mask)),
                                     kAndThenOr);
  };
  if constexpr (kBits == 5) {
    const __m512i plane = vector(4);
    for (int j = 0; j < 4; ++j) w[j] = add_high(w[j], _mm512_slli_epi16(plane, 4 - j), 16);
    for (int j = 4; j < 8; ++j) w[j] = add_high(w[j], _mm512_srli_epi16(plane, j - 4), 16);
  }
  if constexpr (kBits == 6) {
    for (int half = 0; half < 2; ++half) {
      const __m512i plane = vector(4 + half);
      __m512i* out = w + 4 * half;
      out[0] = add_high(out[0], _mm512_slli_epi16(plane, 4), 48);
      out[1] = add_high(out[1], _mm512_slli_epi16(plane, 2), 48);
      out[2] = add_high(out[2], plane, 48);
      out[3] = add_high(out[3], _mm512_srli_epi16(plane, 2), 48);
    }
  }
}

// Sum over vectors [4 half, 4 half + 4).
inline __m512i dot_half(const __m512i* w, const int8_t* q, int half) {
  __m512i sum = _mm512_setzero_si512();
  for (int j = 4 * half; j < 4 * half + 4; ++j) {
    int32_t four;
    __builtin_memcpy(&four, q + 4 * j, 4);
    sum = _mm512_dpbusd_epi32(sum, w[j], _mm512_set1_epi32(four));
  }
  return sum;
}

template <WeightFormat F, int R>
inline void dot_tile(const uint8_t* tile, int64_t num_cols, const ActivationRows<R>& x, Vec* out) {
  constexpr int kCodeLines = packed_layout(F).code_bytes * kLanes / 64;
  Vec acc[R];
  for (int r = 0; r < R; ++r) acc[r] = set1(0.0f);
  for_each_group<F>(tile, num_cols, [&](const uint8_t* codes, const uint8_t* scales,
                                        const uint8_t* supers, int64_t g) {
    for (int i = 0; i < kCodeLines; ++i) __builtin_prefetch(codes + kPrefetchAhead + 64 * i);
    __m512i w[8];
    load_codes<F>(codes, w);
    const GroupScales s = load_scales<F, kZeroPoint<F>>(scales, supers);
    for (int r = 0; r < R; ++r) {
      const int8_t* q = x.q[r] + g * kGroupSize;
      const __m512i first = dot_half(w, q, 0), second = dot_half(w, q, 1);
      const bool halves = F == WeightFormat::kQ6_K;
      const __m512i sum = halves ? first : _mm512_add_epi32(first, second);
      acc[r] = add_group<F, kZeroPoint<F>>(acc[r], s, _mm512_cvtepi32_ps(sum),
                                           _mm512_cvtepi32_ps(second), x.scale[r][g],
                                           x.sums[r] + 2 * g);
    }
  });
  for (int r = 0; r < R; ++r) out[r] = acc[r];
}

}  // namespace
}  // namespace flarecore
