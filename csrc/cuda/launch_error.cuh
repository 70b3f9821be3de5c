#pragma once

#include <cuda_runtime_api.h>

namespace flarecore::cuda {

// Null, or what kept the launches before this from starting; the error is not left behind.
inline const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace flarecore::cuda
