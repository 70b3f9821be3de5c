// Shared by the bindings that test the products of packed matrices.
#pragma once

#include <string>

#include "bindings/bind_kernels_testing.h"
#include "common/check.h"
#include "common/thread_pool.h"
#include "model/packed_matrix.h"

namespace flarecore {

struct Bytes {
  const uint8_t* data;
  int64_t size;
};

inline Bytes bytes_of(const pybind11::buffer_info& info) {
  return {static_cast<const uint8_t*>(info.ptr), static_cast<int64_t>(info.size * info.itemsize)};
}

inline int64_t bytes_of_values(GgmlType type, int64_t num_values) {
  const GgmlTypeInfo& info = ggml_type_info(type);
  return num_values / info.block_values * info.block_size_bytes;
}

// A packed matrix with the level that reads it.
struct TestMatrix {
  PackedMatrix matrix;
  const KernelTable* table;

  TestMatrix(const std::string& type_name, const pybind11::buffer& data, int64_t num_rows,
             int64_t num_cols, const std::string& isa, const std::string& mode, ThreadPool* pool)
      : table(&table_of(isa)) {
    const GgmlType type = ggml_type_of_name(type_name);
    check(mode == "quantized" || mode == "float32", ErrorKind::kConfig,
          "mode must be 'quantized' or 'float32', got '", mode, "'");
    const pybind11::buffer_info info = data.request();
    const Bytes bytes = bytes_of(info);
    check(bytes.size >= bytes_of_values(type, num_rows * num_cols), ErrorKind::kConfig, "got ",
          bytes.size, " bytes for ", num_rows, " x ", num_cols, " values of ", type_name);
    pybind11::gil_scoped_release nogil;
    matrix = PackedMatrix::pack({type, bytes.data, num_rows, num_cols},
                                mode == "float32" ? PackMode::kFloat32 : PackMode::kQuantized,
                                table->tile, pool);
  }
};

// Activations as the matrix's format wants them.
struct Inputs {
  const float* x;
  int num_rows;
  std::vector<QuantizedGroup> quantized;

  Inputs(const TestMatrix& m, const FloatArray& array)
      : x(array.data()), num_rows(static_cast<int>(array.shape(0))) {
    if (!is_quantized(m.matrix.view().format)) return;
    const int64_t cols = m.matrix.num_cols(), groups = cols / kGroupSize;
    quantized.resize(static_cast<size_t>(num_rows * groups));
    for (int r = 0; r < num_rows; ++r) {
      m.table->quantize_row(x + r * cols, cols, &quantized[static_cast<size_t>(r * groups)]);
    }
  }
};

}  // namespace flarecore
