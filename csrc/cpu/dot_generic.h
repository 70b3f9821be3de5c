// Quantised dot products of the generic level: one multiply at a time.
#pragma once

#include "cpu/dot_common.h"

namespace flarecore {
namespace {

constexpr int kDotRows = 4;
constexpr int kPanelGroups = 16;
constexpr int kPanelMinRows = 5;
constexpr int kRowStep = 16;
constexpr int kPrefetchAhead = 0;

template <WeightFormat F>
constexpr int kPanelRows = 4;

template <WeightFormat F>
constexpr int kZeroPoint = packed_layout(F).zero;

// Decoded codes: 8 vectors of 4 inputs x channels, one byte each; kQ8_0 signed.
template <WeightFormat F>
inline void decode_codes(const uint8_t* p, uint8_t* out) {
  constexpr int kBits = packed_layout(F).bits;
  constexpr int kVectorBytes = 4 * kLanes;
  for (int j = 0; j < 8; ++j) {
    for (int at = 0; at < kVectorBytes; ++at) {
      int code = p[j % (kBits == 8 ? 8 : 4) * kVectorBytes + at];
      if (kBits != 8) code = (code >> (j < 4 ? 0 : 4)) & 15;
      if (kBits == 5) code |= ((p[4 * kVectorBytes + at] >> j) & 1) << 4;
      if (kBits == 6) code |= ((p[(4 + j / 4) * kVectorBytes + at] >> (j % 4 * 2)) & 3) << 4;
      out[j * kVectorBytes + at] = static_cast<uint8_t>(code);
    }
  }
}

// Sum of codes * q over vectors [begin, end), per channel.
template <WeightFormat F>
inline Vec dot_codes(const uint8_t* codes, const int8_t* q, int begin, int end) {
  int32_t sum[kLanes] = {};
  for (int j = begin; j < end; ++j) {
    for (int c = 0; c < kLanes; ++c) {
      for (int i = 0; i < 4; ++i) {
        const uint8_t byte = codes[(j * kLanes + c) * 4 + i];
        const int code = F == WeightFormat::kQ8_0 ? static_cast<int8_t>(byte) : byte;
        sum[c] += code * q[4 * j + i];
      }
    }
  }
  return make_vec([&](int c) { return static_cast<float>(sum[c]); });
}

// Integer sums of R rows and two tiles over vectors [Begin, End) of decoded codes.
template <WeightFormat F, int R, int Begin, int End>
inline void dot_panel(const uint8_t (*codes)[kGroupSize * kLanes], const RowBlock<R>& x, int g,
                      Vec (*dot)[2]) {
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < 2; ++t) dot[r][t] = dot_codes<F>(codes[t], x.row[r][g].q, Begin, End);
  }
}

template <WeightFormat F, int R>
inline void dot_tile(const uint8_t* tile, int64_t num_cols, const RowBlock<R>& x, Vec* acc) {
  for (int r = 0; r < R; ++r) acc[r] = set1(0.0f);
  for_each_group<F>(tile, num_cols, [&](const uint8_t* codes, const uint8_t* scales,
                                        const uint8_t* supers, int64_t g) {
    uint8_t decoded[kGroupSize * kLanes];
    decode_codes<F>(codes, decoded);
    const GroupScales s = load_scales<F, kZeroPoint<F>>(scales, supers);
    constexpr bool kHalves = F == WeightFormat::kQ6_K;
    for (int r = 0; r < R; ++r) {
      const QuantizedGroup& group = x.row[r][g];
      const Vec dot = dot_codes<F>(decoded, group.q, 0, kHalves ? 4 : 8);
      const Vec second = kHalves ? dot_codes<F>(decoded, group.q, 4, 8) : set1(0.0f);
      acc[r] = add_group<F, kZeroPoint<F>>(acc[r], s, dot, second, group);
    }
  });
}

}  // namespace
}  // namespace flarecore
