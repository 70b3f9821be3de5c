// The sampler's second launch: top-k, then top-p, then min-p, then the draw.
//
// Every block lists its chunk's tokens at or above the threshold that the first launch left, in
// whatever order they arrive; the last of a row answers each filter by a selection over the list
// (select.h), whose result does not depend on the order. A row with more candidates than the list
// holds is selected over its logits directly, with the same result.
#pragma once

#include "cuda/sampler_row.h"
#include "cuda/select.h"

namespace flarecore::cuda {

struct FilterScratch {
  SelectScratch select;
  int32_t first;  // place in the list of the block's first candidate
};

// Item `i` of a row's candidates: from the list, or from the logits if the list overflowed.
template <typename Logit>
struct CandidateSource {
  const SampleArgs& a;
  int row;
  bool from_list;
  float top, inverse;

  FLARECORE_DEVICE void operator()(int i, uint64_t* key, int64_t* weight) const {
    if (from_list) {
      const Candidate c = load_fresh(a.candidates + int64_t{row} * a.candidate_capacity + i);
      *key = c.key;
      *weight = c.weight;
      return;
    }
    const Logit* logits = static_cast<const Logit*>(a.choice) + row * a.choice_stride;
    const float x = adjusted(a, row, i, to_float(logits[i]));
    // Key 0 is below every finite logit's.
    *key = x > kNegInf ? pack_key(x, i) : 0;
    *weight = fixed_weight(x, top, inverse);
  }
};

// Mass of the candidates from `cut` on, and the least key that weighs at least `least`.
struct KeptMass {
  int64_t mass;
  uint64_t lowest;
};

template <typename Block, typename Source>
FLARECORE_DEVICE KeptMass kept_mass(Block& block, int count, const Source& source, uint64_t cut,
                                    int64_t least) {
  typename Block::template Local<KeptMass> kept;
  block.each([&](int t) {
    KeptMass mine = {0, ~uint64_t{0}};
    for (int i = t; i < count; i += kThreads) {
      uint64_t key;
      int64_t weight;
      source(i, &key, &weight);
      if (key >= cut) mine.mass += weight;
      if (weight >= least && key < mine.lowest) mine.lowest = key;
    }
    kept(t) = mine;
  });
  return block.reduce(kept, [](const KeptMass& x, const KeptMass& y) {
    return KeptMass{x.mass + y.mass, x.lowest < y.lowest ? x.lowest : y.lowest};
  });
}

// Applies the filters and draws, from the likeliest token down.
template <typename Logit, typename Block>
FLARECORE_DEVICE int32_t choose(Block& block, SelectScratch& scratch, const SampleArgs& a, int row,
                                const RowStats& stats, int count,
                                const CandidateSource<Logit>& source) {
  const int64_t top_k = int_setting(a, row, kTopK);
  const float top_p = float_setting(a, row, kTopP), min_p = float_setting(a, row, kMinP);
  const auto one_each = [&](int i, uint64_t* key, int64_t* amount) {
    source(i, key, amount);
    *amount = 1;
  };
  const uint64_t high = pack_key(stats.top, 0);
  uint64_t cut = pack_key(stats.threshold, static_cast<int32_t>(kMaxVocabSize - 1));
  int64_t whole = stats.weight;
  if (top_k > 0 && top_k < a.vocab_size) {
    cut = select_key(block, scratch, count, one_each, cut, high, top_k);
    whole = kept_mass(block, count, source, cut, 0).mass;
  }
  if (top_p < 1.0f) {
    const double share = ceil(static_cast<double>(top_p) * static_cast<double>(whole));
    const int64_t goal = share > 1.0 ? static_cast<int64_t>(share) : 1;
    cut = select_key(block, scratch, count, source, cut, high, goal);
  }
  if (min_p > 0.0f) {
    const int64_t least = static_cast<int64_t>(min_p * kOne);
    const uint64_t lowest = kept_mass(block, count, source, cut, least > 1 ? least : 1).lowest;
    cut = lowest > cut ? lowest : cut;
  }
  const int64_t mass = kept_mass(block, count, source, cut, 0).mass;
  const int64_t goal = draw_goal(row_uniform(a, row), mass);
  const int32_t token = packed_id(select_key(block, scratch, count, source, cut, high, goal));
  // Always a token's id; the bound keeps settings that no host checked (NaN) inside the row.
  return token < a.vocab_size ? token : a.vocab_size - 1;
}

// Adds the chunk's tokens at or above the threshold to the row's list, as far as it holds.
template <typename Logit, typename Block>
FLARECORE_DEVICE void list_candidates(Block& block, FilterScratch& scratch, const SampleArgs& a,
                                      int chunk, int row, float threshold, float top,
                                      float inverse) {
  typename Block::template Local<float, kPerThread> x;
  typename Block::template Local<int64_t> wanted;
  const auto is_wanted = [=](float logit) { return logit >= threshold && logit > kNegInf; };
  block.each([&](int t) {
    read_choice<Logit>(a, row, chunk * kChunk + t * kPerThread, &x(t));
    wanted(t) = 0;
    for (int i = 0; i < kPerThread; ++i) wanted(t) += is_wanted(x(t, i)) ? 1 : 0;
  });
  block.inclusive_sum(wanted);
  block.each([&](int t) {
    if (t != kThreads - 1) return;
    const int32_t count = static_cast<int32_t>(wanted(t));
    scratch.first = count > 0 ? atomic_add(&a.counters[row].num_candidates, count) : 0;
  });
  block.sync();
  const int32_t first = scratch.first;
  block.each([&](int t) {
    int64_t slot = first + wanted(t);
    for (int i = kPerThread - 1; i >= 0; --i) {
      if (!is_wanted(x(t, i))) continue;
      --slot;
      if (slot >= a.candidate_capacity) continue;
      const int32_t id = chunk * kChunk + t * kPerThread + i;
      a.candidates[int64_t{row} * a.candidate_capacity + slot] = {
          pack_key(x(t, i), id), fixed_weight(x(t, i), top, inverse)};
    }
  });
}

template <typename Logit, typename Block>
FLARECORE_DEVICE void filter_body(Block& block, FilterScratch& scratch, const SampleArgs& a,
                                  int chunk, int row) {
  RowCounters& counters = a.counters[row];
  if (counters.is_pending == 0) return;
  const RowStats stats = a.row_stats[row];
  const float inverse = inverse_temperature(float_setting(a, row, kTemperature));
  list_candidates<Logit>(block, scratch, a, chunk, row, stats.threshold, stats.top, inverse);
  if (!block.arrive_last(&counters.filter_chunks, static_cast<int>(num_chunks(a.vocab_size)))) {
    return;
  }
  const int32_t count = load_fresh(&counters.num_candidates);
  block.sync();
  const bool from_list = count <= a.candidate_capacity;
  const CandidateSource<Logit> source = {a, row, from_list, stats.top, inverse};
  const int32_t token = choose<Logit>(block, scratch.select, a, row, stats,
                                      from_list ? count : a.vocab_size, source);
  block.each([&](int t) {
    if (t != 0) return;
    counters.num_candidates = 0;
    counters.is_pending = 0;
    finish_row<Logit>(a, row, token, stats.raw_top, stats.raw_weight, true);
  });
}

}  // namespace flarecore::cuda
