// What one forward pass must read and multiply at least, counted from the packed weights.
#pragma once

#include "model/model.h"

namespace flarecore {

struct StepCosts {
  int64_t weight_bytes = 0;  // read once by a step, however many rows it has: layers, head, norms
  int64_t kv_bytes = 0;      // read by one row with num_context_tokens before it, windows regarded
  int64_t kv_values = 0;     // the same as a count of numbers, whatever they are kept as
  int64_t layer_multiply_adds = 0;  // of one row, without attention
  int64_t head_multiply_adds = 0;   // of one row of logits
};

// Packs the weights if no engine of this mode has done so yet.
StepCosts step_costs(Model* model, ComputeMode mode, int num_context_tokens);

}  // namespace flarecore
