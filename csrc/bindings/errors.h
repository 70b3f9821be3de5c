// Core errors as Python ones, for every module.
#pragma once

#include <pybind11/pybind11.h>

#include "common/check.h"

namespace flarecore {

inline const char* python_class(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig: return "ConfigError";
    case ErrorKind::kModelFile: return "ModelFileError";
    case ErrorKind::kContextOverflow: return "ContextOverflowError";
    case ErrorKind::kOutOfBlocks: return "OutOfBlocksError";
    case ErrorKind::kSequenceBusy: return "SequenceBusyError";
    case ErrorKind::kCancelled: return "CancelledError";
    case ErrorKind::kDeadline: return "DeadlineExceeded";
    case ErrorKind::kClosed: return "ClosedError";
    case ErrorKind::kUnsupported: return "UnsupportedError";
    case ErrorKind::kIndexFile: return "IndexFileError";
    case ErrorKind::kInternal: break;
  }
  return "FlarecoreError";
}

// For py::register_exception_translator.
inline void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const pybind11::object type =
        pybind11::module_::import("flarecore.errors").attr(python_class(error.kind()));
    PyErr_SetString(type.ptr(), error.what());
  }
}

}  // namespace flarecore
