// The Python object SafetensorsFile, for the areas whose functions take an opened file.
#pragma once

#include <memory>

#include "model/safetensors.h"

namespace flarecore {

struct SafetensorsObject {
  std::shared_ptr<const SafetensorsFile> file;
};

}  // namespace flarecore
