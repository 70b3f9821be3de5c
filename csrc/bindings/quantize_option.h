// The option `quantize` and what it changed, in Python's terms.
#pragma once

#include <string>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "common/check.h"
#include "model/tensor_quantization.h"

namespace flarecore {

inline Quantize parse_quantize(const std::string& name) {
  for (const Quantize quantize : {Quantize::kNone, Quantize::kQ4, Quantize::kQ8}) {
    if (name == quantize_name(quantize)) return quantize;
  }
  fail(ErrorKind::kConfig, "quantize must be \"none\", \"q4\" or \"q8\", got \"", name, "\"");
}

// (name, type in the file, format, values, squares of errors, squares of values, largest error).
inline pybind11::list quantization_list(const std::vector<TensorQuantization>& tensors) {
  pybind11::list out;
  for (const TensorQuantization& t : tensors) {
    out.append(pybind11::make_tuple(t.name, t.source, quantize_name(t.quantize),
                                    t.error.num_values, t.error.error_squares,
                                    t.error.value_squares, t.error.max_error));
  }
  return out;
}

}  // namespace flarecore
