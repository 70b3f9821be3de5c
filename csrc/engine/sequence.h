// A sequence: a list of token ids with a KV cache behind it.
//
// Everything here is guarded by the engine's lock; the engine is the only one that changes it.
// KV is computed for positions [0, kv.num_computed). The last token's KV is usually still missing:
// its row is fed by the next operation, which needs its logits anyway.
#pragma once

#include <memory>
#include <vector>

#include "engine/decode_state.h"
#include "kv_cache/kv_cache.h"

namespace flarecore {

// Tokens that a decode sampled past the end of its sentence. They are what a decode with the same
// sampling would draw next, so it takes them from here; any change of the sequence drops them.
struct HeldTokens {
  std::vector<Sampled> tokens;
  SamplingParams sampling;
  uint32_t pass = 0;
};

class Operation;

struct Sequence {
  std::vector<TokenId> tokens;
  KvSequence kv;
  HeldTokens held;
  bool is_busy = false;  // an operation runs on it
  std::weak_ptr<Operation> operation;  // that operation
  bool is_closed = false;
};

// Everything a rollback brings back. Holds references to the KV blocks of its moment.
struct Checkpoint {
  const void* engine = nullptr;  // whose blocks these are
  std::vector<TokenId> tokens;
  KvSequence kv;
  HeldTokens held;
};

}  // namespace flarecore
