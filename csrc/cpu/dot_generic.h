// Quantised dot products of the generic level: one multiply at a time.
#pragma once

#include "cpu/dot_common.h"

namespace flarecore {
namespace {

constexpr int kDotRows = 4;
constexpr int kPanelGroups = 16;
constexpr int kPanelMinRows = 5;
constexpr int kRowStep = 16;

template <WeightFormat F>
constexpr int kPanelRows = 4;

template <WeightFormat F>
constexpr int kZeroPoint = packed_layout(F).zero;

// Decoded codes: 8 vectors of 4 inputs x channels, one byte each; kQ8_0 signed.
template <WeightFormat F>
FLARECORE_INLINE void decode_codes(const uint8_t* p, uint8_t* out) {
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

// dot_codes adds the shift to each activation instead.
inline void sum_codes(const uint8_t*, CodeSums*) {}

// Sum of codes * (q + shift) over vectors [begin, end), per channel.
template <WeightFormat F>
inline Vec dot_codes(const uint8_t* codes, const QuantizedGroup& x, int begin, int end) {
  int32_t sum[kLanes] = {};
  for (int j = begin; j < end; ++j) {
    for (int c = 0; c < kLanes; ++c) {
      for (int i = 0; i < 4; ++i) {
        const uint8_t byte = codes[(j * kLanes + c) * 4 + i];
        const int code = F == WeightFormat::kQ8_0 ? static_cast<int8_t>(byte) : byte;
        sum[c] += code * (x.q[4 * j + i] + x.shift);
      }
    }
  }
  return make_vec([&](int c) { return static_cast<float>(sum[c]); });
}

// Integer sums of R rows and two tiles over vectors [Begin, End) of decoded codes.
template <WeightFormat F, int R, int Begin, int End>
FLARECORE_INLINE void dot_panel(const uint8_t (*codes)[kGroupSize * kLanes], const CodeSums*,
                                const RowBlock<R>& x, int g, Vec (*dot)[2]) {
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < 2; ++t) dot[r][t] = dot_codes<F>(codes[t], x.row[r][g], Begin, End);
  }
}

// Integer sums of R rows over the packed codes of one group; kQ6_K: of its halves.
template <WeightFormat F, int R>
FLARECORE_INLINE void dot_group(const uint8_t* codes, const RowBlock<R>& x, int64_t g, Vec* dot,
                                Vec* dot_second) {
  constexpr bool kHalves = F == WeightFormat::kQ6_K;
  uint8_t decoded[kGroupSize * kLanes];
  decode_codes<F>(codes, decoded);
  for (int r = 0; r < R; ++r) {
    dot[r] = dot_codes<F>(decoded, x.row[r][g], 0, kHalves ? 4 : 8);
    if (kHalves) dot_second[r] = dot_codes<F>(decoded, x.row[r][g], 4, 8);
  }
}

}  // namespace
}  // namespace flarecore
