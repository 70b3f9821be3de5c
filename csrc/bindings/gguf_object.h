// The Python object GgufFile, for the areas whose functions take an opened file.
#pragma once

#include <memory>

#include "model/gguf.h"

namespace flarecore {

struct GgufObject {
  std::shared_ptr<const GgufFile> file;
};

}  // namespace flarecore
