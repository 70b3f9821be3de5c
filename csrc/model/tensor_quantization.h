// Matrices of a model that are quantised while they are packed.
#pragma once

#include <string>

#include "common/thread_pool.h"
#include "model/packed_matrix.h"

namespace flarecore {

// What was done to one matrix of a model that is quantised at load.
struct TensorQuantization {
  std::string name;      // as in a GGUF file: "blk.0.attn_q.weight"
  const char* source;    // type in the file: "BF16"
  Quantize quantize;     // kNone: kept as it was
  QuantizationError error;
};

// PackedMatrix::pack_quantizing at the level in force; ModelFileError, with the tensor named as
// `shown`, for a value that cannot be quantised.
PackedMatrix quantize_tensor(const std::string& shown, const TensorView& view, Quantize quantize,
                             PackMode mode, ThreadPool* pool, QuantizationError* error);

}  // namespace flarecore
