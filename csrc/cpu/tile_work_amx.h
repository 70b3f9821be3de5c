// Tile products that go along with vector work: the AMX unit multiplies while the vector unit
// converts and exponentiates, if the instructions of both lie near each other.
#pragma once

#include "cpu/split_tiles_amx.h"

namespace flarecore {
namespace {

constexpr int kMaxSums = 4;  // tiles of sums: 0 to 3

// The sums of a product: tile n of columns at out + n * kTileCols.
struct TileSums {
  float* out;
  int64_t out_stride;  // floats between two rows
  int num_cols;        // tiles of columns
  bool adds;           // to what out holds
};

// sums (+)= the sum over steps, in ascending order, of left[s] * right[s * right_stride + n], each
// as multiply_cols() says.
struct TileProduct {
  const SplitTile* left;
  const SplitTile* right;
  int num_steps, right_stride;
  TileSums sums;
};

// The tile instructions want their tiles as literals.
template <int N>
FLARECORE_INLINE void load_right(const void* p) {
  if constexpr (N % 2 == 0) {
    _tile_loadd(6, p, 64);
  } else {
    _tile_loadd(7, p, 64);
  }
}

// Sum N += left tile 4 or 5 * what load_right<N> has loaded.
template <int N, int Left>
FLARECORE_INLINE void add_product() {
  if constexpr (Left == 4) {
    if constexpr (N == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (N == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (N == 2) _tile_dpbf16ps(2, 4, 6);
    if constexpr (N == 3) _tile_dpbf16ps(3, 4, 7);
  } else {
    if constexpr (N == 0) _tile_dpbf16ps(0, 5, 6);
    if constexpr (N == 1) _tile_dpbf16ps(1, 5, 7);
    if constexpr (N == 2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (N == 3) _tile_dpbf16ps(3, 5, 7);
  }
}

template <int N>
FLARECORE_INLINE void begin_sum(const TileSums& sums) {
  const float* from = sums.out + N * kTileCols;
  const int64_t stride = sums.out_stride * static_cast<int64_t>(sizeof(float));
  if (sums.adds) {
    if constexpr (N == 0) _tile_loadd(0, from, stride);
    if constexpr (N == 1) _tile_loadd(1, from, stride);
    if constexpr (N == 2) _tile_loadd(2, from, stride);
    if constexpr (N == 3) _tile_loadd(3, from, stride);
  } else {
    if constexpr (N == 0) _tile_zero(0);
    if constexpr (N == 1) _tile_zero(1);
    if constexpr (N == 2) _tile_zero(2);
    if constexpr (N == 3) _tile_zero(3);
  }
}

template <int N>
FLARECORE_INLINE void end_sum(const TileSums& sums) {
  float* to = sums.out + N * kTileCols;
  const int64_t stride = sums.out_stride * static_cast<int64_t>(sizeof(float));
  if constexpr (N == 0) _tile_stored(0, to, stride);
  if constexpr (N == 1) _tile_stored(1, to, stride);
  if constexpr (N == 2) _tile_stored(2, to, stride);
  if constexpr (N == 3) _tile_stored(3, to, stride);
}

template <int N>
FLARECORE_INLINE void begin_all(const TileSums& sums) {
  unrolled<N>([&](auto n) __attribute__((always_inline)) { begin_sum<n>(sums); });
}
template <int N>
FLARECORE_INLINE void end_all(const TileSums& sums) {
  unrolled<N>([&](auto n) __attribute__((always_inline)) { end_sum<n>(sums); });
}

// body(Index<num_cols>{}): the tile instructions want the number of columns as a literal too.
template <typename Body>
FLARECORE_INLINE void with_cols(int num_cols, Body&& body) {
  switch (num_cols) {
    case 1: return body(Index<1>{});
    case 2: return body(Index<2>{});
    case 3: return body(Index<3>{});
    default: return body(Index<kMaxSums>{});
  }
}

inline void begin_sums(const TileSums& sums) {
  with_cols(sums.num_cols, [&](auto n) __attribute__((always_inline)) { begin_all<n>(sums); });
}
inline void end_sums(const TileSums& sums) {
  with_cols(sums.num_cols, [&](auto n) __attribute__((always_inline)) { end_all<n>(sums); });
}

// Sums First, ... First + N - 1 += left tiles 4 (low) and 5 (high) * right tiles. One order for
// each element: low * high, high * high, high * low; the unit adds up what is in a tile in a fixed
// order for each element, whatever the others hold (Intel SDM, TDPBF16PS).
template <int First, int N>
FLARECORE_INLINE void multiply_cols(const SplitTile* right) {
  unrolled<N>([&](auto n) __attribute__((always_inline)) {
    load_right<First + n>(right[n].high);
    add_product<First + n, 4>();
    add_product<First + n, 5>();
  });
  unrolled<N>([&](auto n) __attribute__((always_inline)) {
    load_right<First + n>(right[n].low);
    add_product<First + n, 5>();
  });
}

// In the place of TileWork where no product goes along with vector work.
struct NoTileWork {
  void advance() {}
};

// Products in the order in which they were pushed, one at a time, in parts.
class TileWork {
 public:
  // Returns what finish() needs to know of it. Inputs may change only when it is finished.
  int64_t push(const TileProduct& product) {
    while (num_pushed_ - num_finished_ == kMaxPending) advance();
    pending_[num_pushed_ % kMaxPending] = product;
    return ++num_pushed_;
  }

  // The next part, if there is one: a step, or the sums of the last step, which are stored some
  // work later, when they are there.
  __attribute__((noinline)) void advance() {
    if (num_finished_ == num_pushed_) return;
    const TileProduct& product = pending_[num_finished_ % kMaxPending];
    finish_writes(this);
    with_cols(product.sums.num_cols, [&](auto n) __attribute__((always_inline)) {
      advance_product<n>(product);
    });
    finish_writes(this);
  }

  // Everything up to the product that push() returned this for.
  void finish(int64_t pushed) {
    while (num_finished_ < pushed) advance();
  }
  void finish() { finish(num_pushed_); }

 private:
  static constexpr int kMaxPending = 16;

  template <int N>
  FLARECORE_INLINE void advance_product(const TileProduct& product) {
    if (step_ == product.num_steps) {
      end_all<N>(product.sums);
      step_ = 0;
      ++num_finished_;
      return;
    }
    const SplitTile& left = product.left[step_];
    const SplitTile* right = product.right + step_ * product.right_stride;
    if (step_ == 0) begin_all<N>(product.sums);
    _tile_loadd(4, left.low, 64);
    _tile_loadd(5, left.high, 64);
    multiply_cols<0, N>(right);
    ++step_;
  }

  TileProduct pending_[kMaxPending];
  int64_t num_pushed_ = 0, num_finished_ = 0;
  int step_ = 0;  // of the oldest product that is not finished
};

}  // namespace
}  // namespace flarecore
