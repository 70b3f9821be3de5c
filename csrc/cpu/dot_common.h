// Pieces of the quantised dot products that every ISA level shares. After its simd_*.h.
#pragma once

#include "cpu/packed_layout.h"

namespace flarecore {
namespace {

// For what sits in an inner loop: GCC leaves large functions out of line even if called once, and
// their vectors then go through memory (13% of a decode step).
#define FLARECORE_INLINE inline __attribute__((always_inline))

// body(Index<0>{}), ..., body(Index<N - 1>{}): unrolled by the language, so that arrays indexed by
// it live in registers whatever the optimiser thinks of the loop.
template <int I>
struct Index {
  constexpr operator int() const { return I; }  // NOLINT: stands for its value
};

template <int N, int I = 0, typename Body>
FLARECORE_INLINE void unrolled(Body&& body) {
  if constexpr (I < N) {
    body(Index<I>{});
    unrolled<N, I + 1>(body);
  }
}

// Sums of a group's codes per channel of a tile, over its first and second half: what the shift of
// an activation multiplies. Each fits 16 bits; the upper half of a word is 0.
struct CodeSums {
  alignas(64) int32_t half[2][kLanes];
};

// Activations of R rows, each at the current group.
template <int R>
struct RowBlock {
  const QuantizedGroup* row[R];

  RowBlock(const QuantizedGroup* x, int64_t stride) {
    for (int r = 0; r < R; ++r) {
      row[r] = x + r * stride;
      // Keeps each address in a register of its own: the compiler would gather them in vectors.
      __asm__("" : "+r"(row[r]));
    }
  }
};

// What every block of rows and tiles shares.
struct QuantizedJob {
  const PackedView* w;
  const QuantizedGroup* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  int64_t tile_end;      // of the call
  const uint8_t* next;   // what is read after it, or null
  int64_t tiles_ahead;   // between the tile worked on and the one asked for
};

// Rows (or groups) of the next block where `left` of them go into as few blocks of at most `most`
// as possible, all about as high: 5 rows are 3 + 2 rather than 4 + 1.
inline int next_block_rows(int left, int most) {
  const int blocks = (left + most - 1) / most;
  return (left + blocks - 1) / blocks;
}

// Scales of one group of a tile, per channel: a code q stands for q * scale + min. Only kQ6_K has
// other ones for its second half.
struct GroupScales {
  Vec scale, scale_second;
  Vec min, min_second;
};

// A zero point is a minimum in disguise: (q - zero) * scale = q * scale + (-zero * scale).
template <WeightFormat F, int kZero>
constexpr bool kHasMin = packed_layout(F).has_min || kZero != 0;

template <WeightFormat F, int kZero>
FLARECORE_INLINE GroupScales load_scales(const uint8_t* scales, const uint8_t* supers) {
  constexpr PackedLayout kLayout = packed_layout(F);
  GroupScales s;
  const auto half = [](const uint8_t* p) {
    return load_half(reinterpret_cast<const uint16_t*>(p));
  };
  if constexpr (F == WeightFormat::kQ6_K) {
    const Vec d = half(supers);
    s.scale = mul(d, load_int8(scales));
    s.scale_second = mul(d, load_int8(scales + kLanes));
  } else if constexpr (kLayout.super_bytes != 0) {
    s.scale = mul(half(supers), load_uint8(scales));
    s.min = mul(half(supers + 2 * kLanes), sub(set1(0.0f), load_uint8(scales + kLanes)));
  } else {
    s.scale = half(scales);
    if constexpr (kLayout.has_min) s.min = half(scales + 2 * kLanes);
  }
  if constexpr (kZero != 0) s.min = mul(s.scale, set1(-static_cast<float>(kZero)));
  if constexpr (F == WeightFormat::kQ6_K) {
    s.min_second = mul(s.scale_second, set1(-static_cast<float>(kZero)));
  }
  return s;
}

// acc += the group's contribution. `dot` is the integer sum of code * q over the group (kQ6_K: over
// its first half, `dot_second` over the second), as float.
template <WeightFormat F, int kZero>
FLARECORE_INLINE Vec add_group(Vec acc, const GroupScales& s, Vec dot, Vec dot_second,
                     const QuantizedGroup& x) {
  acc = fma(dot, mul(s.scale, set1(x.scale)), acc);
  if constexpr (F == WeightFormat::kQ6_K) {
    acc = fma(dot_second, mul(s.scale_second, set1(x.scale)), acc);
    acc = fma(s.min, set1(x.first_half_sum), acc);
    acc = fma(s.min_second, set1(x.sum - x.first_half_sum), acc);
  } else if constexpr (kHasMin<F, kZero>) {
    acc = fma(s.min, set1(x.sum), acc);
  }
  return acc;
}

}  // namespace
}  // namespace flarecore
