// What devices there are. Linked with the static runtime, which looks for a driver only here and
// at launches, so that the module loads without one.
#include <cuda_runtime_api.h>

#include "cuda/launch.h"

namespace flarecore::cuda {

DeviceCount count_devices() {
  int count = 0, driver = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return {count, nullptr};
  // Without a driver the runtime says that its version is too low.
  const bool has_driver = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  cudaGetLastError();
  if (!has_driver) return {0, "there is no NVIDIA driver"};
  return {0, error == cudaSuccess ? "the driver names no device" : cudaGetErrorString(error)};
}

int runtime_version() { return CUDART_VERSION; }

}  // namespace flarecore::cuda
