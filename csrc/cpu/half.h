// Scalar float16 and bfloat16 conversions.
//
// Functions are static: a file compiled for one ISA level must not lend its copy to another file.
#pragma once

#include <cstdint>
#include <cstring>

namespace flarecore {

static inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

static inline uint32_t bits_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Exact. IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits.
static inline float float_from_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_from_bits(sign | 0x7f800000u | (magnitude << 13));
  if (magnitude >= 0x0400u) return float_from_bits(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;  // exact: 10 bits
  return float_from_bits(sign | bits_from_float(subnormal));
}

// Round to nearest even; what overflows becomes +-65504, NaN stays NaN.
static inline uint16_t half_from_float(float value) {
  const uint32_t bits = bits_from_float(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477fe000u) return sign | 0x7bffu;  // >= 65504
  if (magnitude < 0x38800000u) {                        // < 2^-14: subnormal or zero
    // Adding 0.5 puts the wanted bits at the bottom of the fraction, rounded to nearest even.
    const float shifted = float_from_bits(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(bits_from_float(shifted) - 0x3f000000u);
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return sign | static_cast<uint16_t>((magnitude + 0xfffu + odd - (112u << 23)) >> 13);
}

static inline float float_from_bfloat16(uint16_t b) {
  return float_from_bits(static_cast<uint32_t>(b) << 16);
}

}  // namespace flarecore
