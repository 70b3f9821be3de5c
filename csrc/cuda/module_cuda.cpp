// The Python module flarecore._cuda: checks arguments, looks for a device, launches.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>

#include "bindings/cuda_arguments.h"
#include "bindings/errors.h"
#include "common/types.h"
#include "cuda/launch.h"

namespace py = pybind11;

#ifndef FLARECORE_NVCC_VERSION
#define FLARECORE_NVCC_VERSION "unknown"
#endif
#ifndef FLARECORE_CUDA_ARCHITECTURES
#define FLARECORE_CUDA_ARCHITECTURES "unknown"
#endif

namespace flarecore::cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string device_status() {
  const DeviceCount devices = count_devices();
  if (devices.reason == nullptr) return std::to_string(devices.count) + " CUDA device(s)";
  return "no CUDA device for runtime " + version_text(runtime_version()) + ": " + devices.reason;
}

void require_device() {
  // A device that was there once stays: no look-up at every launch.
  static bool is_there = false;
  is_there = is_there || count_devices().count > 0;
  check(is_there, ErrorKind::kUnsupported, device_status(),
        "; a GPU with a driver that knows this runtime is needed ('flarecore doctor' shows both), "
        "or use device=\"cpu\"");
}

void check_launch(const char* call, const char* error) {
  check(error == nullptr, ErrorKind::kInternal, call, "() could not be launched: ", error);
}

void sample(const py::kwargs& given) {
  KeywordReader reader("sample", given);
  const SampleCall call = read_sample(reader);
  require_device();
  check_launch("sample", launch_sample(call.args, call.stream));
}

void copy_blocks(const py::kwargs& given) {
  KeywordReader reader("copy_blocks", given);
  const CopyBlocksCall call = read_copy_blocks(reader);
  require_device();
  for (const CopyBlocksArgs& args : call.launches) {
    check_launch("copy_blocks", launch_copy_blocks(args, call.stream));
  }
}

void gather_rows(const py::kwargs& given) {
  KeywordReader reader("gather_rows", given);
  const GatherRowsCall call = read_gather_rows(reader);
  require_device();
  check_launch("gather_rows", launch_gather_rows(call.args, call.stream));
}

void mark_seen(const py::kwargs& given) {
  KeywordReader reader("mark_seen", given);
  const MarkSeenCall call = read_mark_seen(reader);
  require_device();
  check_launch("mark_seen", launch_mark_seen(call.args, call.stream));
}

int64_t sample_workspace_size(const py::kwargs& given) {
  KeywordReader reader("sample_workspace_size", given);
  return read_workspace_size(reader);
}

std::map<std::string, std::string> build_info() {
  return {{"nvcc", FLARECORE_NVCC_VERSION},
          {"runtime", version_text(runtime_version())},
          {"architectures", FLARECORE_CUDA_ARCHITECTURES}};
}

}  // namespace
}  // namespace flarecore::cuda

PYBIND11_MODULE(_cuda, m) {
  namespace cuda = flarecore::cuda;
  m.doc() = "CUDA kernels of flarecore. Signatures and contracts: _cuda.pyi.";
  py::register_exception_translator(&flarecore::translate);
  m.attr("BLOCK_TOKENS") = flarecore::kBlockTokens;
  m.attr("MAX_VOCAB_SIZE") = cuda::kMaxVocabSize;
  m.def("build_info", &cuda::build_info);
  m.def("device_count", [] { return cuda::count_devices().count; });
  m.def("device_status", &cuda::device_status);
  m.def("sample", &cuda::sample);
  m.def("sample_workspace_size", &cuda::sample_workspace_size);
  m.def("mark_seen", &cuda::mark_seen);
  m.def("copy_blocks", &cuda::copy_blocks);
  m.def("gather_rows", &cuda::gather_rows);
}
