// Activations of many rows as the AMX level's products read them. After dot_avx512.h.
//
// The tile unit multiplies bfloat16 as fast as int8 where a group has 32 inputs, and it gives float
// sums. Activations (q + shift, 9 bits with the sign), codes of up to 8 bits, their products and the
// sums of 32 of these (below 2^24) are all exact, so the sums are those of int8 without the
// conversion.
#pragma once

#include "cpu/dot_avx512.h"

#include "cpu/tile_use_amx.h"

namespace flarecore {
namespace {

constexpr int kAmxRows = kTileRows;  // of a block: rows of a left tile

// A block's rows in one group. Inputs lie in the order of quad_order(), so that codes of weights
// become tiles with few shuffles; a sum does not depend on it.
struct BlockCell {
  alignas(64) uint16_t q[kAmxRows][kGroupSize];  // bfloat16 of q + shift
  float scale[kAmxRows], sum[kAmxRows];          // as in QuantizedGroup
};

// Place p of a tile's row holds input quad_order(p): 0, 2, 1, 3, 4, 6, 5, 7, ...
constexpr int quad_order(int p) { return p % 4 == 1 ? p + 1 : p % 4 == 2 ? p - 1 : p; }

template <typename T>
FLARECORE_INLINE __m512i load_table(const T (&values)[64 / sizeof(T)]) {
  return _mm512_loadu_si512(values);
}

// Words of two vectors of floats: their upper halves, which are the whole of a bfloat16, in order.
struct QuadOrder {
  uint16_t word[kGroupSize] = {};
  constexpr QuadOrder() {
    for (int p = 0; p < kGroupSize; ++p) word[p] = static_cast<uint16_t>(2 * quad_order(p) + 1);
  }
};

// bfloat16 of i % Codes.
template <int Codes>
struct CodeTable {
  uint16_t word[kGroupSize] = {};
  constexpr CodeTable() {
    for (int i = 0; i < kGroupSize; ++i) word[i] = of_integer(i % Codes);
  }
  static constexpr uint16_t of_integer(int value) {
    if (value == 0) return 0;
    int exponent = 0;
    while (value >> (exponent + 1) != 0) ++exponent;
    const int fraction = (value << (7 - exponent)) & 127;
    return static_cast<uint16_t>(((127 + exponent) << 7) | fraction);
  }
};

// The right tile of a group: row 2 j holds inputs 4 j and 4 j + 2 of each channel, row 2 j + 1
// inputs 4 j + 1 and 4 j + 3.
template <WeightFormat F>
FLARECORE_INLINE void decode_tile(const uint8_t* codes, uint8_t* out) {
  constexpr int kBits = packed_layout(F).bits;
  const auto put = [&](int row, __m512i v) { _mm512_store_si512(out + 64 * row, v); };
  if constexpr (kBits == 4) {
    // A look-up takes the low 5 bits of a word: the table does not care about the fifth.
    static constexpr CodeTable<16> kTable;
    const __m512i table = load_table(kTable.word);
    const auto look_up = [&](__m512i v) { return _mm512_permutexvar_epi16(v, table); };
    unrolled<4>([&](auto j) __attribute__((always_inline)) {
      const __m512i v = _mm512_load_si512(codes + 64 * j);
      put(2 * j, look_up(v));
      put(2 * j + 1, look_up(_mm512_srli_epi16(v, 8)));
      put(2 * j + 8, look_up(_mm512_srli_epi16(v, 4)));
      put(2 * j + 9, look_up(_mm512_srli_epi16(v, 12)));
    });
    return;
  }
  __m512i w[8];
  load_codes<F>(codes, w);
  if constexpr (kBits == 5) {
    static constexpr CodeTable<32> kTable;
    const __m512i table = load_table(kTable.word);
    unrolled<8>([&](auto j) __attribute__((always_inline)) {
      put(2 * j, _mm512_permutexvar_epi16(w[j], table));
      put(2 * j + 1, _mm512_permutexvar_epi16(_mm512_srli_epi16(w[j], 8), table));
    });
  } else {
    const __m512i byte = _mm512_set1_epi32(255), upper = _mm512_set1_epi32(-65536);
    const auto number = [&](__m512i v) __attribute__((always_inline)) {
      return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_and_si512(v, byte)));
    };
    const auto pair = [&](__m512i v) __attribute__((always_inline)) {
      return _mm512_or_si512(_mm512_srli_epi32(number(v), 16),
                             _mm512_and_si512(number(_mm512_srli_epi32(v, 16)), upper));
    };
    unrolled<8>([&](auto j) __attribute__((always_inline)) {
      put(2 * j, pair(w[j]));
      put(2 * j + 1, pair(_mm512_srli_epi32(w[j], 8)));
    });
  }
}

// Lane r of the result is op over the lanes of v[r], by halves, so that 16 rows cost little more
// than one. `op` must not care about the order.
template <typename Op>
FLARECORE_INLINE __m512i reduce_rows(const __m512i (&v)[16], Op op) {
  __m512i pairs[8], quads[4], halves[2];
  unrolled<8>([&](auto i) __attribute__((always_inline)) {
    pairs[i] = op(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                  _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
  });
  unrolled<4>([&](auto i) __attribute__((always_inline)) {
    quads[i] = op(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                  _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
  });
  unrolled<2>([&](auto i) __attribute__((always_inline)) {
    halves[i] = op(_mm512_shuffle_i32x4(quads[2 * i], quads[2 * i + 1], 0x88),
                   _mm512_shuffle_i32x4(quads[2 * i], quads[2 * i + 1], 0xdd));
  });
  return op(_mm512_shuffle_i32x4(halves[0], halves[1], 0x88),
            _mm512_shuffle_i32x4(halves[0], halves[1], 0xdd));
}

// Quantises a group of 16 rows as quantize_row does each of them. x is (16, 32), row stride
// x_stride; rows from num_rows on become zeros and are not read.
inline void quantize_cell(const float* x, int64_t x_stride, int num_rows, BlockCell* cell) {
  static constexpr QuadOrder kOrder;
  const __m512i order = load_table(kOrder.word);
  const auto row_mask = [&](int r) { return static_cast<Mask>(r < num_rows ? 0xffff : 0); };
  const auto value = [&](int r, int half) __attribute__((always_inline)) {
    return _mm512_maskz_loadu_ps(row_mask(r), x + r * x_stride + half * kLanes);
  };
  __m512i v[16];
  // Largest of each row's values under `sign` and 0.
  const auto peaks = [&](auto sign) __attribute__((always_inline)) {
    unrolled<16>([&](auto r) __attribute__((always_inline)) {
      const Vec largest = max(sign(value(r, 0)), set1(0.0f));
      v[r] = _mm512_castps_si512(max(sign(value(r, 1)), largest));
    });
    return _mm512_castsi512_ps(
        reduce_rows(v, [](__m512i a, __m512i b) { return _mm512_castps_si512(max(
            _mm512_castsi512_ps(a), _mm512_castsi512_ps(b))); }));
  };
  const Vec high = peaks([](Vec x) { return x; });
  const Vec range = add(high, peaks([](Vec x) { return sub(set1(0.0f), x); }));
  const Mask is_zero = less(range, set1(1e-35f));
  alignas(64) float inverse[16];
  store(inverse, select(is_zero, set1(0.0f), div(set1(kActivationSteps), range)));
  const Vec scale = select(is_zero, set1(0.0f), div(range, set1(kActivationSteps)));
  const auto as_float = [](__m512i q) __attribute__((always_inline)) {
    // Only what is no number is below -256.
    const __m512i q9 = _mm512_max_epi32(q, _mm512_set1_epi32(-256));
    return _mm512_castps_si512(_mm512_cvtepi32_ps(q9));
  };
  unrolled<16>([&](auto r) __attribute__((always_inline)) {
    const __m512i first = _mm512_cvtps_epi32(mul(value(r, 0), set1(inverse[r])));
    const __m512i second = _mm512_cvtps_epi32(mul(value(r, 1), set1(inverse[r])));
    v[r] = _mm512_add_epi32(first, second);
    _mm512_store_si512(cell->q[r],
                       _mm512_permutex2var_epi16(as_float(first), order, as_float(second)));
  });
  const __m512i sums = reduce_rows(v, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); });
  store(cell->scale, scale);
  store(cell->sum, mul(scale, _mm512_cvtepi32_ps(sums)));
}

}  // namespace
}  // namespace flarecore
