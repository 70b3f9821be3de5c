// Types shared by every layer.
#pragma once

#include <cstdint>

namespace flarecore {

using TokenId = int32_t;

// Token slots of one KV block. Part of the cache layout: kernels and kv_cache agree on it.
constexpr int kBlockTokens = 32;

// Inputs that share one scale, in weights and in activations alike.
constexpr int kGroupSize = 32;

}  // namespace flarecore
