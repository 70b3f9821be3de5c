#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/check.h"
#include "cpu/cpu_isa.h"

namespace flarecore {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// The runs joined in index order: where the maximum is and the sum of exp(l - max) over the row.
struct RowStats {
  float max = kNegInf;
  TokenId argmax = -1;
  double sum = 0.0;
};

RowStats join(Span<const LogitStats> runs) {
  RowStats row;
  for (size_t i = 0; i < runs.size(); ++i) {
    check(!std::isnan(runs[i].max) && !std::isnan(runs[i].sum), ErrorKind::kInternal,
          "the model produced NaN logits: its weights or activations overflow");
    if (runs[i].max > row.max) {
      row.max = runs[i].max;
      row.argmax = static_cast<TokenId>(i * kLogitRun + runs[i].argmax);
    }
  }
  check(row.argmax >= 0 && row.max < std::numeric_limits<float>::infinity(), ErrorKind::kInternal,
        "the model produced no finite logit");
  for (const LogitStats& run : runs) {
    if (run.max > kNegInf) row.sum += run.sum * std::exp(double(run.max) - row.max);
  }
  return row;
}

void compute_stats(Span<const float> logits, float inverse_temperature,
                   std::vector<LogitStats>* stats) {
  const int64_t vocab = static_cast<int64_t>(logits.size());
  stats->resize(num_logit_runs(vocab));
  for (size_t run = 0; run < stats->size(); ++run) {
    const int64_t begin = int64_t(run) * kLogitRun;
    kernels().logit_stats(logits.data() + begin, std::min<int64_t>(kLogitRun, vocab - begin),
                          inverse_temperature, &(*stats)[run]);
  }
}

}  // namespace

void SamplingParams::validate(int64_t vocab_size) const {
  const auto require = [](bool ok, const char* name, const char* range, auto got) {
    check(ok, ErrorKind::kConfig, name, " must be ", range, ", got ", got);
  };
  require(temperature >= 0.0f && std::isfinite(temperature), "temperature", "finite and >= 0",
          temperature);
  require(top_k >= 0, "top_k", ">= 0 (0 is off)", top_k);
  require(top_p > 0.0f && top_p <= 1.0f, "top_p", "in (0, 1]", top_p);
  require(min_p >= 0.0f && min_p <= 1.0f, "min_p", "in [0, 1]", min_p);
  require(repetition_penalty > 0.0f && std::isfinite(repetition_penalty), "repetition_penalty",
          "finite and > 0", repetition_penalty);
  for (const auto& [id, bias] : logit_bias) {
    check(id >= 0 && id < vocab_size, ErrorKind::kConfig, "logit_bias names token ", id,
          ", the vocabulary has ids 0 to ", vocab_size - 1);
    require(!std::isnan(bias) && bias < std::numeric_limits<float>::infinity(), "logit_bias",
            "finite or -inf", bias);
  }
}

void adjust_logits(const SamplingParams& params, Span<const TokenId> history,
                   std::vector<float>* logits) {
  if (params.repetition_penalty != 1.0f) {
    std::vector<TokenId> seen(history.begin(), history.end());
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    for (TokenId id : seen) {
      float& l = (*logits)[id];
      l = l > 0.0f ? l / params.repetition_penalty : l * params.repetition_penalty;
    }
  }
  for (const auto& [id, bias] : params.logit_bias) (*logits)[id] += bias;
  bool are_numbers = true, any_left = false;
  for (float l : *logits) {
    are_numbers &= l < -kNegInf;  // false for NaN
    any_left |= l > kNegInf;
  }
  check(are_numbers && any_left, ErrorKind::kConfig, "repetition_penalty (",
        params.repetition_penalty, ") and logit_bias (of ", params.logit_bias.size(),
        " tokens) leave ", are_numbers ? "no token to choose" : "logits that are no numbers",
        "; use values closer to 1 and 0");
}

float Sampler::confidence(const LogitsRow& row, TokenId token) {
  const RowStats stats = join(row.stats);
  return static_cast<float>(std::exp(double(row.logits[token]) - stats.max) / stats.sum);
}

Sampled Sampler::sample(const LogitsRow& row, const SamplingParams& params,
                        const DrawContext& context) {
  if (kind_ == SamplerKind::kReference) return sample_reference(row.logits, params, context);
  const float uniform =
      params.is_greedy()
          ? 0.0f
          : philox_uniform({params.seed, params.stream, context.position, context.pass});
  if (!params.adjusts_logits()) {
    return sample_fused(row, params, uniform);
  }
  join(row.stats);  // what is wrong with the model's own logits is no matter of the options
  adjusted_.assign(row.logits.begin(), row.logits.end());
  adjust_logits(params, context.history, &adjusted_);
  compute_stats(adjusted_, params.inverse_temperature(), &adjusted_stats_);
  Sampled out = sample_fused({adjusted_, adjusted_stats_}, params, uniform);
  out.prob = confidence(row, out.token);
  return out;
}

Sampled Sampler::sample_fused(const LogitsRow& row, const SamplingParams& params, float uniform) {
  if (params.is_greedy()) {
    const RowStats stats = join(row.stats);
    return {stats.argmax, static_cast<float>(1.0 / stats.sum)};
  }
  const TokenId token = params.has_filters()
                            ? sample_filtered(row, params, uniform)
                            : sample_unfiltered(row, params.inverse_temperature(), uniform);
  return {token, confidence(row, token)};
}

TokenId Sampler::sample_unfiltered(const LogitsRow& row, float inverse_temperature,
                                   float uniform) const {
  const RowStats stats = join(row.stats);
  const auto run_weight = [&](const LogitStats& run) {
    return run.max == kNegInf ? 0.0
                              : run.sum_scaled * std::exp((double(run.max) - stats.max) *
                                                          inverse_temperature);
  };
  double total = 0.0;
  for (const LogitStats& run : row.stats) total += run_weight(run);
  const double target = uniform * total;
  double before = 0.0;
  size_t chosen = 0;
  for (size_t i = 0; i < row.stats.size(); ++i) {
    const double weight = run_weight(row.stats[i]);
    if (weight > 0.0) chosen = i;  // rounding may leave the target past the last run
    if (before + weight > target && weight > 0.0) break;
    if (i + 1 < row.stats.size()) before += weight;
  }
  const size_t begin = chosen * kLogitRun;
  const size_t end = std::min(row.logits.size(), begin + kLogitRun);
  TokenId last = static_cast<TokenId>(begin + row.stats[chosen].argmax);
  for (size_t i = begin; i < end; ++i) {
    const double weight = std::exp((double(row.logits[i]) - stats.max) * inverse_temperature);
    if (weight > 0.0) last = static_cast<TokenId>(i);
    before += weight;
    if (before > target) return last;
  }
  return last;
}

TokenId Sampler::sample_filtered(const LogitsRow& row, const SamplingParams& params,
                                 float uniform) {
  const RowStats stats = join(row.stats);
  const size_t vocab = row.logits.size();
  const double inverse_temperature = 1.0 / params.temperature;
  const auto weight = [&](TokenId id) {
    return std::exp((double(row.logits[id]) - stats.max) * inverse_temperature);
  };
  const auto before = [&](TokenId a, TokenId b) {
    return row.logits[a] != row.logits[b] ? row.logits[a] > row.logits[b] : a < b;
  };
  const size_t limit = params.top_k > 0 ? std::min<size_t>(params.top_k, vocab) : vocab;

  candidates_.resize(vocab);
  std::iota(candidates_.begin(), candidates_.end(), 0);
  // Sorts the best `count` to the front, more only where the kept set reaches further.
  size_t sorted = 0;
  const auto sort_front = [&](size_t count) {
    count = std::min(count, limit);
    if (count <= sorted) return;
    const auto first = candidates_.begin() + sorted, middle = candidates_.begin() + count;
    if (middle != candidates_.end()) std::nth_element(first, middle - 1, candidates_.end(), before);
    std::sort(first, middle, before);
    sorted = count;
  };

  double mass = 0.0;  // of the tokens that top-k keeps: what top-p is a share of
  if (params.top_p < 1.0f) {
    if (params.top_k > 0) {
      sort_front(limit);
      for (size_t i = 0; i < limit; ++i) mass += weight(candidates_[i]);
    } else {
      for (size_t i = 0; i < vocab; ++i) mass += weight(static_cast<TokenId>(i));
    }
  }
  const double needed = double(params.top_p) * mass;
  // min-p in logit space: p_i >= m * p_max  <=>  (l_i - l_max) / T >= ln m
  const double floor = params.min_p > 0.0f ? std::log(double(params.min_p)) : -HUGE_VAL;
  size_t kept = 0;
  double kept_mass = 0.0;
  for (; kept < limit; ++kept) {
    if (kept == sorted) sort_front(sorted == 0 ? 64 : sorted * 8);
    const TokenId id = candidates_[kept];
    const double w = weight(id);
    if (kept > 0) {
      if (w == 0.0 || (double(row.logits[id]) - stats.max) * inverse_temperature < floor) break;
      if (params.top_p < 1.0f && kept_mass >= needed) break;
    }
    kept_mass += w;
  }
  const double target = uniform * kept_mass;
  double cumulative = 0.0;
  for (size_t i = 0; i + 1 < kept; ++i) {
    cumulative += weight(candidates_[i]);
    if (cumulative > target) return candidates_[i];
  }
  return candidates_[kept - 1];
}

}  // namespace flarecore
