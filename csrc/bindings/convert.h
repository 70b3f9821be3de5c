// Conversions that more than one area's bindings use.
#pragma once

#include <pybind11/pybind11.h>

#include "sampling/sampling_params.h"

namespace flarecore {

// From the fields of flarecore.SamplingParams. Raises ConfigError for an unknown name.
SamplingParams sampling_from_dict(const pybind11::dict& params);

}  // namespace flarecore
