#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "bindings/test_matrix.h"
#include "common/check.h"
#include "common/cores.h"
#include "common/thread_pool.h"

namespace py = pybind11;

namespace flarecore {
namespace {

FloatArray dequantize_values(const std::string& type_name, const py::buffer& data,
                             int64_t num_values) {
  const GgmlType type = ggml_type_of_name(type_name);
  const py::buffer_info info = data.request();
  const Bytes bytes = bytes_of(info);
  check(bytes.size >= bytes_of_values(type, num_values), ErrorKind::kConfig, type_name, " needs ",
        bytes_of_values(type, num_values), " bytes for ", num_values, " values, got ", bytes.size);
  FloatArray out(num_values);
  dequantize(type, bytes.data, num_values, out.mutable_data());
  return out;
}

// A matrix of floats, quantised while it was packed, and what that changed.
struct QuantizedTestMatrix : TestMatrix {
  QuantizationError error;

  QuantizedTestMatrix(const std::string& type_name, const py::buffer& data, int64_t num_rows,
                      int64_t num_cols, const std::string& isa, const std::string& mode,
                      const std::string& quantize, ThreadPool* pool)
      : TestMatrix(type_name, data, num_rows, num_cols, isa, mode, pool) {
    const Quantize kind = quantize == "q4" ? Quantize::kQ4 : Quantize::kQ8;
    check(quantize == quantize_name(kind), ErrorKind::kConfig,
          "quantize must be 'q4' or 'q8', got '", quantize, "'");
    const py::buffer_info info = data.request();
    py::gil_scoped_release nogil;
    matrix = PackedMatrix::pack_quantizing(
        {ggml_type_of_name(type_name), bytes_of(info).data, num_rows, num_cols}, kind,
        mode == "float32" ? PackMode::kFloat32 : PackMode::kQuantized, *table, pool, &error);
  }
};

void multiply(const TestMatrix& m, const Inputs& in, int64_t tile_begin, int64_t tile_end,
              float* y) {
  const PackedView w = m.matrix.view();
  if (is_quantized(w.format)) {
    m.table->matmul_quantized(w, in.quantized.data(), w.num_cols / kGroupSize, in.num_rows,
                              tile_begin, tile_end, y, w.num_rows, nullptr);
  } else {
    m.table->matmul_float(w, in.x, w.num_cols, in.num_rows, tile_begin, tile_end, y, w.num_rows,
                          nullptr);
  }
}

void check_inputs(const TestMatrix& m, const FloatArray& x) {
  check(x.ndim() == 2 && x.shape(0) >= 1 && x.shape(1) == m.matrix.num_cols(), ErrorKind::kConfig,
        "x must be (rows, ", m.matrix.num_cols(), ")");
}

// y (rows, channels), computed by calls over [0, splits[0]), [splits[0], splits[1]) ...; what no
// call covers stays NaN.
FloatArray matmul(const TestMatrix& m, const FloatArray& x, const std::vector<int64_t>& splits) {
  check_inputs(m, x);
  FloatArray y({x.shape(0), static_cast<py::ssize_t>(m.matrix.num_rows())});
  std::fill(y.mutable_data(), y.mutable_data() + y.size(), std::numeric_limits<float>::quiet_NaN());
  const Inputs in(m, x);
  int64_t begin = 0;
  for (int64_t end : splits) {
    check(end >= begin && end <= m.matrix.num_tiles(), ErrorKind::kConfig,
          "splits must ascend and end at most at ", m.matrix.num_tiles());
    multiply(m, in, begin, end, y.mutable_data());
    begin = end;
  }
  return y;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Seconds of each of `repeats` products, tiles shared out over the pool in runs of `run_tiles`.
std::vector<double> time_matmul(const TestMatrix& m, const FloatArray& x, ThreadPool& pool,
                                int repeats, int64_t run_tiles) {
  check_inputs(m, x);
  const Inputs in(m, x);
  std::vector<float> y(static_cast<size_t>(in.num_rows * m.matrix.num_rows()));
  std::vector<double> seconds;
  const int64_t tiles = m.matrix.num_tiles();
  py::gil_scoped_release nogil;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for((tiles + run_tiles - 1) / run_tiles, [&](int64_t task, int) {
      const int64_t begin = task * run_tiles;
      multiply(m, in, begin, begin + run_tiles < tiles ? begin + run_tiles : tiles, y.data());
    });
    seconds.push_back(seconds_since(start));
  }
  return seconds;
}

// Seconds of each of `repeats` passes that read the whole buffer.
std::vector<double> time_read(const py::buffer& data, ThreadPool& pool, int repeats) {
  const py::buffer_info info = data.request();
  const Bytes bytes = bytes_of(info);
  constexpr int64_t kRun = 1 << 18;
  std::vector<double> seconds;
  std::atomic<uint64_t> total{0};
  py::gil_scoped_release nogil;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(bytes.size / kRun, [&](int64_t task, int) {
      const uint8_t* p = bytes.data + task * kRun;
      uint64_t sums[8] = {};
      for (int64_t at = 0; at < kRun; at += 64) {
        for (int k = 0; k < 8; ++k) {
          uint64_t word;
          std::memcpy(&word, p + at + 8 * k, 8);
          sums[k] += word;
        }
      }
      for (uint64_t s : sums) total.fetch_add(s, std::memory_order_relaxed);
    });
    seconds.push_back(seconds_since(start));
  }
  return seconds;
}

// How often each of `num_tasks` tasks ran, over `runs` runs of the pool.
std::vector<int> count_tasks(ThreadPool& pool, int64_t num_tasks, int runs) {
  std::vector<int> counts(static_cast<size_t>(num_tasks));
  py::gil_scoped_release nogil;
  for (int i = 0; i < runs; ++i) {
    pool.parallel_for(num_tasks, [&](int64_t task, int thread) {
      if (thread >= 0 && thread < pool.num_threads()) ++counts[static_cast<size_t>(task)];
    });
  }
  return counts;
}

// One run of a task a thread, of which the workers sleep so long: what comes late.
void sleep_in_workers(ThreadPool& pool, int milliseconds) {
  std::atomic<int> num_begun{0};
  py::gil_scoped_release nogil;
  pool.parallel_for(pool.num_threads(), [&](int64_t, int thread) {
    // The caller does not take a second task before the workers have theirs.
    ++num_begun;
    while (num_begun.load() < pool.num_threads()) std::this_thread::yield();
    if (thread != 0) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  });
}

// Which thread ran each task of a run whose last thread sleeps so long in its first task.
std::vector<int> task_threads(ThreadPool& pool, int64_t num_tasks, int milliseconds) {
  std::vector<int> threads(static_cast<size_t>(num_tasks), -1);
  const int last = pool.num_threads() - 1;
  const int64_t first = ThreadPool::share_begin(num_tasks, last, pool.num_threads());
  std::atomic<bool> has_begun{false};
  py::gil_scoped_release nogil;
  pool.parallel_for(num_tasks, [&](int64_t task, int thread) {
    threads[static_cast<size_t>(task)] = thread;
    if (thread == last && task == first) {
      has_begun = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    }
    while (!has_begun.load()) std::this_thread::yield();
  });
  return threads;
}

}  // namespace

void bind_matrix_testing(py::module_& t) {
  t.def("dequantize", &dequantize_values, py::arg("type"), py::arg("data"), py::arg("num_values"));
  t.def("current_core", &current_core);
  t.def("leave_core", &leave_core, py::arg("core"));
  py::class_<ThreadPool>(t, "ThreadPool")
      .def(py::init<int>(), py::arg("num_threads"))
      .def_property_readonly("num_threads", &ThreadPool::num_threads)
      .def("task_threads", &task_threads, py::arg("num_tasks"), py::arg("milliseconds"))
      .def_property_readonly("num_late", &ThreadPool::num_late)
      .def("sleep_in_workers", &sleep_in_workers, py::arg("milliseconds"))
      .def("count_tasks", &count_tasks, py::arg("num_tasks"), py::arg("runs") = 1);
  py::class_<TestMatrix>(t, "PackedMatrix")
      .def(py::init<const std::string&, const py::buffer&, int64_t, int64_t, const std::string&,
                    const std::string&, ThreadPool*>(),
           py::arg("type"), py::arg("data"), py::arg("num_rows"), py::arg("num_cols"),
           py::arg("isa"), py::arg("mode") = "quantized", py::arg("pool") = nullptr)
      .def_property_readonly("num_tiles", [](const TestMatrix& m) { return m.matrix.num_tiles(); })
      .def_property_readonly("size_bytes",
                             [](const TestMatrix& m) { return m.matrix.size_bytes(); })
      .def_property_readonly("tile", [](const TestMatrix& m) { return m.table->tile; })
      .def("dequantize_row",
           [](const TestMatrix& m, int64_t row) {
             check(row >= 0 && row < m.matrix.num_rows(), ErrorKind::kConfig, "row ", row,
                   " is outside [0, ", m.matrix.num_rows(), ")");
             FloatArray out(m.matrix.num_cols());
             m.matrix.dequantize_row(row, out.mutable_data());
             return out;
           })
      .def("matmul", &matmul, py::arg("x"), py::arg("splits"));
  py::class_<QuantizedTestMatrix, TestMatrix>(t, "QuantizedMatrix")
      .def(py::init<const std::string&, const py::buffer&, int64_t, int64_t, const std::string&,
                    const std::string&, const std::string&, ThreadPool*>(),
           py::arg("type"), py::arg("data"), py::arg("num_rows"), py::arg("num_cols"),
           py::arg("isa"), py::arg("mode"), py::arg("quantize"), py::arg("pool") = nullptr)
      .def_property_readonly("error", [](const QuantizedTestMatrix& m) {
        return py::make_tuple(m.error.num_values, m.error.error_squares, m.error.value_squares,
                              m.error.max_error, m.error.first_bad_row);
      });
  bind_blocks_testing(t);
  t.def("time_matmul", &time_matmul, py::arg("matrix"), py::arg("x"), py::arg("pool"),
        py::arg("repeats"), py::arg("run_tiles") = 8);
  t.def("time_read", &time_read, py::arg("data"), py::arg("pool"), py::arg("repeats"));
}

}  // namespace flarecore
