// The definition of sampling: one step after the other, in double, over a full sort.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/check.h"
#include "sampling/sampler.h"

namespace flarecore {
namespace {

// Probabilities times one number. They are not divided by their sum, so that the weights of ties
// are 1 and add up exactly: top-p has to stop where half of them are half of the mass.
std::vector<double> weights_of(Span<const float> logits, double temperature) {
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights;
  for (float l : logits) weights.push_back(std::exp((double(l) - max) / temperature));
  return weights;
}

// First id whose cumulative weight exceeds u * total.
TokenId inverse_cdf(const std::vector<TokenId>& ids, const std::vector<double>& weights, double u) {
  double total = 0.0;
  for (TokenId id : ids) total += weights[id];
  double cumulative = 0.0;
  TokenId last = ids.front();
  for (TokenId id : ids) {
    if (weights[id] > 0.0) last = id;
    cumulative += weights[id];
    if (cumulative > u * total) break;
  }
  return last;
}

void keep_top_p(double top_p, const std::vector<double>& weights, std::vector<TokenId>* kept) {
  double mass = 0.0;
  for (TokenId id : *kept) mass += weights[id];
  double cumulative = 0.0;
  size_t count = 0;
  while (count < kept->size() && cumulative < top_p * mass) cumulative += weights[(*kept)[count++]];
  kept->resize(std::max<size_t>(count, 1));
}

void keep_min_p(double min_p, double temperature, const std::vector<float>& logits,
                std::vector<TokenId>* kept) {
  const double max = logits[kept->front()];
  size_t count = 1;
  while (count < kept->size() &&
         (double(logits[(*kept)[count]]) - max) / temperature >= std::log(min_p)) {
    ++count;
  }
  kept->resize(count);
}

}  // namespace

Sampled sample_reference(Span<const float> logits, const SamplingParams& params,
                         const DrawContext& context) {
  bool any_finite = false;
  for (float l : logits) {
    check(!std::isnan(l), ErrorKind::kInternal,
          "the model produced NaN logits: its weights or activations overflow");
    any_finite |= std::isfinite(l);
  }
  check(any_finite, ErrorKind::kInternal, "the model produced no finite logit");

  std::vector<float> adjusted(logits.begin(), logits.end());
  adjust_logits(params, context.history, &adjusted);
  const std::vector<double> raw = weights_of(logits, 1.0);
  const double total = std::accumulate(raw.begin(), raw.end(), 0.0);

  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](TokenId a, TokenId b) { return adjusted[a] > adjusted[b]; });
  if (params.is_greedy()) return {ids[0], static_cast<float>(raw[ids[0]] / total)};

  const std::vector<double> weights =
      weights_of({adjusted.data(), adjusted.size()}, params.temperature);
  if (params.top_k > 0) ids.resize(std::min<size_t>(params.top_k, ids.size()));
  if (params.top_p < 1.0f) keep_top_p(params.top_p, weights, &ids);
  if (params.min_p > 0.0f) keep_min_p(params.min_p, params.temperature, adjusted, &ids);
  if (!params.has_filters()) std::sort(ids.begin(), ids.end());
  const double u = philox_uniform({params.seed, params.stream, context.position, context.pass});
  const TokenId token = inverse_cdf(ids, weights, u);
  return {token, static_cast<float>(raw[token] / total)};
}

}  // namespace flarecore
