// Reads and atomics whose instruction differs between a device and the emulation.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/host_device.h"

namespace flarecore::cuda {

// Adds and returns what was there before.
FLARECORE_DEVICE int32_t atomic_add(int32_t* at, int32_t value) {
#ifdef __CUDA_ARCH__
  return atomicAdd(at, value);
#else
  const int32_t before = *at;
  *at += value;
  return before;
#endif
}

FLARECORE_DEVICE void atomic_add(int64_t* at, int64_t value) {
#ifdef __CUDA_ARCH__
  atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
#else
  *at += value;
#endif
}

FLARECORE_DEVICE void atomic_or(uint32_t* at, uint32_t value) {
#ifdef __CUDA_ARCH__
  atomicOr(at, value);
#else
  *at |= value;
#endif
}

// What another block of the same launch wrote: from L2, since a stale line of L1 must not answer.
template <typename T>
FLARECORE_DEVICE T load_fresh(const T* at) {
#ifdef __CUDA_ARCH__
  static_assert(sizeof(T) % 4 == 0, "copied by words");
  T value;
  if constexpr (sizeof(T) % 16 == 0) {
    uint4 words[sizeof(T) / 16];
    const auto* from = reinterpret_cast<const uint4*>(at);
    for (size_t i = 0; i < sizeof(T) / 16; ++i) words[i] = __ldcg(from + i);
    memcpy(&value, words, sizeof(T));
  } else {
    unsigned words[sizeof(T) / 4];
    const auto* from = reinterpret_cast<const unsigned*>(at);
    for (size_t i = 0; i < sizeof(T) / 4; ++i) words[i] = __ldcg(from + i);
    memcpy(&value, words, sizeof(T));
  }
  return value;
#else
  return *at;
#endif
}

// Four neighbours that one instruction reads where they are aligned to their size together.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T values[4];
};

template <typename T>
FLARECORE_DEVICE Four<T> load_four(const T* at) {
  Four<T> four;
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 4) {
    const uint4 words = __ldg(reinterpret_cast<const uint4*>(at));
    memcpy(&four, &words, sizeof(four));
  } else {
    const uint2 words = __ldg(reinterpret_cast<const uint2*>(at));
    memcpy(&four, &words, sizeof(four));
  }
#else
  memcpy(&four, at, sizeof(four));
#endif
  return four;
}

}  // namespace flarecore::cuda
