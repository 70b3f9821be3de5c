// Bindings of the kernels for many rows, for tests (`_C.testing`).
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "bindings/test_matrix.h"
#include "common/aligned_buffer.h"
#include "model/decoder.h"
#include "model/linear.h"

namespace py = pybind11;

namespace flarecore {
namespace {

// Rows quantised in the blocks of a level.
struct Blocks {
  AlignedBuffer cells;
  int64_t num_groups;
  int num_rows;
  size_t size_bytes;

  Blocks(const KernelTable& table, int64_t rows, int64_t cols)
      : num_groups(cols / kGroupSize), num_rows(static_cast<int>(rows)) {
    const int64_t num_blocks = (rows + table.block_rows - 1) / table.block_rows;
    size_bytes = static_cast<size_t>(num_blocks * num_groups * table.block_cell_bytes);
    cells.grow(size_bytes);
  }

  BlockedRows view() const { return {cells.data(), num_groups, num_rows}; }
};

Blocks quantize(const KernelTable& table, const FloatArray& x) {
  check(x.ndim() == 2 && x.shape(0) >= 1 && x.shape(1) % kGroupSize == 0, ErrorKind::kConfig,
        "x must be (rows, a multiple of ", kGroupSize, ")");
  Blocks blocks(table, x.shape(0), x.shape(1));
  const int64_t step = table.block_rows, cols = x.shape(1);
  for (int64_t row = 0; row < x.shape(0); row += step) {
    const int64_t count = std::min<int64_t>(step, x.shape(0) - row);
    table.quantize_block(
        x.data() + row * cols, cols, static_cast<int>(count), cols,
        blocks.cells.data() + row / step * blocks.num_groups * table.block_cell_bytes);
  }
  return blocks;
}

py::array_t<uint8_t> bytes_array(const Blocks& blocks) {
  py::array_t<uint8_t> out(static_cast<py::ssize_t>(blocks.size_bytes));
  std::memcpy(out.mutable_data(), blocks.cells.data(), blocks.size_bytes);
  return out;
}

void check_takes(const TestMatrix& m, const FloatArray& x) {
  check(x.ndim() == 2 && x.shape(1) == m.matrix.num_cols() &&
            m.table->multiplies_blocks(m.matrix.view().format),
        ErrorKind::kConfig, "the level's kernel for many rows does not take this");
}

// As PackedMatrix.matmul, by the kernel for many rows; added to add_to (rows, channels) if given.
FloatArray matmul_blocks(const TestMatrix& m, const FloatArray& x,
                         const std::vector<int64_t>& splits,
                         const std::optional<FloatArray>& add_to) {
  check_takes(m, x);
  const Blocks blocks = quantize(*m.table, x);
  FloatArray y({x.shape(0), static_cast<py::ssize_t>(m.matrix.num_rows())});
  std::fill(y.mutable_data(), y.mutable_data() + y.size(), std::numeric_limits<float>::quiet_NaN());
  if (add_to.has_value()) {
    check(add_to->size() == y.size(), ErrorKind::kConfig, "add_to must have the product's shape");
    std::copy(add_to->data(), add_to->data() + y.size(), y.mutable_data());
  }
  int64_t begin = 0;
  for (int64_t end : splits) {
    check(end >= begin && end <= m.matrix.num_tiles(), ErrorKind::kConfig, "splits must ascend");
    m.table->matmul_blocks(m.matrix.view(), blocks.view(), begin, end, y.mutable_data(),
                           m.matrix.num_rows(), add_to.has_value());
    begin = end;
  }
  return y;
}

// activate(x gate^T, x up^T), quantised, by run(begin, end) over runs of groups of channels that end
// at `splits`.
template <typename Run>
void run_splits(const TestMatrix& gate, const TestMatrix& up, const std::vector<int64_t>& splits,
                const Run& run) {
  const int64_t ffn = gate.matrix.num_rows();
  check(ffn == up.matrix.num_rows() && ffn % kGroupSize == 0, ErrorKind::kConfig,
        "gate and up need the same shape, a multiple of ", kGroupSize, " channels");
  int64_t begin = 0;
  for (int64_t end : splits) {
    check(end >= begin && end <= ffn / kGroupSize, ErrorKind::kConfig, "splits must ascend");
    run(begin, end);
    begin = end;
  }
}

auto activation_of(const KernelTable& table, const std::string& name) {
  check(name == "silu" || name == "gelu_tanh", ErrorKind::kConfig,
        "activation must be 'silu' or 'gelu_tanh'");
  return name == "silu" ? table.silu_mul : table.gelu_tanh_mul;
}

py::array_t<uint8_t> gated_blocks(const TestMatrix& gate, const TestMatrix& up, const FloatArray& x,
                                  const std::string& activation,
                                  const std::vector<int64_t>& splits) {
  check_takes(gate, x);
  check_takes(up, x);
  const KernelTable& table = *gate.table;
  const Blocks blocks = quantize(table, x);
  Blocks out(table, x.shape(0), gate.matrix.num_rows());
  const GatedBlocks product{gate.matrix.view(), up.matrix.view(), activation_of(table, activation),
                            blocks.view(), out.cells.data(), out.num_groups};
  run_splits(gate, up, splits,
             [&](int64_t begin, int64_t end) { table.gated_blocks(product, begin, end); });
  return bytes_array(out);
}

// The same for few rows: rows of QuantizedGroup.
py::bytes gated_rows(const TestMatrix& gate, const TestMatrix& up, const FloatArray& x,
                     const std::string& activation, const std::vector<int64_t>& splits) {
  check_takes(gate, x);
  check_takes(up, x);
  const KernelTable& table = *gate.table;
  const int64_t ffn = gate.matrix.num_rows();
  const Inputs in(gate, x);
  std::vector<QuantizedGroup> out(static_cast<size_t>(in.num_rows * ffn / kGroupSize));
  const GatedRows product{gate.matrix.view(), up.matrix.view(), activation_of(table, activation),
                          {in.quantized.data(), x.shape(1) / kGroupSize, in.num_rows},
                          out.data(), ffn / kGroupSize};
  run_splits(gate, up, splits,
             [&](int64_t begin, int64_t end) { table.gated_rows(product, begin, end, nullptr); });
  return {reinterpret_cast<const char*>(out.data()), out.size() * sizeof(QuantizedGroup)};
}

}  // namespace

void bind_blocks_testing(py::module_& t) {
  t.def("block_shape", [](const std::string& isa) {
    return py::make_tuple(table_of(isa).block_rows, table_of(isa).block_cell_bytes);
  });
  t.def("multiplies_blocks",
        [](const TestMatrix& m) { return m.table->multiplies_blocks(m.matrix.view().format); });
  t.def("quantize_blocks", [](const std::string& isa, const FloatArray& x) {
    return bytes_array(quantize(table_of(isa), x));
  });
  t.def("matmul_blocks", &matmul_blocks, py::arg("matrix"), py::arg("x"), py::arg("splits"),
        py::arg("add_to") = py::none());
  t.def("gated_blocks", &gated_blocks, py::arg("gate"), py::arg("up"), py::arg("x"),
        py::arg("activation"), py::arg("splits"));
  t.def("gated_rows", &gated_rows, py::arg("gate"), py::arg("up"), py::arg("x"),
        py::arg("activation"), py::arg("splits"));
  t.def("num_prepared_passes", &num_prepared_passes);
  t.def("num_dropped_rows", &num_dropped_rows);
  t.def("num_gated_passes", &num_gated_passes, py::arg("in_blocks"));
}

}  // namespace flarecore
