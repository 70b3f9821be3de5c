// What the benchmarks need of the core: `_C.memory_read_bandwidth`, and in `_C.testing`
// what only flarecore.bench measures with.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <vector>

#include "bench/memory_reader.h"
#include "bench/sampling_probe.h"
#include "bench/step_costs.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "common/check.h"

namespace py = pybind11;

namespace flarecore {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;
using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;

double memory_read_bandwidth(int64_t size_bytes, int threads, int passes) {
  check(passes >= 1 && passes <= 10000, ErrorKind::kConfig,
        "passes must be between 1 and 10000, got ", passes);
  MemoryReader reader(size_bytes, threads);
  reader.read_once();
  std::vector<double> seconds;
  for (int i = 0; i < passes; ++i) seconds.push_back(reader.read_once());
  std::nth_element(seconds.begin(), seconds.begin() + passes / 2, seconds.end());
  return double(reader.size_bytes()) / seconds[size_t(passes / 2)];
}

py::dict step_costs_dict(Model& model, bool int8, int num_context_tokens) {
  StepCosts costs;
  {
    py::gil_scoped_release no_gil;
    costs = step_costs(&model, int8 ? ComputeMode::kInt8 : ComputeMode::kFloat32,
                       num_context_tokens);
  }
  return py::dict(py::arg("weight_bytes") = costs.weight_bytes, py::arg("kv_bytes") = costs.kv_bytes,
                  py::arg("kv_values") = costs.kv_values,
                  py::arg("layer_multiply_adds") = costs.layer_multiply_adds,
                  py::arg("head_multiply_adds") = costs.head_multiply_adds);
}

py::dict pass_dict(const SamplingProbe::Pass& pass) {
  return py::dict(py::arg("seconds") = pass.seconds, py::arg("token_ids") = pass.tokens,
                  py::arg("probs") = py::array_t<float>(py::ssize_t(pass.probs.size()),
                                                        pass.probs.data()),
                  py::arg("min_prob") = pass.min_prob, py::arg("num_masked") = pass.num_masked,
                  py::arg("num_sentences") = pass.num_sentences,
                  py::arg("num_kept") = pass.num_kept);
}

std::unique_ptr<SamplingProbe> make_probe(const Model& model, const FloatArray& logits,
                                          int threads) {
  check(logits.ndim() == 1, ErrorKind::kConfig, "logits must have one dimension, got ",
        logits.ndim());
  // The probe shares the model's vocabulary and lives no longer than it (keep_alive).
  std::shared_ptr<const Vocabulary> vocabulary(&model.vocabulary(), [](const Vocabulary*) {});
  return std::make_unique<SamplingProbe>(
      std::move(vocabulary), std::vector<float>(logits.data(), logits.data() + logits.size()),
      threads);
}

py::dict run_probe(SamplingProbe& probe, const std::vector<TokenId>& token_ids,
                   const std::optional<py::dict>& sampling, float beta) {
  SamplingProbe::Pass pass;
  if (!sampling) {
    py::gil_scoped_release no_gil;
    pass = probe.run_argmax(token_ids);
  } else {
    const SamplingParams params = sampling_from_dict(*sampling);
    py::gil_scoped_release no_gil;
    pass = probe.run_full(token_ids, params, beta);
  }
  return pass_dict(pass);
}

}  // namespace

void bind_bench(py::module_& m) {
  m.def("memory_read_bandwidth", &memory_read_bandwidth, py::arg("size_bytes"), py::arg("threads"),
        py::arg("passes") = 5, NoGil(),
        "Bytes a second of reading a buffer of that size: the median of some passes, after a first "
        "one that is not counted.");
  py::module_ bench = m.attr("testing").cast<py::module_>();
  py::class_<MemoryReader>(bench, "MemoryReader")
      .def(py::init<int64_t, int>(), py::arg("size_bytes"), py::arg("threads"), NoGil())
      .def_property_readonly("size_bytes", &MemoryReader::size_bytes)
      .def("read_once", &MemoryReader::read_once, NoGil());
  bench.def("step_costs", &step_costs_dict, py::arg("model"), py::arg("int8"),
            py::arg("num_context_tokens"));
  py::class_<SamplingProbe>(bench, "SamplingProbe")
      .def(py::init(&make_probe), py::arg("model"), py::arg("logits"), py::arg("threads"),
           py::keep_alive<1, 2>())
      .def("run", &run_probe, py::arg("token_ids"), py::arg("sampling") = py::none(),
           py::arg("beta") = 0.0f);
}

}  // namespace flarecore
