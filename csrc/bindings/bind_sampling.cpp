// Sampler and random numbers, bound for tests and for users of the low-level pieces.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "common/check.h"
#include "cpu/cpu_isa.h"
#include "sampling/sampler.h"

namespace py = pybind11;

namespace flarecore {
namespace {

using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;

// sample(logits (V,) float32, params, position, pass_index, history, reference) -> (token, prob)
py::tuple sample(const FloatArray& logits, const py::dict& params, uint32_t position,
                 uint32_t pass_index, const std::vector<TokenId>& history, bool reference) {
  check(logits.ndim() == 1 && logits.size() >= 1, ErrorKind::kConfig,
        "logits must be one row of at least one value");
  const SamplingParams sampling = sampling_from_dict(params);
  sampling.validate(logits.size());
  for (TokenId id : history) {
    check(id >= 0 && id < logits.size(), ErrorKind::kConfig, "history names token ", id,
          ", there are ", logits.size(), " logits");
  }
  const int64_t vocab = logits.size();
  std::vector<LogitStats> stats(num_logit_runs(vocab));
  for (size_t run = 0; run < stats.size(); ++run) {
    const int64_t begin = int64_t(run) * kLogitRun;
    kernels().logit_stats(logits.data() + begin, std::min<int64_t>(kLogitRun, vocab - begin),
                          sampling.inverse_temperature(), &stats[run]);
  }
  Sampler sampler(reference ? SamplerKind::kReference : SamplerKind::kFused);
  const LogitsRow row = {{logits.data(), static_cast<size_t>(vocab)},
                         {stats.data(), stats.size()}};
  const Sampled sampled = sampler.sample(row, sampling, {position, pass_index, history});
  return py::make_tuple(sampled.token, sampled.prob);
}

}  // namespace

SamplingParams sampling_from_dict(const py::dict& params) {
  SamplingParams out;
  for (const auto& [key, value] : params) {
    const std::string name = py::str(key);
    if (name == "temperature") out.temperature = value.cast<float>();
    else if (name == "top_k") out.top_k = value.cast<int>();
    else if (name == "top_p") out.top_p = value.cast<float>();
    else if (name == "min_p") out.min_p = value.cast<float>();
    else if (name == "seed") out.seed = value.cast<uint64_t>();
    else if (name == "stream") out.stream = value.cast<uint32_t>();
    else if (name == "repetition_penalty") out.repetition_penalty = value.cast<float>();
    else if (name == "logit_bias") {
      for (const auto& [id, bias] : value.cast<std::map<TokenId, float>>()) {
        out.logit_bias.emplace_back(id, bias);
      }
    } else {
      fail(ErrorKind::kConfig, "unknown sampling parameter '", name, "'");
    }
  }
  return out;
}

void bind_sampling(py::module_& m) {
  py::module_ testing = py::hasattr(m, "testing") ? m.attr("testing").cast<py::module_>()
                                                  : m.def_submodule("testing");
  testing.def("sample", &sample, py::arg("logits"), py::arg("params"), py::arg("position") = 0,
              py::arg("pass_index") = 0, py::arg("history") = std::vector<TokenId>(),
              py::arg("reference") = false);
  testing.def("philox4x32", [](std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    return philox4x32(counter, key);
  });
  testing.def("philox_uniform", [](uint64_t seed, uint32_t stream, uint32_t position, uint32_t pass) {
    return philox_uniform({seed, stream, position, pass});
  }, py::arg("seed"), py::arg("stream"), py::arg("position"), py::arg("pass_index"));
  bind_cuda_emulation(testing);
}

}  // namespace flarecore
