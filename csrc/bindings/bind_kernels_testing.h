// Shared by the two files that bind the kernels for tests and benchmarks.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>

#include "cpu/cpu_isa.h"
#include "model/ggml_types.h"

namespace flarecore {

template <typename T>
using Array = pybind11::array_t<T, pybind11::array::c_style | pybind11::array::forcecast>;
using FloatArray = Array<float>;

// Raise UnsupportedError for a level this machine lacks and ConfigError for an unknown type.
CpuIsa isa_of_name(const std::string& name);
const KernelTable& table_of(const std::string& isa);
GgmlType ggml_type_of_name(const std::string& name);

// PackedMatrix, ThreadPool, dequantize and the timed loops of the benchmarks.
void bind_matrix_testing(pybind11::module_& testing);

// The kernels for many rows.
void bind_blocks_testing(pybind11::module_& testing);

}  // namespace flarecore
