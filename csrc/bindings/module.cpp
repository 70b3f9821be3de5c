// The Python module: registers each area's bindings and turns core errors into Python ones.
#include <pybind11/pybind11.h>

#include "bindings/bindings.h"
#include "bindings/errors.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native core of flarecore (CPU).";
  pybind11::register_exception_translator(&flarecore::translate);
  for (auto bind : {flarecore::bind_kernels, flarecore::bind_gguf, flarecore::bind_text,
                    flarecore::bind_sentencepiece, flarecore::bind_encoder,
                    flarecore::bind_sampling, flarecore::bind_model, flarecore::bind_engine,
                    flarecore::bind_bench}) {
    if (bind != nullptr) bind(m);
  }
}
