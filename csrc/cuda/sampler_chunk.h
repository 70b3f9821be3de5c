// The sampler's first launch: a block per chunk of 1024 logits and row.
//
// Every block leaves the statistics of its chunk; the last of a row to arrive joins them in one
// fixed way and finishes the row, or leaves it to the second launch (sampler_filter.h) if it
// filters. So one row uses the whole chip, and nothing depends on its batch.
#pragma once

#include "cuda/sampler_row.h"
#include "cuda/select.h"

namespace flarecore::cuda {

struct SampleScratch {
  SelectScratch select;
  int64_t before;  // weight of the chunks before the one the draw falls into
};

// The largest logits of a row and the least sum of a chunk: negative if a logit is NaN or +inf.
struct RowTops {
  float top, raw_top;
  int64_t least;
};

struct RowSums {
  int64_t weight, raw_weight;
  int32_t arg, padding;
};

template <typename Logit, typename Block>
FLARECORE_DEVICE ChunkStats chunk_stats(Block& block, const SampleArgs& a, int chunk, int row,
                                        typename Block::template Local<float, kPerThread>& choice) {
  typename Block::template Local<float, kPerThread> raw;
  typename Block::template Local<float> thread_top;
  typename Block::template Local<RowTops> tops;
  typename Block::template Local<RowSums> sums;
  const float inverse = inverse_temperature(float_setting(a, row, kTemperature));
  const bool own_choice = has_own_choice(a);
  block.each([&](int t) {
    const int id = chunk * kChunk + t * kPerThread;
    if (own_choice) {
      read_logits<Logit>(a.logits, a.logits_stride, row, id, a.vocab_size, &raw(t));
    } else {
      for (int i = 0; i < kPerThread; ++i) raw(t, i) = choice(t, i);
    }
    float top = kNegInf, raw_top = kNegInf;
    for (int i = 0; i < kPerThread; ++i) {
      top = fmaxf(top, choice(t, i));
      raw_top = fmaxf(raw_top, raw(t, i));
    }
    thread_top(t) = top;
    tops(t) = {top, raw_top, 0};
  });
  if (a.filters) {
    float* group_tops = a.group_tops + (row * num_chunks(a.vocab_size) + chunk) * kGroups;
    block.warp_tops(thread_top, [&](int group, float top) { group_tops[group] = top; });
  }
  const RowTops top = block.reduce(tops, [](const RowTops& x, const RowTops& y) {
    return RowTops{fmaxf(x.top, y.top), fmaxf(x.raw_top, y.raw_top), 0};
  });
  const float origin = weight_origin(top.top), raw_origin = weight_origin(top.raw_top);
  block.each([&](int t) {
    RowSums sum = {0, 0, a.vocab_size, 0};
    for (int i = kPerThread - 1; i >= 0; --i) {
      sum.weight += fixed_weight(choice(t, i), origin, inverse);
      sum.raw_weight += fixed_weight(raw(t, i), raw_origin, 1.0f);
      if (choice(t, i) == top.top) sum.arg = chunk * kChunk + t * kPerThread + i;
    }
    sums(t) = sum;
  });
  const RowSums sum = block.reduce(sums, [](const RowSums& x, const RowSums& y) {
    return RowSums{x.weight + y.weight, x.raw_weight + y.raw_weight, x.arg < y.arg ? x.arg : y.arg,
                   0};
  });
  return {top.top, top.raw_top, sum.weight, sum.raw_weight, sum.arg, 0};
}

// First id whose cumulative weight exceeds u * total, over chunks and then inside one.
template <typename Logit, typename Block>
FLARECORE_DEVICE int32_t draw_in_id_order(Block& block, SampleScratch& scratch, const SampleArgs& a,
                                          int row, typename Block::template Local<int64_t>& weights,
                                          int64_t total, float top, float inverse) {
  typename Block::template Local<int64_t> cumulative;
  typename Block::template Local<int32_t> found;
  const int64_t goal = draw_goal(row_uniform(a, row), total);
  block.each([&](int t) { cumulative(t) = weights(t); });
  block.inclusive_sum(cumulative);
  block.each([&](int t) { found(t) = cumulative(t) >= goal ? t : kThreads - 1; });
  const auto smaller = [](int32_t x, int32_t y) { return x < y ? x : y; };
  const int32_t chunk = block.reduce(found, smaller);
  block.each([&](int t) {
    if (t == chunk) scratch.before = cumulative(t) - weights(t);
  });
  block.sync();
  const int64_t before = scratch.before;

  typename Block::template Local<float, kPerThread> x;
  block.each([&](int t) {
    const int id = chunk * kChunk + t * kPerThread;
    read_choice<Logit>(a, row, id, &x(t));
    int64_t sum = 0;
    for (int i = 0; i < kPerThread; ++i) sum += fixed_weight(x(t, i), top, inverse);
    weights(t) = cumulative(t) = sum;
  });
  block.inclusive_sum(cumulative);
  block.each([&](int t) {
    found(t) = a.vocab_size;
    int64_t sum = before + cumulative(t) - weights(t);
    for (int i = 0; i < kPerThread; ++i) {
      sum += fixed_weight(x(t, i), top, inverse);
      if (sum >= goal && found(t) == a.vocab_size) found(t) = chunk * kChunk + t * kPerThread + i;
    }
  });
  const int32_t token = block.reduce(found, smaller);
  if (token < a.vocab_size) return token;
  // The chunk's own sum was rounded otherwise: nothing reaches the goal, so the last weight does.
  // There is one: chunks of nothing but weights below 2^-42 hold less than 2^-24 of a row together,
  // and u keeps that far from 1.
  block.each([&](int t) {
    found(t) = 0;
    for (int i = 0; i < kPerThread; ++i) {
      if (fixed_weight(x(t, i), top, inverse) > 0) found(t) = chunk * kChunk + t * kPerThread + i;
    }
  });
  return block.reduce(found, [](int32_t p, int32_t q) { return p > q ? p : q; });
}

// A logit such that every token the row's filters may need is at or above it.
//
// min-p keeps weights of at least min_p. Weights below w hold at most vocab_size * w together, so
// top-p needs none of them once that is less than (1 - top_p) * total. k groups with a maximum at
// or above a value show that the k-th largest logit is at or above it too. Top-p counts the mass of
// top-k's tokens, so with both all k are needed.
template <typename Block>
FLARECORE_DEVICE float candidate_threshold(Block& block, SampleScratch& scratch,
                                           const SampleArgs& a, int row, float top, int64_t total) {
  const int64_t top_k = int_setting(a, row, kTopK);
  const float top_p = float_setting(a, row, kTopP), min_p = float_setting(a, row, kMinP);
  const float temperature = float_setting(a, row, kTemperature);
  const bool has_top_k = top_k > 0 && top_k < a.vocab_size;
  float threshold = kNegInf;
  // The margins, in units of the exponent, are far above what log and the sums may round.
  if (min_p > 0.0f && (top_p >= 1.0f || !has_top_k)) {
    threshold = top + (logf(min_p) - 0.01f) * temperature;
  }
  if (top_p < 1.0f && !has_top_k) {
    const float spare = (1.0f - top_p) * (static_cast<float>(total) / kOne) / a.vocab_size;
    threshold = fmaxf(threshold, top + (logf(spare) - 0.1f) * temperature);
  }
  const int num_groups = static_cast<int>(num_chunks(a.vocab_size)) * kGroups;
  if (has_top_k && top_k <= num_groups) {
    const float* group_tops = a.group_tops + int64_t{row} * num_groups;
    const auto group_key = [&](int i, uint64_t* key, int64_t* amount) {
      *key = order_key(load_fresh(group_tops + i));
      *amount = 1;
    };
    const uint32_t key = static_cast<uint32_t>(select_key(
        block, scratch.select, num_groups, group_key, order_key(kNegInf), order_key(top), top_k));
    threshold = fmaxf(threshold, order_value(key));
  }
  return threshold;
}

template <typename Logit, typename Block>
FLARECORE_DEVICE void join_chunks(Block& block, SampleScratch& scratch, const SampleArgs& a,
                                  int row) {
  typename Block::template Local<ChunkStats> stats;
  typename Block::template Local<RowTops> tops;
  typename Block::template Local<RowSums> sums;
  typename Block::template Local<int64_t> weights;
  const int chunks = static_cast<int>(num_chunks(a.vocab_size));
  const float temperature = float_setting(a, row, kTemperature);
  const float inverse = inverse_temperature(temperature);
  block.each([&](int t) {
    stats(t) = {kNegInf, kNegInf, 0, 0, a.vocab_size, 0};
    if (t < chunks) stats(t) = load_fresh(a.chunks + int64_t{row} * chunks + t);
    const ChunkStats& s = stats(t);
    tops(t) = {s.top, s.raw_top, s.weight < s.raw_weight ? s.weight : s.raw_weight};
  });
  const RowTops top = block.reduce(tops, [](const RowTops& x, const RowTops& y) {
    return RowTops{fmaxf(x.top, y.top), fmaxf(x.raw_top, y.raw_top),
                   x.least < y.least ? x.least : y.least};
  });
  block.each([&](int t) {
    const ChunkStats& s = stats(t);
    weights(t) = rescaled(s.weight, s.top, top.top, inverse);
    sums(t) = {weights(t), rescaled(s.raw_weight, s.raw_top, top.raw_top, 1.0f),
               s.top == top.top ? s.arg : a.vocab_size, 0};
  });
  const RowSums sum = block.reduce(sums, [](const RowSums& x, const RowSums& y) {
    return RowSums{x.weight + y.weight, x.raw_weight + y.raw_weight, x.arg < y.arg ? x.arg : y.arg,
                   0};
  });
  const bool filtered = is_filtered(a, row);
  const bool is_valid = top.least >= 0 && sum.weight > 0 && sum.raw_weight > 0 &&
                        (a.filters || !filtered);
  int32_t token = sum.arg < a.vocab_size ? sum.arg : 0;
  if (is_valid && filtered) {
    const float threshold = candidate_threshold(block, scratch, a, row, top.top, sum.weight);
    block.each([&](int t) {
      if (t != 0) return;
      a.row_stats[row] = {top.top, top.raw_top, sum.weight, sum.raw_weight, threshold, 0};
      a.counters[row].is_pending = 1;
    });
    return;
  }
  if (is_valid && temperature > 0.0f) {
    token = draw_in_id_order<Logit>(block, scratch, a, row, weights, sum.weight, top.top, inverse);
  }
  block.each([&](int t) {
    if (t == 0) finish_row<Logit>(a, row, token, top.raw_top, sum.raw_weight, is_valid);
  });
}

template <typename Logit, typename Block>
FLARECORE_DEVICE void sample_body(Block& block, SampleScratch& scratch, const SampleArgs& a,
                                  int chunk, int row) {
  // Read before the settings are known, so that both are under way at once.
  typename Block::template Local<float, kPerThread> choice;
  block.each([&](int t) {
    read_choice<Logit>(a, row, chunk * kChunk + t * kPerThread, &choice(t));
  });
  if (is_idle(a, row)) return;
  const ChunkStats stats = chunk_stats<Logit>(block, a, chunk, row, choice);
  const int chunks = static_cast<int>(num_chunks(a.vocab_size));
  block.each([&](int t) {
    if (t == 0) a.chunks[int64_t{row} * chunks + chunk] = stats;
  });
  if (block.arrive_last(&a.counters[row].chunks, chunks)) {
    join_chunks<Logit>(block, scratch, a, row);
  }
}

}  // namespace flarecore::cuda
