// Numbers as the sum of two bfloat16, high and low, for the AMX unit.
//
// high has 8 significant bits and low another 8 of what is left, so that a number is off by at most
// 2^-17 of itself (float16 is exact: it has 11). A product is low * high + high * high + high *
// low; what is left out is below 2^-16 of it.
#pragma once

#include "cpu/simd_avx512.h"

#include "cpu/tile_use_amx.h"

namespace flarecore {
namespace {

constexpr int kTileDepth = 32;  // numbers of a left tile's row: what one product adds up
constexpr int kTileCols = 16;   // columns of a right tile

// A left tile holds 32 numbers in each of up to 16 rows: places 2 j and 2 j + 1 are numbers j and
// 16 + j. A right tile holds 32 numbers of each of 16 columns: row j has numbers j and 16 + j of
// every column in turns.
struct SplitTile {
  alignas(64) uint16_t high[kTileRows][kTileDepth];
  alignas(64) uint16_t low[kTileRows][kTileDepth];
};

constexpr int kHalfDepth = kTileDepth / 2;

FLARECORE_INLINE __m512i bits_of(Vec a) { return _mm512_castps_si512(a); }
FLARECORE_INLINE Vec vec_of(__m512i a) { return _mm512_castsi512_ps(a); }
FLARECORE_INLINE __m512i upper_words() { return _mm512_set1_epi32(-0x10000); }

// What bfloat16 keeps of each number: its upper word.
FLARECORE_INLINE Vec cut(Vec x) { return vec_of(_mm512_and_si512(bits_of(x), upper_words())); }

// Upper words of the two vectors in turns.
FLARECORE_INLINE __m512i pack(Vec a, Vec b) {
  constexpr __mmask32 kOdd = 0xaaaaaaaa;
  return _mm512_mask_blend_epi16(kOdd, _mm512_srli_epi32(bits_of(a), 16), bits_of(b));
}

// A row of a left tile. high is rounded, so that low, which is cut, has either sign.
FLARECORE_INLINE void split_row(Vec a, Vec b, uint16_t* high, uint16_t* low) {
  const auto rounded = [](Vec x) __attribute__((always_inline)) {
    return cut(vec_of(_mm512_add_epi32(bits_of(x), _mm512_set1_epi32(0x8000))));
  };
  const Vec high_a = rounded(a), high_b = rounded(b);
  _mm512_store_si512(high, pack(high_a, high_b));
  _mm512_store_si512(low, pack(sub(a, high_a), sub(b, high_b)));
}

// A row of a right tile from float16 numbers: high is cut, low is exact. Returns the lanes where
// one of the two is no finite number.
FLARECORE_INLINE Mask split_column_row(Vec a, Vec b, uint16_t* high, uint16_t* low) {
  const Vec low_a = sub(a, cut(a)), low_b = sub(b, cut(b));
  _mm512_store_si512(high, pack(a, b));
  _mm512_store_si512(low, pack(low_a, low_b));
  return _mm512_cmp_ps_mask(low_a, low_b, _CMP_UNORD_Q);
}

}  // namespace
}  // namespace flarecore
