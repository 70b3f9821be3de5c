// Copy and truncate KV blocks: a shared, partly filled block before it is written, a passage's own
// blocks, a block that is cut off where it is.
//
// A cache is (num_blocks, num_heads, block_tokens, token) bytes, contiguous but for the blocks. A
// copy takes `num_tokens` tokens of every head out of two blocks laid end to end, and fills the
// rest of its destination with zeros, so that nothing foreign stands behind them. A block whose
// source is itself, from token 0 on, is truncated in place.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace flarecore::cuda {

// Per launch, so that all of it fits into the parameters of a kernel (4 KiB).
constexpr int kMaxCaches = 96;
constexpr int kMaxCopies = 150;

struct alignas(16) Bytes16 {
  uint32_t words[4];
};

// Token i of the destination is token first + i of `source`, or that of `following` behind its end.
struct BlockCopy {
  int32_t source, following, destination, first, num_tokens;
};

struct CopyBlocksArgs {
  Bytes16* caches[kMaxCaches];
  BlockCopy copies[kMaxCopies];
  int64_t block_stride;  // all sizes in units of 16 bytes
  int32_t num_caches, num_copies;
  int32_t block_tokens, token_size;
  int32_t block_size;  // num_heads * block_tokens * token_size
};
static_assert(sizeof(CopyBlocksArgs) <= 4000, "kernel parameters");

// Moves 16 bytes: number `index` of a block.
FLARECORE_DEVICE void copy_block_part(const CopyBlocksArgs& a, int cache, int copy, int32_t index) {
  const BlockCopy& c = a.copies[copy];
  Bytes16* blocks = a.caches[cache];
  Bytes16* out = blocks + c.destination * a.block_stride + index;
  const int32_t token = index / a.token_size % a.block_tokens;
  if (token >= c.num_tokens) {
    *out = Bytes16{{0, 0, 0, 0}};
    return;
  }
  const bool is_behind = token + c.first >= a.block_tokens;
  const int32_t from = c.first - (is_behind ? a.block_tokens : 0);
  *out = blocks[(is_behind ? c.following : c.source) * a.block_stride + index +
                from * a.token_size];
}

}  // namespace flarecore::cuda
