// Reductions of kLanes vectors at once, for levels that have no better way than one by one. After the
// reductions of a simd_*.h.
#pragma once

namespace flarecore {
namespace {

// Lane i is reduce_add(v[i]).
inline Vec reduce_add_each(const Vec* v) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = reduce_add(v[i]);
  return load(lanes);
}

// Lane i is reduce_max(v[i]).
inline Vec reduce_max_each(const Vec* v) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = reduce_max(v[i]);
  return load(lanes);
}

}  // namespace
}  // namespace flarecore
