// What the sampler's two launches share: reading a row's logits, and the end of a row.
#pragma once

#include "cuda/memory.h"
#include "cuda/sampler_math.h"

namespace flarecore::cuda {

FLARECORE_DEVICE float float_setting(const SampleArgs& a, int row, FloatColumn column) {
  return a.floats[int64_t{row} * kNumFloats + column];
}

FLARECORE_DEVICE int64_t int_setting(const SampleArgs& a, int row, IntColumn column) {
  return a.ints[int64_t{row} * kNumInts + column];
}

// Whether a row is padding or has halted.
FLARECORE_DEVICE bool is_idle(const SampleArgs& a, int row) {
  return a.positions[row] < 0 || (a.flags[row] & int_setting(a, row, kHalt)) != 0;
}

// Whether a filter is on, even one that drops nothing: the order of the draw depends on it.
FLARECORE_DEVICE bool is_filtered(const SampleArgs& a, int row) {
  return float_setting(a, row, kTemperature) > 0.0f &&
         (int_setting(a, row, kTopK) > 0 || float_setting(a, row, kTopP) < 1.0f ||
          float_setting(a, row, kMinP) > 0.0f);
}

// The row's random number for the token after its position.
FLARECORE_DEVICE float row_uniform(const SampleArgs& a, int row) {
  return philox_uniform({static_cast<uint64_t>(int_setting(a, row, kSeed)),
                         static_cast<uint32_t>(int_setting(a, row, kStream)),
                         static_cast<uint32_t>(a.positions[row]) + 1u,
                         static_cast<uint32_t>(int_setting(a, row, kPass))});
}

// Four logits from `id` on, -inf past the end.
template <typename Logit>
FLARECORE_DEVICE void read_logits(const void* logits, int64_t stride, int row, int id,
                                  int vocab_size, float* out) {
  const Logit* at = static_cast<const Logit*>(logits) + row * stride + id;
  if (id + kPerThread <= vocab_size && reinterpret_cast<uintptr_t>(at) % sizeof(Four<Logit>) == 0) {
    const Four<Logit> four = load_four(at);
    for (int i = 0; i < kPerThread; ++i) out[i] = to_float(four.values[i]);
  } else {
    for (int i = 0; i < kPerThread; ++i) out[i] = id + i < vocab_size ? to_float(at[i]) : kNegInf;
  }
}

// Repetition penalty, then bias: adjust_logits of sampling/sampler.h.
FLARECORE_DEVICE float adjusted(const SampleArgs& a, int row, int id, float x) {
  if (a.seen != nullptr) {
    const uint32_t word = a.seen[row * seen_words(a.vocab_size) + id / 32];
    if ((word >> (id % 32)) & 1u) {
      const float penalty = a.penalties[row];
      x = x > 0.0f ? x / penalty : x * penalty;
    }
  }
  if (a.bias != nullptr) x += a.bias[row * a.bias_stride + id];
  return x;
}

// Four logits to choose from, and whether they may differ from the raw ones.
template <typename Logit>
FLARECORE_DEVICE void read_choice(const SampleArgs& a, int row, int id, float* out) {
  read_logits<Logit>(a.choice, a.choice_stride, row, id, a.vocab_size, out);
  if (a.seen == nullptr && a.bias == nullptr) return;
  for (int i = 0; i < kPerThread && id + i < a.vocab_size; ++i) {
    out[i] = adjusted(a, row, id + i, out[i]);
  }
}

FLARECORE_DEVICE bool has_own_choice(const SampleArgs& a) {
  return a.choice != a.logits || a.seen != nullptr || a.bias != nullptr;
}

// Writes the chosen token, its confidence and flags, and moves the row's state on. One thread.
template <typename Logit>
FLARECORE_DEVICE void finish_row(const SampleArgs& a, int row, int32_t token, float raw_top,
                                 int64_t raw_weight, bool is_valid) {
  float prob = 0.0f;
  if (is_valid) {
    const Logit* logits = static_cast<const Logit*>(a.logits) + row * a.logits_stride;
    const float weight = exp_nonpositive(to_float(logits[token]) - raw_top) * kOne;
    prob = static_cast<float>(static_cast<double>(weight) / static_cast<double>(raw_weight));
  }
  int32_t bits = a.token_flags[token] & kFlagTable;
  if (prob < float_setting(a, row, kBeta)) bits |= kFlagBelowBeta;
  if (prob < float_setting(a, row, kTheta)) bits |= kFlagBelowTheta;
  if (!is_valid) bits |= kFlagInvalid;

  const int32_t step = a.num_sampled[row];
  if (step >= 0 && step < a.history_capacity) {
    const int64_t at = int64_t{row} * a.history_capacity + step;
    a.history_tokens[at] = token;
    a.history_probs[at] = prob;
    a.history_flags[at] = static_cast<uint8_t>(bits);
  }
  const bool is_full = step + 1 >= a.history_capacity;
  a.num_sampled[row] = is_full ? a.history_capacity : step + 1;
  const int32_t before = a.flags[row];
  const bool looked = (before & kFlagMayEnd) != 0 && (bits & kFlagSettles) != 0;
  a.flags[row] = before | bits | (is_full ? kFlagFull : 0) | (looked ? kFlagLooked : 0);
  if (prob < a.min_prob[row]) a.min_prob[row] = prob;
  a.tokens[row] = token;
  if (!a.advance) return;
  a.positions[row] += 1;
  if (a.seen != nullptr) {
    a.seen[row * seen_words(a.vocab_size) + token / 32] |= 1u << (token % 32);
  }
}

}  // namespace flarecore::cuda
