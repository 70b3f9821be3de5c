#include "model/quantize.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "cpu/half.h"

namespace flarecore {
namespace {

constexpr int kGroup = 32;
// Groups that are searched side by side: the compiler turns loops over them into vector code without
// changing the order of any group's own operations.
constexpr int kLanes = 8;
constexpr int kNumStarts = 9;
constexpr float kFirstSteps = 13.0f, kStepsApart = 0.5f;
// A smaller range has a scale that is 0 in float16.
constexpr float kSmallestRange = 1e-8f;

using Lanes = float[kLanes];

// To the nearest integer, halves to the even one, for |x| < 2^22.
inline float round_even(float x) { return (x + 12582912.0f) - 12582912.0f; }

inline float clamped_code(float steps) {
  return round_even(std::min(std::max(steps, 0.0f), 15.0f));
}

// Scale and minimum of kLanes groups, and the squared error they were judged by.
struct Fit {
  Lanes scale, min, error;
};

// kLanes groups with their minima taken out, so that a narrow range far from 0 keeps its digits.
class Q4Search {
 public:
  // lanes[i] points to the 32 values of group i.
  explicit Q4Search(const float* const* lanes) {
    for (int i = 0; i < kGroup; ++i) {
      for (int l = 0; l < kLanes; ++l) x_[i][l] = lanes[l][i];
    }
    for (int l = 0; l < kLanes; ++l) low_[l] = range_[l] = x_[0][l];
    for (int i = 1; i < kGroup; ++i) {
      for (int l = 0; l < kLanes; ++l) {
        low_[l] = std::min(low_[l], x_[i][l]);
        range_[l] = std::max(range_[l], x_[i][l]);
      }
    }
    for (int l = 0; l < kLanes; ++l) range_[l] -= low_[l];
    for (int i = 0; i < kGroup; ++i) {
      for (int l = 0; l < kLanes; ++l) y_[i][l] = x_[i][l] - low_[l];
    }
  }

  void run(GgmlGroup* out, int count) {
    Fit plain, best;
    for (int l = 0; l < kLanes; ++l) {
      plain.scale[l] = range_[l] / 15.0f;
      plain.min[l] = low_[l];
    }
    for (int l = 0; l < kLanes; ++l) best.error[l] = HUGE_VALF;
    for (int start = 0; start < kNumStarts; ++start) {
      Fit fit;
      search_from(kFirstSteps + kStepsApart * static_cast<float>(start), &fit);
      for (int l = 0; l < kLanes; ++l) {
        const bool better = fit.error[l] < best.error[l];
        best.scale[l] = better ? fit.scale[l] : best.scale[l];
        best.min[l] = better ? fit.min[l] : best.min[l];
        best.error[l] = better ? fit.error[l] : best.error[l];
      }
    }
    for (int l = 0; l < kLanes; ++l) {
      const bool found = best.error[l] < HUGE_VALF;
      best.scale[l] = found ? best.scale[l] : plain.scale[l];
      best.min[l] = found ? low_[l] + best.min[l] : plain.min[l];
    }
    float plain_codes[kGroup][kLanes], best_codes[kGroup][kLanes];
    finish(&plain, plain_codes);
    finish(&best, best_codes);
    for (int l = 0; l < count; ++l) {
      const bool searched = best.error[l] < plain.error[l];
      store(searched ? best : plain, searched ? best_codes : plain_codes, l, out + l);
    }
  }

 private:
  void search_from(float steps, Fit* fit) const {
    Lanes inverse, zero{};
    for (int l = 0; l < kLanes; ++l) {
      inverse[l] = range_[l] < kSmallestRange ? 0.0f : steps / range_[l];
    }
    float codes[kGroup][kLanes];
    set_codes(zero, inverse, codes);
    least_squares(codes, fit);
    for (int l = 0; l < kLanes; ++l) inverse[l] = fit->scale[l] > 0 ? 1.0f / fit->scale[l] : 0.0f;
    set_codes(fit->min, inverse, codes);
    least_squares(codes, fit);
    Lanes error{};
    for (int i = 0; i < kGroup; ++i) {
      for (int l = 0; l < kLanes; ++l) {
        const float difference = y_[i][l] - (codes[i][l] * fit->scale[l] + fit->min[l]);
        error[l] += difference * difference;
      }
    }
    for (int l = 0; l < kLanes; ++l) fit->error[l] = fit->scale[l] > 0 ? error[l] : HUGE_VALF;
  }

  void set_codes(const Lanes& min, const Lanes& inverse, float (*codes)[kLanes]) const {
    for (int i = 0; i < kGroup; ++i) {
      for (int l = 0; l < kLanes; ++l) {
        codes[i][l] = clamped_code((y_[i][l] - min[l]) * inverse[l]);
      }
    }
  }

  // Scale and minimum with the smallest squared error for given codes; scale 0 if they are all equal.
  void least_squares(const float (*codes)[kLanes], Fit* fit) const {
    Lanes sum{}, squares{}, values{}, products{};  // the first two are exact
    for (int i = 0; i < kGroup; ++i) {
      for (int l = 0; l < kLanes; ++l) {
        sum[l] += codes[i][l];
        squares[l] += codes[i][l] * codes[i][l];
        values[l] += y_[i][l];
        products[l] += codes[i][l] * y_[i][l];
      }
    }
    for (int l = 0; l < kLanes; ++l) {
      const float determinant = 32.0f * squares[l] - sum[l] * sum[l];
      const float divisor = determinant > 0 ? determinant : 1.0f;
      const float scale = (32.0f * products[l] - sum[l] * values[l]) / divisor;
      fit->scale[l] = determinant > 0 ? scale : 0.0f;
      fit->min[l] = (values[l] - fit->scale[l] * sum[l]) / 32.0f;
    }
  }

  // Rounds scale and minimum to float16, takes the nearest codes and measures the error.
  void finish(Fit* fit, float (*codes)[kLanes]) const {
    Lanes inverse;
    for (int l = 0; l < kLanes; ++l) {
      fit->scale[l] = float_from_half(half_from_float(fit->scale[l]));
      fit->min[l] = float_from_half(half_from_float(fit->min[l]));
      inverse[l] = fit->scale[l] > 0 ? 1.0f / fit->scale[l] : 0.0f;
      fit->error[l] = 0.0f;
    }
    for (int i = 0; i < kGroup; ++i) {
      for (int l = 0; l < kLanes; ++l) {
        codes[i][l] = clamped_code((x_[i][l] - fit->min[l]) * inverse[l]);
        const float difference = x_[i][l] - (codes[i][l] * fit->scale[l] + fit->min[l]);
        fit->error[l] += difference * difference;
      }
    }
  }

  static void store(const Fit& fit, const float (*codes)[kLanes], int lane, GgmlGroup* out) {
    *out = GgmlGroup{};
    for (int i = 0; i < kGroup; ++i) out->codes[i] = static_cast<uint8_t>(codes[i][lane]);
    out->has_min = true;
    out->d = half_from_float(fit.scale[lane]);
    out->m = half_from_float(fit.min[lane]);
    out->scale[0] = out->scale[1] = fit.scale[lane];
    out->min = fit.min[lane];
  }

  Lanes x_[kGroup], y_[kGroup], low_, range_;
};

void quantize_q4(const float* values, int64_t num_groups, GgmlGroup* out) {
  for (int64_t begin = 0; begin < num_groups; begin += kLanes) {
    const int count = static_cast<int>(std::min<int64_t>(kLanes, num_groups - begin));
    const float* lanes[kLanes];  // lanes without a group repeat the last one
    for (int l = 0; l < kLanes; ++l) {
      lanes[l] = values + (begin + std::min(l, count - 1)) * kGroup;
    }
    Q4Search(lanes).run(out + begin, count);
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

double QuantizationError::relative() const {
  return value_squares > 0 ? std::sqrt(error_squares / value_squares) : 0.0;
}

void quantize_groups(Quantize quantize, const float* values, int64_t num_groups, GgmlGroup* out) {
  if (quantize == Quantize::kQ4) {
    quantize_q4(values, num_groups, out);
  } else {
    quantize_q8(values, num_groups, out);
  }
}

}  // namespace flarecore
