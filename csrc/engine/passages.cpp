// The engine's passages: encoding one on its own, and attaching them to a sequence (design 3.5).
#include <algorithm>

#include "engine/engine.h"

namespace flarecore {

std::shared_ptr<Operation> Engine::encode(const Sequence& sequence, OperationRequest request) {
  const auto guard = lock();
  check_usable(sequence);
  check_token_ids(request.token_ids);
  const int num_head = sequence.kv.num_head, size = static_cast<int>(request.token_ids.size());
  check(size >= 1 && size <= sequence.kv.num_reserved, ErrorKind::kConfig, "a passage of ", size,
        " tokens; the sequence reserves positions for 1 to ", sequence.kv.num_reserved,
        " (num_reserved)");
  check(num_head <= static_cast<int>(sequence.tokens.size()), ErrorKind::kConfig,
        "the sequence has ", sequence.tokens.size(), " tokens, its head ", num_head,
        "; extend it before passages are encoded");
  auto alone = std::make_shared<Sequence>();
  alone->tokens.assign(sequence.tokens.begin(), sequence.tokens.begin() + num_head);
  cache_.open(&alone->kv);
  cache_.fork(sequence.kv, &alone->kv);
  cache_.truncate(&alone->kv, num_head);
  // The passage follows the head at once, and its copy is what others share.
  alone->kv.num_head = alone->kv.num_reserved = 0;
  alone->kv.passages.clear();
  alone->kv.private_from = num_head;
  request.kind = OperationKind::kEncode;
  return start(alone, std::move(request));
}

void Engine::attach(Sequence* sequence, const Passages& passages, int sees_from) {
  const auto guard = lock();
  check_usable(*sequence);
  const int num_head = sequence->kv.num_head, size = static_cast<int>(sequence->tokens.size());
  if (!passages.empty()) {
    check(sequence->kv.num_reserved > 0, ErrorKind::kConfig,
          "the sequence reserves no positions for passages; open it with num_head_tokens and "
          "num_reserved");
    check(num_head <= size, ErrorKind::kConfig, "the sequence has ", size, " tokens, its head ",
          num_head, "; extend it before passages are attached");
    check(sees_from >= num_head, ErrorKind::kConfig, "from_token must be at least ", num_head,
          " (tokens of the head), got ", sees_from);
  }
  for (const auto& passage : passages) {
    check(passage->fits(weights_, cache_.layout().format), ErrorKind::kConfig,
          "the passage was encoded by another model, compute mode or kv_format; encode it with "
          "this engine");
    check(static_cast<int>(passage->head().size()) == num_head &&
              std::equal(passage->head().begin(), passage->head().end(), sequence->tokens.begin()),
          ErrorKind::kConfig, "the passage was encoded behind another head than the sequence has");
    check(passage->num_tokens() <= sequence->kv.num_reserved, ErrorKind::kConfig, "a passage of ",
          passage->num_tokens(), " tokens; the sequence reserves ", sequence->kv.num_reserved,
          " positions (num_reserved)");
  }
  if (cache_.attach(&sequence->kv, passages, sees_from)) sequence->held = {};
}

std::pair<int, int> Engine::num_head_and_reserved(const Sequence& sequence) {
  const auto guard = lock();
  return {sequence.kv.num_head, sequence.kv.num_reserved};
}

std::shared_ptr<const PassageKv> Engine::load_passage(std::vector<TokenId> head,
                                                      std::vector<TokenId> tokens,
                                                      std::shared_ptr<const void> owner,
                                                      Span<const uint8_t> data) {
  check_token_ids(head);
  check_token_ids(tokens);
  const size_t size =
      size_t(blocks_for(static_cast<int>(tokens.size()))) * cache_.layout().block_size_bytes();
  check(!tokens.empty() && data.size() == size, ErrorKind::kIndexFile, "a passage of ",
        tokens.size(), " tokens takes ", size, " bytes, got ", data.size());
  check(reinterpret_cast<uintptr_t>(data.data()) % 64 == 0, ErrorKind::kIndexFile,
        "the blocks of a passage must be 64-byte aligned");
  return std::make_shared<const PassageKv>(cache_.layout(), std::move(head), std::move(tokens),
                                           std::move(owner), data.data(), weights_);
}

}  // namespace flarecore
