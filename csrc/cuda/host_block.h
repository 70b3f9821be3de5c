// A block of 256 threads that take turns on a CPU: the emulation of device_block.cuh.
//
// The bodies of the kernels are the same code in both. What differs is here: a variable of a thread
// is an array, a collective operation a loop, and blocks run one after the other.
#pragma once

#include <cmath>

#include "cuda/sampler_args.h"

namespace flarecore::cuda {

class HostBlock {
 public:
  template <typename T, int kCount = 1>
  class Local {
   public:
    T& operator()(int thread, int i = 0) { return values_[thread][i]; }

   private:
    T values_[kThreads][kCount];
  };

  template <typename Body>
  void each(const Body& body) {
    for (int thread = 0; thread < kThreads; ++thread) body(thread);
  }

  void sync() {}

  template <typename T, typename Op>
  T reduce(Local<T>& values, const Op& op) {
    T value = values(0);
    for (int thread = 1; thread < kThreads; ++thread) value = op(value, values(thread));
    return value;
  }

  void inclusive_sum(Local<int64_t>& values) {
    for (int thread = 1; thread < kThreads; ++thread) values(thread) += values(thread - 1);
  }

  template <typename Store>
  void warp_tops(Local<float>& values, const Store& store) {
    for (int warp = 0; warp < kThreads / 32; ++warp) {
      float top = values(warp * 32);
      for (int lane = 1; lane < 32; ++lane) top = std::fmax(top, values(warp * 32 + lane));
      store(warp, top);
    }
  }

  bool arrive_last(int32_t* counter, int total) {
    if (++*counter < total) return false;
    *counter = 0;
    return true;
  }
};

}  // namespace flarecore::cuda
