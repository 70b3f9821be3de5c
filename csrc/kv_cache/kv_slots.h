// The slots of a block: where the numbers of single tokens go.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "kv_cache/kv_layout.h"

namespace flarecore {

// Puts a token's key (head_dim) into a slot of one head's K, or its value into one of V.
void store_key(const KvLayout& layout, const KernelTable& kernels, const float* key, int slot,
               uint8_t* k);
void store_value(const KvLayout& layout, const KernelTable& kernels, const float* value, int slot,
                 uint8_t* v);

// Copies `count` tokens of every head from slot `from_slot` of one block to `to_slot` of another.
void copy_slots(const KvLayout& layout, const uint8_t* from, int from_slot, uint8_t* to,
                int to_slot, int count);

}  // namespace flarecore
