// Pieces of the quantised dot products that every ISA level shares. After its simd_*.h.
#pragma once

#include "cpu/packed_layout.h"

namespace flarecore {
namespace {

// Activations of R rows, each from its first group.
template <int R>
struct ActivationRows {
  const int8_t* q[R];
  const float* scale[R];
  const float* sums[R];
};

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
inline GroupScales load_scales(const uint8_t* scales, const uint8_t* supers) {
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

// acc += the group's contribution. `sum` is the integer sum of code * x over the group (kQ6_K: over
// its first half, `sum_second` over the second), as float.
template <WeightFormat F, int kZero>
inline Vec add_group(Vec acc, const GroupScales& s, Vec sum, Vec sum_second, float x_scale,
                     const float* x_sums) {
  acc = fma(sum, mul(s.scale, set1(x_scale)), acc);
  if constexpr (F == WeightFormat::kQ6_K) {
    acc = fma(sum_second, mul(s.scale_second, set1(x_scale)), acc);
    acc = fma(s.min, set1(x_sums[1]), acc);
    acc = fma(s.min_second, set1(x_sums[0] - x_sums[1]), acc);
  } else if constexpr (kHasMin<F, kZero>) {
    acc = fma(s.min, set1(x_sums[0]), acc);
  }
  return acc;
}

// Walks the groups of a tile: calls body(codes, scales, supers, group) in ascending order.
template <WeightFormat F, typename Body>
inline void for_each_group(const uint8_t* tile, int64_t num_cols, Body body) {
  constexpr PackedLayout kLayout = packed_layout(F);
  constexpr int kGroupsPerSuper = kSuperSize / kGroupSize;
  const uint8_t* codes = tile;
  const uint8_t* scales = tile + scales_offset(kLayout, kLanes, num_cols);
  const uint8_t* supers = tile + supers_offset(kLayout, kLanes, num_cols);
  const int64_t groups = num_cols / kGroupSize;
  for (int64_t g = 0; g < groups; ++g) {
    body(codes, scales, supers + g / kGroupsPerSuper * kLayout.super_bytes * kLanes, g);
    codes += kLayout.code_bytes * kLanes;
    scales += kLayout.scale_bytes * kLanes;
  }
}

}  // namespace
}  // namespace flarecore
