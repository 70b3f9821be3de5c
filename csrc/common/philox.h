// Counter-based random numbers: Philox 4x32-10.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
// A draw depends on its key and counter only, never on what was drawn before, so the same
// (seed, stream, position, pass) gives the same number in every batch, chunk and device.
#pragma once

#include <array>
#include <cstdint>

#include "common/host_device.h"

namespace flarecore {

FLARECORE_DEVICE std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                                    std::array<uint32_t, 2> key) {
  constexpr uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kMul0} * counter[0];
    const uint64_t p1 = uint64_t{kMul1} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// Key of one draw. `stream` tells sequences apart, `pass` a draft (0) from a regeneration (1).
struct RandomKey {
  uint64_t seed = 0;
  uint32_t stream = 0;
  uint32_t position = 0;  // index of the sampled token in its sequence
  uint32_t pass = 0;
};

// Uniform in (0, 1): 23 random bits and a half, exact in float32, so neither end is ever reached.
FLARECORE_DEVICE float philox_uniform(const RandomKey& k) {
  const auto out = philox4x32({k.position, k.stream, k.pass, 0},
                              {static_cast<uint32_t>(k.seed), static_cast<uint32_t>(k.seed >> 32)});
  return (static_cast<float>(out[0] >> 9) + 0.5f) * (1.0f / 8388608.0f);
}

}  // namespace flarecore
