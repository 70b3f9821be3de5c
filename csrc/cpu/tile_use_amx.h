// The tile state of the AMX unit. Included by *_amx.cpp only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/dot_common.h"

namespace flarecore {
namespace {

constexpr int kTileRows = 16;  // of a full tile; a row has 64 bytes

// Shapes of the tiles. Tiles 4 and 5 hold left factors, 6 and 7 right ones, 0 to 3 sums.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // `left_rows`: rows of left factors and sums.
  explicit TileShapes(int left_rows) {
    for (int t = 0; t < 8; ++t) {
      rows[t] = static_cast<uint8_t>(t < 6 ? left_rows : kTileRows);
      row_bytes[t] = 64;
    }
  }
};

// What was written at p is there for the tile instructions: the compiler does not know what they
// read.
FLARECORE_INLINE void finish_writes(const void* p) { __asm__ volatile("" : : "r"(p) : "memory"); }

// Tile state of the calling thread, clean again at the end: other code must not find it in use.
class TileUse {
 public:
  explicit TileUse(int left_rows = kTileRows) {
    const TileShapes shapes(left_rows);
    finish_writes(&shapes);
    _tile_loadconfig(&shapes);
  }
  ~TileUse() { _tile_release(); }
  TileUse(const TileUse&) = delete;
  TileUse& operator=(const TileUse&) = delete;
};

}  // namespace
}  // namespace flarecore
