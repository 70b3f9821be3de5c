// Arithmetic of the sampler that must give the same bits wherever it runs.
//
// Weights are 64-bit integers in units of 2^-42: integer sums have no order, so neither the split
// over blocks nor the order in which they arrive changes a bit. 2^18 weights of 1 stay below 2^60.
// The same definitions as kernels/sampling_math.py.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/host_device.h"
#include "common/philox.h"
#include "cpu/half.h"
#include "cuda/sampler_args.h"

namespace flarecore::cuda {

constexpr float kOne = 4398046511104.0f;  // 2^42
// Stands for the weight of a NaN: whatever else a chunk of 1024 holds, its sum is negative.
constexpr int64_t kNanWeight = -(int64_t{1} << 52);
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

FLARECORE_DEVICE float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

FLARECORE_DEVICE uint32_t float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

FLARECORE_DEVICE bool is_nan(float x) { return x != x; }

// exp(x) for x <= 0 to about one unit in the last place, 0 below -87; NaN stays NaN. Only fused
// multiply-adds and exact steps: Taylor's polynomial of degree 7 on |r| <= ln(2) / 2, times 2^k.
FLARECORE_DEVICE float exp_nonpositive(float x) {
  if (is_nan(x)) return x;
  if (x < -87.0f) return 0.0f;
  const float k = floorf(fmaf(x, 1.4426950408889634f, 0.5f));
  // ln 2 in two parts: k times the first is exact for every k that occurs.
  float r = fmaf(k, -0.693145751953125f, x);
  r = fmaf(k, -1.428606820309417e-06f, r);
  float p = fmaf(r, 1.0f / 5040.0f, 1.0f / 720.0f);
  p = fmaf(p, r, 1.0f / 120.0f);
  p = fmaf(p, r, 1.0f / 24.0f);
  p = fmaf(p, r, 1.0f / 6.0f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  return p * bits_to_float(static_cast<uint32_t>(static_cast<int32_t>(k) + 127) << 23);
}

// exp((x - top) * inverse) as an integer, kNanWeight where that is NaN.
FLARECORE_DEVICE int64_t fixed_weight(float x, float top, float inverse) {
  const float weight = exp_nonpositive((x - top) * inverse);
  return is_nan(weight) ? kNanWeight : static_cast<int64_t>(weight * kOne);
}

// A chunk of nothing but -inf is measured from 0, so that its weights are 0 and not NaN.
FLARECORE_DEVICE float weight_origin(float top) { return top == kNegInf ? 0.0f : top; }

// A sum relative to its chunk's largest logit -> relative to the row's.
FLARECORE_DEVICE int64_t rescaled(int64_t sum, float chunk_top, float row_top, float inverse) {
  const float scale = exp_nonpositive((chunk_top - weight_origin(row_top)) * inverse);
  if (is_nan(scale)) return 0;
  return static_cast<int64_t>(static_cast<double>(sum) * static_cast<double>(scale));
}

// 1 / temperature, 1 for greedy rows; bounded, so that 0 times it is 0.
FLARECORE_DEVICE float inverse_temperature(float temperature) {
  const float inverse = 1.0f / (temperature > 0.0f ? temperature : 1.0f);
  return inverse < 1e30f ? inverse : 1e30f;
}

// Smallest integer amount that exceeds u * total: amount > u * total <=> amount >= this.
FLARECORE_DEVICE int64_t draw_goal(float u, int64_t total) {
  return static_cast<int64_t>(floor(static_cast<double>(u) * static_cast<double>(total))) + 1;
}

// float32 -> uint32 with the same order; -0 and 0 are equal.
FLARECORE_DEVICE uint32_t order_key(float x) {
  const uint32_t bits = float_to_bits(x == 0.0f ? 0.0f : x);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

FLARECORE_DEVICE float order_value(uint32_t key) {
  return bits_to_float((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

// One integer that orders like (logit ascending, id descending), so that the tokens that top-k,
// top-p and min-p keep are those from some key on.
FLARECORE_DEVICE uint64_t pack_key(float x, int32_t id) {
  return (static_cast<uint64_t>(order_key(x)) << kIdBits) | (kMaxVocabSize - 1 - id);
}

FLARECORE_DEVICE int32_t packed_id(uint64_t key) {
  return static_cast<int32_t>(kMaxVocabSize - 1 - (key & (kMaxVocabSize - 1)));
}

// IEEE binary16 and bfloat16 as they lie in memory.
struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

FLARECORE_DEVICE float to_float(float x) { return x; }
FLARECORE_DEVICE float to_float(Bfloat16 x) {
  return bits_to_float(static_cast<uint32_t>(x.bits) << 16);
}
FLARECORE_DEVICE float to_float(Half x) {
#ifdef __CUDACC__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
#else
  return float_from_half(x.bits);
#endif
}

}  // namespace flarecore::cuda
