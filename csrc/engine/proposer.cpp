#include "engine/proposer.h"

#include <algorithm>

namespace flarecore {
namespace {

// Verifying 4 rows costs about 1.3 times one row (design, 3.6): short guesses pay even if only every
// third one is right, long ones only while they hold.
constexpr int kStartLength = 3, kMaxLength = 12;
constexpr int kLongestMatch = 3, kShortestMatch = 2;  // tokens that must agree before a guess
constexpr int kMissesBeforePause = 3, kFirstPause = 4, kMaxPause = 64;

}  // namespace

Proposer::Proposer(std::vector<TokenId> draft, const std::vector<std::vector<TokenId>>& sources)
    : draft_(std::move(draft)), length_(kStartLength), next_pause_(kFirstPause) {
  for (const std::vector<TokenId>& source : sources) {
    text_.insert(text_.end(), source.begin(), source.end());
    text_.push_back(-1);
  }
}

Span<const TokenId> Proposer::propose(Span<const TokenId> tokens, int num_sampled, int max_tokens) {
  if (max_tokens <= 0) return {};
  if (draft_holds_) {
    const size_t sampled = num_sampled;
    const TokenId* first = tokens.end() - sampled;
    draft_holds_ = sampled < draft_.size() && std::equal(first, tokens.end(), draft_.begin());
    if (draft_holds_) {
      return {draft_.data() + sampled,
              std::min<size_t>(draft_.size() - sampled, max_tokens)};
    }
  }
  if (pause_ > 0) {
    --pause_;
    return {};
  }
  const size_t begin = find_continuation(tokens);
  size_t end = begin;
  const size_t limit = std::min<size_t>(text_.size(), begin + std::min(length_, max_tokens));
  while (end < limit && text_[end] >= 0) ++end;
  return {text_.data() + begin, end - begin};
}

void Proposer::report(int num_proposed, int num_accepted) {
  if (draft_holds_) return;  // a draft is proposed once, its length says nothing about matches
  if (num_accepted > 0) {
    num_misses_ = 0;
    next_pause_ = kFirstPause;
    length_ = num_accepted == num_proposed ? std::min(2 * length_, kMaxLength)
                                           : std::max(num_accepted + 1, kStartLength);
    return;
  }
  length_ = std::max(1, length_ - 1);
  if (++num_misses_ >= kMissesBeforePause) {
    num_misses_ = 0;
    pause_ = next_pause_;
    next_pause_ = std::min(2 * next_pause_, kMaxPause);
  }
}

// Index in text_ after the longest, then latest match of the last tokens; text_.size() if none.
size_t Proposer::find_continuation(Span<const TokenId> tokens) const {
  for (size_t length = kLongestMatch; length >= size_t{kShortestMatch}; --length) {
    if (tokens.size() < length) continue;
    const TokenId* last = tokens.end() - length;
    for (size_t i = text_.size(); i-- > length;) {
      if (std::equal(last, tokens.end(), text_.begin() + (i - length)) && text_[i] >= 0) return i;
    }
  }
  return text_.size();
}

}  // namespace flarecore
