// Asking for cache lines ahead.
#pragma once

namespace flarecore {
namespace {

// Asks for the cache lines of `Bytes` bytes at p: into L2, which has more reads in flight than L1.
template <int Bytes>
inline void fetch_lines(const void* p) {
  for (int i = 0; i < Bytes; i += 64) {
    __builtin_prefetch(static_cast<const char*>(p) + i, 0, 2);
  }
}

}  // namespace
}  // namespace flarecore
