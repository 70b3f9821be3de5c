// The text side of a decode: takes sampled tokens one by one and knows when the sentence is over.
#pragma once

#include <string>
#include <vector>

#include "sampling/sampler.h"
#include "text/sentence_boundary.h"
#include "text/vocabulary.h"

namespace flarecore {

enum class StopReason {
  kNone, kSentence, kEndOfText, kStopString, kMaxTokens, kContextLength, kLowConfidence
};

const char* stop_reason_name(StopReason reason);

struct DecodeOptions {
  int max_tokens = 0;
  SamplingParams sampling;
  uint32_t pass = 0;          // 0 draft, 1 regeneration: which random numbers are drawn
  bool until_sentence = true;
  bool ignore_eos = false;    // end-of-text tokens are decoded like any other
  std::vector<std::string> stop;
  float beta = 0.0f;          // mask bit: confidence < beta
  // A token with a confidence below it ends the decode (0: none does, above 1: every one). Tokens
  // of only punctuation or white space and special tokens do not, unless the flag is set.
  float stop_below = 0.0f;
  bool stop_at_punctuation = false;
};

class DecodeState {
 public:
  DecodeState(const DecodeOptions& options, const Vocabulary& vocabulary);

  // Takes the next token; true when the decode is over and nothing more may be given.
  bool accept(const Sampled& sampled);
  // The context is full: ends the decode where it is.
  void end_at_context() { finish_at_limit(StopReason::kContextLength); }

  // Tokens taken so far, an end-of-text token not among them.
  const std::vector<Sampled>& tokens() const { return tokens_; }
  bool finished() const { return reason_ != StopReason::kNone; }
  // Whether what comes next may show that the decode has ended before it: behind a terminator, a
  // low token or the beginning of a stop string that hangs over the end of the sentence.
  bool is_looking_ahead() const {
    return sentence_end_ > 0 || low_end_ > 0 || (options_.until_sentence && boundary_.is_waiting());
  }

  // Valid once finished. The first num_kept() tokens are the result; the others were looked at to
  // find its end and begin what comes next (held()).
  StopReason reason() const { return reason_; }
  int num_kept() const { return num_kept_; }
  std::vector<Sampled> held() const;
  std::string text() const { return text_.substr(0, text_size_); }

 private:
  bool finish(StopReason reason, int num_kept, size_t text_size);
  bool find_sentence_end_at_stop();
  bool finish_sentence();
  bool finish_at_limit(StopReason reason);
  size_t find_stop_string(size_t search_begin) const;
  bool may_become_stop_string(size_t end) const;
  void judge_low_tokens();
  bool is_low_end_settled() const;

  const DecodeOptions& options_;
  const Vocabulary& vocabulary_;
  SentenceBoundary boundary_;
  std::vector<Sampled> tokens_;
  std::vector<size_t> text_end_;  // [i]: bytes of text after token i
  std::string text_;
  size_t longest_stop_ = 0;
  int sentence_end_ = 0;  // tokens of the sentence once its end is known, else 0
  int first_unjudged_ = 0;  // earlier tokens are not low, or may not end the decode
  int low_end_ = 0;         // tokens up to the first low one that may, 0 if there is none
  bool saw_end_of_text_ = false;
  Sampled end_of_text_;
  StopReason reason_ = StopReason::kNone;
  int num_kept_ = 0;
  size_t text_size_ = 0;
};

}  // namespace flarecore
