// The key from which on the tokens of a list amount to a goal: radix selection by one block.
//
// "The k-th largest", "the shortest prefix with this mass" and "the token at this cumulative
// weight" are one question. Each pass splits the keys still in question into 256 bins over their
// range, adds up every bin, and goes on in the bin where the goal is reached. Amounts are integers,
// so the order in which threads add them does not matter.
#pragma once

#include "cuda/memory.h"
#include "cuda/sampler_args.h"

namespace flarecore::cuda {

// Shared memory of one selection.
struct SelectScratch {
  int64_t amounts[kThreads];
  int32_t counts[kThreads];
  int32_t bin;
  int64_t above;
  uint64_t found;
};

FLARECORE_DEVICE int bit_length(uint64_t x) {
#ifdef __CUDA_ARCH__
  return 64 - __clzll(static_cast<long long>(x));
#else
  return x == 0 ? 0 : 64 - __builtin_clzll(x);
#endif
}

// The largest key in [low, high] such that all keys from it up to `high` amount to `goal` >= 1;
// `low` if they never do. `source(index, &key, &amount)` gives item `index` of `count`.
template <typename Block, typename Source>
FLARECORE_DEVICE uint64_t select_key(Block& block, SelectScratch& scratch, int count,
                                     const Source& source, uint64_t low, uint64_t high,
                                     int64_t goal) {
  int64_t above = 0;  // amount of the keys above `high`
  for (;;) {
    const int bits = bit_length(high - low);
    const int shift = bits > 8 ? bits - 8 : 0;
    block.each([&](int t) {
      scratch.amounts[t] = 0;
      scratch.counts[t] = 0;
      if (t == 0) scratch.bin = -1;
    });
    block.sync();
    block.each([&](int t) {
      for (int i = t; i < count; i += kThreads) {
        uint64_t key;
        int64_t amount;
        source(i, &key, &amount);
        if (key < low || key > high) continue;
        const int bin = static_cast<int>((key - low) >> shift);
        atomic_add(&scratch.amounts[bin], amount);
        atomic_add(&scratch.counts[bin], 1);
      }
    });
    block.sync();
    // Thread t looks at bin 255 - t, so that a sum over threads runs from the largest key down.
    typename Block::template Local<int64_t> sums;
    block.each([&](int t) { sums(t) = scratch.amounts[kThreads - 1 - t]; });
    block.inclusive_sum(sums);
    block.each([&](int t) {
      const int64_t amount = scratch.amounts[kThreads - 1 - t];
      const int64_t before = above + sums(t) - amount;
      if (before < goal && before + amount >= goal) {
        scratch.bin = kThreads - 1 - t;
        scratch.above = before;
      }
    });
    block.sync();
    const int bin = scratch.bin;
    if (bin >= 0) above = scratch.above;
    const bool is_alone = bin >= 0 && scratch.counts[bin] == 1;
    block.sync();
    if (bin < 0) return low;
    low += static_cast<uint64_t>(bin) << shift;
    const uint64_t last = low + ((uint64_t{1} << shift) - 1);
    high = last < high ? last : high;
    if (shift == 0) return low;
    if (!is_alone) continue;
    block.each([&](int t) {
      for (int i = t; i < count; i += kThreads) {
        uint64_t key;
        int64_t amount;
        source(i, &key, &amount);
        if (key >= low && key <= high) scratch.found = key;
      }
    });
    block.sync();
    const uint64_t found = scratch.found;
    block.sync();
    return found;
  }
}

}  // namespace flarecore::cuda
