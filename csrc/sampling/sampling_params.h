// How a token is chosen. Confidence never depends on any of this (design, 3.2).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/types.h"

namespace flarecore {

struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  int top_k = 0;             // 0: off
  float top_p = 1.0f;        // 1: off
  float min_p = 0.0f;        // 0: off
  uint64_t seed = 0;
  uint32_t stream = 0;  // tells sequences apart that share a seed
  float repetition_penalty = 1.0f;
  std::vector<std::pair<TokenId, float>> logit_bias;  // added to the logits, sorted by id

  bool is_greedy() const { return temperature == 0.0f; }
  // 1 / temperature, 1 if greedy; bounded as on a GPU, so that 0 times it is 0.
  float inverse_temperature() const {
    return is_greedy() ? 1.0f : std::min(1.0f / temperature, 1e30f);
  }
  bool has_filters() const { return top_k > 0 || top_p < 1.0f || min_p > 0.0f; }
  bool adjusts_logits() const { return repetition_penalty != 1.0f || !logit_bias.empty(); }

  bool operator==(const SamplingParams& o) const {
    return temperature == o.temperature && top_k == o.top_k && top_p == o.top_p &&
           min_p == o.min_p && seed == o.seed && stream == o.stream &&
           repetition_penalty == o.repetition_penalty && logit_bias == o.logit_bias;
  }

  // Raises ConfigError that names the parameter, its range and what was got.
  void validate(int64_t vocab_size) const;
};

}  // namespace flarecore
