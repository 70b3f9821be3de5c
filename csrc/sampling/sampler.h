// From one row of logits to a token and its confidence.
//
// Order (fixed by sampler_ref.cpp, which is the definition): repetition penalty, logit bias,
// temperature, top-k, top-p, min-p, inverse CDF. Ties: the lower id comes first. Without filters the
// inverse CDF runs in id order, with a filter over the kept tokens from the likeliest down.
// Confidence is the softmax of the raw logits at temperature 1 (design, 3.2).
#pragma once

#include <vector>

#include "common/philox.h"
#include "common/span.h"
#include "cpu/kernels.h"
#include "sampling/sampling_params.h"

namespace flarecore {

struct Sampled {
  TokenId token = -1;
  float prob = 0.0f;  // confidence
};

enum class SamplerKind { kFused, kReference };

// Logits per run of statistics: the head computes a run and its statistics in one task.
constexpr int kLogitRun = 1024;

inline int64_t num_logit_runs(int64_t vocab_size) { return (vocab_size + kLogitRun - 1) / kLogitRun; }

// One row of logits with the statistics of its runs (kernels().logit_stats).
struct LogitsRow {
  Span<const float> logits;      // (vocab)
  Span<const LogitStats> stats;  // (num_logit_runs(vocab))
};

// Which number the draw uses, and what the penalties look back on.
struct DrawContext {
  uint32_t position = 0;              // index of the sampled token in its sequence
  uint32_t pass = 0;                  // 0 draft, 1 regeneration
  Span<const TokenId> history;        // tokens of the sequence, for the repetition penalty
};

class Sampler {
 public:
  explicit Sampler(SamplerKind kind = SamplerKind::kFused) : kind_(kind) {}

  // Raises FlarecoreError if a logit is NaN or all are -inf.
  Sampled sample(const LogitsRow& row, const SamplingParams& params, const DrawContext& context);

  // Confidence of a given token, from the statistics alone.
  static float confidence(const LogitsRow& row, TokenId token);

 private:
  Sampled sample_fused(const LogitsRow& row, const SamplingParams& params, float uniform);
  TokenId sample_unfiltered(const LogitsRow& row, float inverse_temperature, float uniform) const;
  TokenId sample_filtered(const LogitsRow& row, const SamplingParams& params, float uniform);

  SamplerKind kind_;
  std::vector<float> adjusted_;
  std::vector<LogitStats> adjusted_stats_;
  std::vector<TokenId> candidates_;
};

// Penalty and bias in place; `history` may hold repeats, each id is penalised once. Raises ConfigError
// if they leave no token, or a logit that is no number.
void adjust_logits(const SamplingParams& params, Span<const TokenId> history, std::vector<float>* logits);

// The slow, obvious twin: double precision, one full sort, no statistics.
Sampled sample_reference(Span<const float> logits, const SamplingParams& params,
                         const DrawContext& context);

}  // namespace flarecore
