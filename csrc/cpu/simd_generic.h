// Vector type of the generic level: plain loops over 8 lanes that any compiler and CPU can take.
#pragma once

#include <cstdint>

#include "cpu/half.h"

namespace flarecore {
namespace {

constexpr int kLanes = 8;

struct Vec {
  float v[kLanes];
};
struct Mask {
  bool v[kLanes];
};

template <typename F>
inline Vec make_vec(F f) {
  Vec out;
  for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
  return out;
}

inline Vec set1(float x) {
  return make_vec([&](int) { return x; });
}
inline Vec load(const float* p) {
  return make_vec([&](int i) { return p[i]; });
}
inline void store(float* p, const Vec& a) {
  for (int i = 0; i < kLanes; ++i) p[i] = a.v[i];
}
// The first n lanes, the others `fill`.
inline Vec load_first(const float* p, int n, float fill) {
  return make_vec([&](int i) { return i < n ? p[i] : fill; });
}
inline void store_first(float* p, const Vec& a, int n) {
  for (int i = 0; i < n && i < kLanes; ++i) p[i] = a.v[i];
}
inline Vec load_half(const uint16_t* p) {
  return make_vec([&](int i) { return float_from_half(p[i]); });
}
inline Vec load_half_first(const uint16_t* p, int n) {
  return make_vec([&](int i) { return i < n ? float_from_half(p[i]) : 0.0f; });
}
inline Vec load_bfloat16(const uint16_t* p) {
  return make_vec([&](int i) { return float_from_bfloat16(p[i]); });
}
inline Vec load_uint8(const uint8_t* p) {
  return make_vec([&](int i) { return static_cast<float>(p[i]); });
}
inline Vec load_int8(const uint8_t* p) {
  return make_vec([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
}
inline void store_half(uint16_t* p, const Vec& a) {
  for (int i = 0; i < kLanes; ++i) p[i] = half_from_float(a.v[i]);
}

inline Vec add(const Vec& a, const Vec& b) {
  return make_vec([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec sub(const Vec& a, const Vec& b) {
  return make_vec([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec mul(const Vec& a, const Vec& b) {
  return make_vec([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec div(const Vec& a, const Vec& b) {
  return make_vec([&](int i) { return a.v[i] / b.v[i]; });
}
// a * b + c. Not fused at this level: a fused one in software would be far slower.
inline Vec fma(const Vec& a, const Vec& b, const Vec& c) {
  return make_vec([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
// The second operand where one is NaN, as the x86 instructions do.
inline Vec max(const Vec& a, const Vec& b) {
  return make_vec([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec min(const Vec& a, const Vec& b) {
  return make_vec([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec abs(const Vec& a) {
  return make_vec([&](int i) { return float_from_bits(bits_from_float(a.v[i]) & 0x7fffffffu); });
}
inline Mask less(const Vec& a, const Vec& b) {
  Mask out;
  for (int i = 0; i < kLanes; ++i) out.v[i] = a.v[i] < b.v[i];
  return out;
}
inline bool all(const Mask& m) {
  for (int i = 0; i < kLanes; ++i) {
    if (!m.v[i]) return false;
  }
  return true;
}
// Lanes [begin, end).
inline Mask lanes_between(int begin, int end) {
  Mask out;
  for (int i = 0; i < kLanes; ++i) out.v[i] = i >= begin && i < end;
  return out;
}
inline Vec select(const Mask& m, const Vec& yes, const Vec& no) {
  return make_vec([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}
// p * 2^n where the low bits of `t` hold n (math.inc), by adding n to the exponent.
inline Vec scale_by_power(const Vec& p, const Vec& t) {
  return make_vec([&](int i) {
    return float_from_bits(bits_from_float(p.v[i]) + (bits_from_float(t.v[i]) << 23));
  });
}

inline float reduce_add(const Vec& a) {
  return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
inline float reduce_max(const Vec& a) {
  float m = a.v[0];
  for (int i = 1; i < kLanes; ++i) m = m > a.v[i] ? m : a.v[i];
  return m;
}
inline float square_root(float x) { return __builtin_sqrtf(x); }

// Adding 1.5 * 2^23 leaves the rounded integer in the low bits; also for NaN, without a trap.
inline int32_t round_one(float x) {
  return static_cast<int32_t>(bits_from_float(x + 12582912.0f) - 0x4b400000u);
}

// Rounds 32 values to nearest even, each within 128 of `shift`, and stores what lies between;
// sums[0] over all that is stored, sums[1] over the first 16.
inline void round_group(const Vec* x, int32_t shift, int8_t* q, int32_t* sums) {
  sums[0] = sums[1] = 0;
  for (int i = 0; i < 32; ++i) {
    if (i == 16) sums[1] = sums[0];
    const uint32_t rounded = static_cast<uint32_t>(round_one(x[i / kLanes].v[i % kLanes]));
    q[i] = static_cast<int8_t>((rounded - static_cast<uint32_t>(shift)) & 0xff);
    sums[0] += q[i];
  }
}

// 16-bit integers, two to a lane, and the sums of their products, 32 bits a lane.
struct Words {
  int16_t v[2 * kLanes];
};
struct WordSums {
  int32_t v[kLanes];
};
inline WordSums zero_sums() { return {}; }
inline Words load_words(const int16_t* p) {
  Words out;
  for (int i = 0; i < 2 * kLanes; ++i) out.v[i] = p[i];
  return out;
}
// The same two in every lane.
inline Words set1_words(const int16_t* two) {
  Words out;
  for (int i = 0; i < 2 * kLanes; ++i) out.v[i] = two[i % 2];
  return out;
}
// Adds both products of a lane to its sum.
inline WordSums add_products(const WordSums& sum, const Words& a, const Words& b) {
  WordSums out;
  for (int i = 0; i < kLanes; ++i) {
    // Wraps like the instructions: what is no number, or far below any, may leave the bounds.
    const uint32_t products = static_cast<uint32_t>(a.v[2 * i] * b.v[2 * i]) +
                              static_cast<uint32_t>(a.v[2 * i + 1] * b.v[2 * i + 1]);
    out.v[i] = static_cast<int32_t>(static_cast<uint32_t>(sum.v[i]) + products);
  }
  return out;
}
inline Vec to_float(const WordSums& sum) {
  return make_vec([&](int i) { return static_cast<float>(sum.v[i]); });
}
// Rounds to nearest even; each fits 16 bits. NaN gives anything.
inline void store_rounded(int16_t* p, const Vec& a) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int16_t>(round_one(a.v[i]));
}

}  // namespace
}  // namespace flarecore

#include "cpu/simd_reduce_each.h"
