// Guesses for speculative decoding: first the draft, then n-gram matches in known text.
//
// A guess never changes the result, only how many tokens one forward pass yields (design, 3.6): every
// proposed token is verified against what the sampler draws at its position.
#pragma once

#include <vector>

#include "common/span.h"
#include "common/types.h"

namespace flarecore {

class Proposer {
 public:
  // `draft` continues the sequence from its first sampled token on. `sources` are texts whose wording
  // may recur (evidence, draft, question); both may be empty.
  Proposer(std::vector<TokenId> draft, const std::vector<std::vector<TokenId>>& sources);

  // What may follow `tokens`, of which the last num_sampled were sampled by this decode; at most
  // max_tokens, often none. Valid until the next call.
  Span<const TokenId> propose(Span<const TokenId> tokens, int num_sampled, int max_tokens);

  // How the last proposal (not empty) fared.
  void report(int num_proposed, int num_accepted);

 private:
  size_t find_continuation(Span<const TokenId> tokens) const;

  std::vector<TokenId> draft_;
  std::vector<TokenId> text_;  // the sources, each ended by -1 so that no match crosses two
  bool draft_holds_ = true;    // everything sampled so far equals the draft's beginning
  int length_;                 // tokens of the next n-gram proposal
  int num_misses_ = 0;         // proposals in a row of which nothing was accepted
  int pause_ = 0;              // steps without n-gram proposals, after too many misses
  int next_pause_;
};

}  // namespace flarecore
