// A block of 256 device threads, as the sampler's bodies see it. The twin of host_block.h.
#pragma once

#include "cuda/sampler_args.h"

namespace flarecore::cuda {

class DeviceBlock {
 public:
  static constexpr int kWarps = kThreads / 32;

  // Shared memory of the collective operations.
  struct Scratch {
    uint32_t words[kWarps][8];
    int32_t is_last;
  };

  // A variable (or a few) of every thread: registers.
  template <typename T, int kCount = 1>
  class Local {
   public:
    __device__ __forceinline__ T& operator()(int, int i = 0) { return values_[i]; }

   private:
    T values_[kCount];
  };

  explicit __device__ __forceinline__ DeviceBlock(Scratch* scratch) : scratch_(*scratch) {}

  // Runs `body(thread)` for every thread; what it writes is its own until sync().
  template <typename Body>
  __device__ __forceinline__ void each(const Body& body) {
    body(static_cast<int>(threadIdx.x));
  }

  __device__ __forceinline__ void sync() { __syncthreads(); }

  // op over the values of all threads, the same for every thread. `op` must not depend on order.
  template <typename T, typename Op>
  __device__ __forceinline__ T reduce(Local<T>& values, const Op& op) {
    static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= sizeof(scratch_.words[0]), "fits the scratch");
    T value = values(0);
    for (int distance = 16; distance > 0; distance /= 2) {
      value = op(value, shuffled(value, [distance](uint32_t w) {
                   return __shfl_xor_sync(0xffffffffu, w, distance);
                 }));
    }
    if (threadIdx.x % 32 == 0) memcpy(scratch_.words[threadIdx.x / 32], &value, sizeof(T));
    __syncthreads();
    memcpy(&value, scratch_.words[0], sizeof(T));
    for (int warp = 1; warp < kWarps; ++warp) {
      T other;
      memcpy(&other, scratch_.words[warp], sizeof(T));
      value = op(value, other);
    }
    __syncthreads();
    return value;
  }

  // The values of threads 0 to t, added up, for every thread t.
  __device__ __forceinline__ void inclusive_sum(Local<int64_t>& values) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t sum = values(0);
    for (int distance = 1; distance < 32; distance *= 2) {
      const int64_t below = __shfl_up_sync(0xffffffffu, static_cast<long long>(sum), distance);
      if (lane >= distance) sum += below;
    }
    if (lane == 31) memcpy(scratch_.words[warp], &sum, sizeof(sum));
    __syncthreads();
    for (int i = 0; i < warp; ++i) {
      int64_t other;
      memcpy(&other, scratch_.words[i], sizeof(other));
      sum += other;
    }
    __syncthreads();
    values(0) = sum;
  }

  // Maximum over the 32 threads of each warp, handed to `store(group, maximum)` once per warp.
  template <typename Store>
  __device__ __forceinline__ void warp_tops(Local<float>& values, const Store& store) {
    float top = values(0);
    for (int distance = 16; distance > 0; distance /= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
    }
    if (threadIdx.x % 32 == 0) store(static_cast<int>(threadIdx.x / 32), top);
  }

  // Counts this block as arrived; true in the last of `total`, which then sees what all others
  // wrote. The counter is zero again afterwards.
  __device__ __forceinline__ bool arrive_last(int32_t* counter, int total) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      const bool last = atomicAdd(counter, 1) == total - 1;
      if (last) *counter = 0;
      scratch_.is_last = last;
    }
    __syncthreads();
    const bool last = scratch_.is_last != 0;
    if (last) __threadfence();
    return last;
  }

 private:
  template <typename T, typename Shuffle>
  static __device__ __forceinline__ T shuffled(const T& value, const Shuffle& shuffle) {
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &value, sizeof(T));
    for (uint32_t& word : words) word = shuffle(word);
    T result;
    memcpy(&result, words, sizeof(T));
    return result;
  }

  Scratch& scratch_;
};

}  // namespace flarecore::cuda
