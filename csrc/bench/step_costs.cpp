#include "bench/step_costs.h"

#include <algorithm>

#include "common/check.h"
#include "cpu/cpu_isa.h"

namespace flarecore {

StepCosts step_costs(Model* model, ComputeMode mode, int num_context_tokens) {
  check(num_context_tokens >= 0, ErrorKind::kConfig, "num_context_tokens must be >= 0, got ",
        num_context_tokens);
  const DecoderConfig& config = model->config();
  const auto weights = model->weights(mode);
  StepCosts costs;
  for (const LayerWeights& layer : weights->layers) {
    for (const PackedMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate,
                                       &layer.up, &layer.down}) {
      costs.weight_bytes += matrix->size_bytes();
      costs.layer_multiply_adds += matrix->num_rows() * matrix->num_cols();
    }
    for (const std::vector<float>* norm :
         {&layer.attention_norm, &layer.ffn_norm, &layer.q_norm, &layer.k_norm,
          &layer.attention_post_norm, &layer.ffn_post_norm}) {
      costs.weight_bytes += static_cast<int64_t>(norm->size() * sizeof(float));
    }
  }
  const PackedMatrix& head = weights->head();
  costs.weight_bytes += head.size_bytes();
  costs.weight_bytes += static_cast<int64_t>(weights->output_norm.size() * sizeof(float));
  costs.head_multiply_adds = head.num_rows() * head.num_cols();
  const KvFormat format =
      mode == ComputeMode::kInt8 ? kernels().kv_format : KvFormat::kFloat32;
  const auto head_bytes = static_cast<int64_t>(kv_head_bytes(format, config.head_dim));
  for (const LayerConfig& layer : config.layers) {
    const int64_t seen = layer.window > 0 ? std::min(layer.window, num_context_tokens)
                                          : num_context_tokens;
    costs.kv_values += 2 * seen * config.kv_size();
    costs.kv_bytes += 2 * seen * config.num_kv_heads * head_bytes / kBlockTokens;
  }
  return costs;
}

}  // namespace flarecore
