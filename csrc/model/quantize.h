// Quantisation of float weights at load, into formats that the kernels have anyway.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "model/ggml_types.h"

namespace flarecore {

enum class Quantize {
  kNone,
  kQ4,  // Q4_1: 4-bit codes, float16 scale and minimum per group of 32
  kQ8,  // Q8_0: 8-bit codes in [-127, 127], float16 scale per group of 32
};

// The tensor type whose format the weights get; kNone has none.
GgmlType quantized_type(Quantize quantize);
const char* quantize_name(Quantize quantize);  // "none", "q4", "q8"

// Magnitudes beyond this do not fit the float16 numbers of a group.
float quantize_limit(Quantize quantize);

// What quantisation changed in some values.
struct QuantizationError {
  int64_t num_values = 0;
  double error_squares = 0.0;  // sum of (restored - value)^2
  double value_squares = 0.0;  // sum of value^2
  double max_error = 0.0;      // largest |restored - value|
  int64_t first_bad_row = -1;  // first row with a value that cannot be quantised; -1: none

  void measure(const float* values, const float* restored, int64_t count);
  void add(const QuantizationError& other);
};

// values (32 * num_groups) float32, finite and within quantize_limit, to out (num_groups).
//
// Q8: scale = float16(max |x| / 127), code = round(x / scale) to even, within +-127. Q4: the first
// candidate spans [min, max] of the group in 15 steps. Nine more start from 13, 13.5, …, 17 steps
// and are fitted to the values by least squares, twice; the one with the smallest squared error
// stays. Of it and the first, rounded to float16 and given the nearest codes, the better one is
// taken, so that a group is never worse than by its minimum and maximum.
//
// Every group is computed in one order of float32 operations, on every CPU level.
void quantize_groups(Quantize quantize, const KernelTable& kernels, const float* values,
                     int64_t num_groups, GgmlGroup* out);

}  // namespace flarecore
