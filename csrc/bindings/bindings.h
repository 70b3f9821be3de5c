// One registration function per area.
#pragma once

#include <pybind11/pybind11.h>

namespace flarecore {

#define FLARECORE_WEAK __attribute__((weak))
FLARECORE_WEAK void bind_kernels(pybind11::module_& m);
FLARECORE_WEAK void bind_gguf(pybind11::module_& m);
FLARECORE_WEAK void bind_text(pybind11::module_& m);
FLARECORE_WEAK void bind_sentencepiece(pybind11::module_& m);
FLARECORE_WEAK void bind_encoder(pybind11::module_& m);
FLARECORE_WEAK void bind_sampling(pybind11::module_& m);
FLARECORE_WEAK void bind_model(pybind11::module_& m);
FLARECORE_WEAK void bind_engine(pybind11::module_& m);
FLARECORE_WEAK void bind_bench(pybind11::module_& m);

// Into the submodule `testing`.
void bind_cuda_emulation(pybind11::module_& testing);

}  // namespace flarecore
