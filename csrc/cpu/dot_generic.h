// Quantised dot products of the generic level: one multiply at a time.
#pragma once

#include "cpu/dot_common.h"

namespace flarecore {
namespace {

constexpr int kDotRows = 4;

// codes[input][channel] of a group; kQ8_0 signed.
template <WeightFormat F>
inline void unpack_group(const uint8_t* p, int16_t (*codes)[kLanes]) {
  constexpr int kBits = packed_layout(F).bits;
  constexpr int kVectorBytes = 4 * kLanes;
  for (int j = 0; j < 8; ++j) {
    for (int c = 0; c < kLanes; ++c) {
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * c + i;
        int code;
        if constexpr (kBits == 8) {
          code = static_cast<int8_t>(p[j * kVectorBytes + at]);
        } else {
          code = (p[j % 4 * kVectorBytes + at] >> (j < 4 ? 0 : 4)) & 15;
          if (kBits == 5) code |= ((p[4 * kVectorBytes + at] >> j) & 1) << 4;
          if (kBits == 6) code |= ((p[(4 + j / 4) * kVectorBytes + at] >> (j % 4 * 2)) & 3) << 4;
        }
        codes[4 * j + i][c] = static_cast<int16_t>(code);
      }
    }
  }
}

template <WeightFormat F, int R>
inline void dot_tile(const uint8_t* tile, int64_t num_cols, const ActivationRows<R>& x, Vec* acc) {
  constexpr int kZero = packed_layout(F).zero;
  for (int r = 0; r < R; ++r) acc[r] = set1(0.0f);
  for_each_group<F>(tile, num_cols, [&](const uint8_t* codes, const uint8_t* scales,
                                        const uint8_t* supers, int64_t g) {
    int16_t w[kGroupSize][kLanes];
    unpack_group<F>(codes, w);
    const GroupScales s = load_scales<F, kZero>(scales, supers);
    for (int r = 0; r < R; ++r) {
      const int8_t* q = x.q[r] + g * kGroupSize;
      int32_t sums[2][kLanes] = {};
      for (int i = 0; i < kGroupSize; ++i) {
        for (int c = 0; c < kLanes; ++c) sums[i / 16][c] += w[i][c] * q[i];
      }
      const auto as_float = [&](int c) {
        return static_cast<float>(F == WeightFormat::kQ6_K ? sums[0][c] : sums[0][c] + sums[1][c]);
      };
      const Vec second = make_vec([&](int c) { return static_cast<float>(sums[1][c]); });
      acc[r] = add_group<F, kZero>(acc[r], s, make_vec(as_float), second, x.scale[r][g],
                                   x.sums[r] + 2 * g);
    }
  });
}

}  // namespace
}  // namespace flarecore
