#include "bench/sampling_probe.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "common/check.h"
#include "cpu/cpu_isa.h"

namespace flarecore {
namespace {

using Clock = std::chrono::steady_clock;

// The results of a finished sentence, as Operation hands them out.
void collect(const DecodeState& state, float beta, SamplingProbe::Pass* pass) {
  for (int i = 0; i < state.num_kept(); ++i) {
    const Sampled& sampled = state.tokens()[size_t(i)];
    pass->num_masked += sampled.prob < beta;
    pass->min_prob = std::min(pass->min_prob, sampled.prob);
  }
  pass->num_kept += state.num_kept();
  ++pass->num_sentences;
}

}  // namespace

SamplingProbe::SamplingProbe(std::shared_ptr<const Vocabulary> vocabulary,
                             std::vector<float> logits, int num_threads)
    : vocabulary_(std::move(vocabulary)), logits_(std::move(logits)), threads_(num_threads) {
  check(!logits_.empty(), ErrorKind::kConfig, "the sampling probe needs at least one logit");
  top_ = *std::max_element(logits_.begin(), logits_.end()) + 2.0f;
  run_max_.resize(size_t(num_logit_runs(int64_t(logits_.size()))));
  stats_.resize(run_max_.size());
}

// Calls step(token) with that token's logit on top. Only the steps are timed.
template <typename Step>
double SamplingProbe::time_steps(Span<const TokenId> tokens, Step&& step) {
  const int64_t limit = std::min<int64_t>(int64_t(logits_.size()), vocabulary_->size());
  double seconds = 0.0;
  for (TokenId token : tokens) {
    check(token >= 0 && token < limit, ErrorKind::kConfig, "token ", token, " is not in [0, ",
          limit, ")");
    const float before = logits_[size_t(token)];
    logits_[size_t(token)] = top_;
    const auto start = Clock::now();
    step(token);
    seconds += std::chrono::duration<double>(Clock::now() - start).count();
    logits_[size_t(token)] = before;
  }
  return seconds;
}

SamplingProbe::Pass SamplingProbe::run_argmax(Span<const TokenId> tokens) {
  const int64_t vocab = int64_t(logits_.size());
  Pass pass;
  pass.tokens.reserve(tokens.size());
  pass.seconds = time_steps(tokens, [&](TokenId) {
    threads_.parallel_for(int64_t(run_max_.size()), [&](int64_t run, int) {
      const int64_t begin = run * kLogitRun;
      run_max_[size_t(run)] =
          kernels().max_of(logits_.data() + begin, std::min<int64_t>(kLogitRun, vocab - begin));
    });
    const auto best = std::max_element(run_max_.begin(), run_max_.end());
    TokenId id = TokenId(best - run_max_.begin()) * kLogitRun;
    while (logits_[size_t(id)] != *best) ++id;
    pass.tokens.push_back(id);
  });
  return pass;
}

SamplingProbe::Pass SamplingProbe::run_full(Span<const TokenId> tokens,
                                            const SamplingParams& sampling, float beta) {
  const int64_t vocab = int64_t(logits_.size());
  sampling.validate(vocab);
  const float inverse_temperature = sampling.is_greedy() ? 1.0f : 1.0f / sampling.temperature;
  DecodeOptions options;
  options.max_tokens = int(tokens.size()) + 1;
  options.sampling = sampling;
  options.beta = beta;
  Sampler sampler;
  std::optional<DecodeState> state;
  state.emplace(options, *vocabulary_);
  Pass pass;
  pass.tokens.reserve(tokens.size());
  pass.probs.reserve(tokens.size());
  pass.seconds = time_steps(tokens, [&](TokenId token) {
    threads_.parallel_for(int64_t(stats_.size()), [&](int64_t run, int) {
      const int64_t begin = run * kLogitRun;
      kernels().logit_stats(logits_.data() + begin, std::min<int64_t>(kLogitRun, vocab - begin),
                            inverse_temperature, &stats_[size_t(run)]);
    });
    const LogitsRow row = {{logits_.data(), logits_.size()}, {stats_.data(), stats_.size()}};
    Sampled sampled = sampler.sample(row, sampling, {uint32_t(pass.tokens.size()), 0, pass.tokens});
    pass.tokens.push_back(sampled.token);
    pass.probs.push_back(sampled.prob);
    // The text is the given one, so that sentences end where they do in real text.
    sampled.token = token;
    if (!state->accept(sampled)) return;
    collect(*state, beta, &pass);
    const std::vector<Sampled> held = state->held();
    state.emplace(options, *vocabulary_);
    for (const Sampled& next : held) state->accept(next);
  });
  return pass;
}

}  // namespace flarecore
