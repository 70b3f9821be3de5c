#include "model/quantize.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "cpu/half.h"

namespace flarecore {
namespace {

constexpr int kGroup = static_cast<int>(kGroupSize);

// To the nearest integer, halves to the even one, for |x| < 2^22.
inline float round_even(float x) { return (x + 12582912.0f) - 12582912.0f; }

// A group with a scale and a minimum of float16, and the nearest codes.
struct Q4Candidate {
  uint16_t d, m;
  float scale, min, error;
  float codes[kGroup];

  Q4Candidate(const float* x, float wanted_scale, float wanted_min)
      : d(half_from_float(wanted_scale)),
        m(half_from_float(wanted_min)),
        scale(float_from_half(d)),
        min(float_from_half(m)),
        error(0.0f) {
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    float squares[kGroup];
    for (int i = 0; i < kGroup; ++i) {
      codes[i] = round_even(std::min(std::max((x[i] - min) * inverse, 0.0f), 15.0f));
      const float difference = x[i] - (codes[i] * scale + min);
      squares[i] = difference * difference;
    }
    for (int i = 0; i < kGroup; ++i) error += squares[i];
  }

  void store(GgmlGroup* out) const {
    *out = GgmlGroup{};
    for (int i = 0; i < kGroup; ++i) out->codes[i] = static_cast<uint8_t>(codes[i]);
    out->has_min = true;
    out->d = d;
    out->m = m;
    out->scale[0] = out->scale[1] = scale;
    out->min = min;
  }
};

void quantize_q4(const KernelTable& kernels, const float* values, int64_t num_groups,
                 GgmlGroup* out) {
  constexpr int64_t kRun = 64;
  float scales[kRun], mins[kRun];
  for (int64_t begin = 0; begin < num_groups; begin += kRun) {
    const int64_t count = std::min(kRun, num_groups - begin);
    kernels.search_q4(values + begin * kGroup, count, scales, mins);
    for (int64_t g = 0; g < count; ++g) {
      const float* x = values + (begin + g) * kGroup;
      float low = x[0], high = x[0];
      for (int i = 1; i < kGroup; ++i) {
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
      }
      const Q4Candidate plain(x, (high - low) / 15.0f, low), searched(x, scales[g], mins[g]);
      (searched.error < plain.error ? searched : plain).store(out + begin + g);
    }
  }
}

void quantize_q8(const float* values, int64_t num_groups, GgmlGroup* out) {
  for (int64_t g = 0; g < num_groups; ++g, values += kGroup, ++out) {
    float largest = 0.0f;
    for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::fabs(values[i]));
    *out = GgmlGroup{};
    out->zero = 128;
    out->d = half_from_float(largest / 127.0f);
    const float scale = float_from_half(out->d);
    out->scale[0] = out->scale[1] = scale;
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int i = 0; i < kGroup; ++i) {
      const float code = std::min(std::max(values[i] * inverse, -127.0f), 127.0f);
      out->codes[i] = static_cast<uint8_t>(static_cast<int>(round_even(code)) + 128);
    }
  }
}

}  // namespace

GgmlType quantized_type(Quantize quantize) {
  check(quantize != Quantize::kNone, ErrorKind::kInternal, "no quantisation has no type");
  return quantize == Quantize::kQ4 ? GgmlType::kQ4_1 : GgmlType::kQ8_0;
}

const char* quantize_name(Quantize quantize) {
  return quantize == Quantize::kQ4 ? "q4" : quantize == Quantize::kQ8 ? "q8" : "none";
}

float quantize_limit(Quantize quantize) {
  return quantize == Quantize::kQ8 ? 127.0f * 65504.0f : 65504.0f;
}

void QuantizationError::measure(const float* values, const float* restored, int64_t count) {
  num_values += count;
  for (int64_t i = 0; i < count; ++i) {
    const double value = values[i], error = restored[i] - value;
    error_squares += error * error;
    value_squares += value * value;
    max_error = std::max(max_error, std::fabs(error));
  }
}

void QuantizationError::add(const QuantizationError& other) {
  num_values += other.num_values;
  error_squares += other.error_squares;
  value_squares += other.value_squares;
  max_error = std::max(max_error, other.max_error);
  if (first_bad_row < 0) first_bad_row = other.first_bad_row;
}

void quantize_groups(Quantize quantize, const KernelTable& kernels, const float* values,
                     int64_t num_groups, GgmlGroup* out) {
  if (quantize == Quantize::kQ4) {
    quantize_q4(kernels, values, num_groups, out);
  } else {
    quantize_q8(values, num_groups, out);
  }
}

}  // namespace flarecore
