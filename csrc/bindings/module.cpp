// The Python module: registers each area's bindings and turns core errors into Python ones.
#include <pybind11/pybind11.h>

#include "bindings/bindings.h"
#include "common/check.h"

namespace py = pybind11;

namespace flarecore {
namespace {

const char* python_class(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig: return "ConfigError";
    case ErrorKind::kModelFile: return "ModelFileError";
    case ErrorKind::kContextOverflow: return "ContextOverflowError";
    case ErrorKind::kOutOfBlocks: return "OutOfBlocksError";
    case ErrorKind::kSequenceBusy: return "SequenceBusyError";
    case ErrorKind::kCancelled: return "CancelledError";
    case ErrorKind::kDeadline: return "DeadlineExceeded";
    case ErrorKind::kUnsupported: return "UnsupportedError";
    case ErrorKind::kIndexFile: return "IndexFileError";
    case ErrorKind::kInternal: break;
  }
  return "FlarecoreError";
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const py::object type = py::module_::import("flarecore.errors").attr(python_class(error.kind()));
    PyErr_SetString(type.ptr(), error.what());
  }
}

}  // namespace
}  // namespace flarecore

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native core of flarecore (CPU).";
  py::register_exception_translator(&flarecore::translate);
  for (auto bind : {flarecore::bind_kernels, flarecore::bind_gguf, flarecore::bind_text,
                    flarecore::bind_sentencepiece, flarecore::bind_encoder,
                    flarecore::bind_sampling, flarecore::bind_model, flarecore::bind_engine,
                    flarecore::bind_bench}) {
    if (bind != nullptr) bind(m);
  }
}
