// What confidence, minimum, mask and sentence boundary cost on top of a plain argmax.
//
// The head of the forward pass makes a run of logits and its statistics in one task, so that cost
// cannot be read off a running engine. Here both ways take the same logits, in the same runs on the
// same number of threads.
#pragma once

#include <memory>
#include <vector>

#include "common/thread_pool.h"
#include "engine/decode_state.h"

namespace flarecore {

class SamplingProbe {
 public:
  struct Pass {
    double seconds = 0.0;           // of all tokens
    std::vector<TokenId> tokens;    // sampled
    std::vector<float> probs;       // their confidences; empty for a plain argmax
    // Of the finished sentences, which are the first num_kept tokens.
    float min_prob = 1.0f;
    int num_masked = 0, num_sentences = 0, num_kept = 0;
  };

  // logits (vocab) is the row that every token is sampled from, after that token's own logit was set
  // to the row's largest plus two. Raises ConfigError if there are no logits.
  SamplingProbe(std::shared_ptr<const Vocabulary> vocabulary, std::vector<float> logits,
                int num_threads);

  // Raises ConfigError for a token without a logit or a text.
  Pass run_argmax(Span<const TokenId> tokens);
  Pass run_full(Span<const TokenId> tokens, const SamplingParams& sampling, float beta);

 private:
  template <typename Step>
  double time_steps(Span<const TokenId> tokens, Step&& step);

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::vector<float> logits_;
  float top_ = 0.0f;
  std::vector<float> run_max_;
  std::vector<LogitStats> stats_;
  ThreadPool threads_;
};

}  // namespace flarecore
