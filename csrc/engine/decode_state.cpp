#include "engine/decode_state.h"

#include <algorithm>

#include "text/query_mask.h"

namespace flarecore {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Bytes that the UTF-8 character at the end of `text` still needs.
size_t missing_bytes(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const unsigned char c = text[text.size() - back];
    if ((c & 0xC0) == 0x80) continue;
    const size_t length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
    return length > back ? length - back : 0;
  }
  return 0;
}

// Widens [begin, end) to whole characters. False if the last one may go on behind the text.
bool widen_to_characters(std::string_view text, size_t* begin, size_t* end) {
  if (*begin == *end) return true;
  for (int i = 0; i < 3 && *begin > 0 && continues_character(text[*begin]); ++i) --*begin;
  size_t missing = missing_bytes(text.substr(0, *end));
  for (; missing > 0 && *end < text.size() && continues_character(text[*end]); --missing) ++*end;
  return missing == 0 || *end < text.size();
}

}  // namespace

const char* stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kSentence: return "sentence";
    case StopReason::kEndOfText: return "eos";
    case StopReason::kStopString: return "stop_string";
    case StopReason::kMaxTokens: return "max_tokens";
    case StopReason::kContextLength: return "context_length";
    case StopReason::kLowConfidence: return "low_confidence";
    case StopReason::kNone: break;
  }
  return "none";
}

DecodeState::DecodeState(const DecodeOptions& options, const Vocabulary& vocabulary)
    : options_(options), vocabulary_(vocabulary) {
  for (const std::string& stop : options.stop) {
    longest_stop_ = std::max(longest_stop_, stop.size());
  }
}

bool DecodeState::accept(const Sampled& sampled) {
  if (vocabulary_.is_end_of_text(sampled.token) && !options_.ignore_eos) {
    saw_end_of_text_ = true;
    end_of_text_ = sampled;
    if (find_sentence_end_at_stop()) return finish_sentence();
    return finish(StopReason::kEndOfText, static_cast<int>(tokens_.size()), text_.size());
  }
  const std::string_view bytes = vocabulary_.text(sampled.token);
  const size_t old_size = text_.size();
  tokens_.push_back(sampled);
  text_.append(bytes);
  text_end_.push_back(text_.size());

  // The boundary first: a stop string behind the end of the sentence is the next decode's.
  if (options_.until_sentence && sentence_end_ == 0) {
    sentence_end_ = boundary_.feed(bytes.data(), bytes.size());
  }
  const size_t sentence_size = sentence_end_ > 0 ? text_end_[sentence_end_ - 1] : text_.size();
  const size_t stop = find_stop_string(old_size < longest_stop_ ? 0 : old_size - longest_stop_);
  if (stop < sentence_size) {
    // Tokens that have a byte before the stop string stay, the text is cut exactly.
    int kept = 0;
    while (kept < static_cast<int>(tokens_.size()) && (kept == 0 ? 0 : text_end_[kept - 1]) < stop) {
      ++kept;
    }
    return finish(StopReason::kStopString, kept, stop);
  }
  // A stop string may begin inside the sentence and end in what follows it: wait until that is clear.
  if (sentence_end_ > 0 && !may_become_stop_string(text_end_[sentence_end_ - 1])) {
    return finish_sentence();
  }
  judge_low_tokens();
  if (low_end_ > 0 && is_low_end_settled()) {
    return finish(StopReason::kLowConfidence, low_end_, text_end_[low_end_ - 1]);
  }
  if (static_cast<int>(tokens_.size()) >= options_.max_tokens) {
    return finish_at_limit(StopReason::kMaxTokens);
  }
  return false;
}

bool DecodeState::finish(StopReason reason, int num_kept, size_t text_size) {
  reason_ = reason;
  num_kept_ = num_kept;
  text_size_ = text_size;
  return true;
}

// Where nothing more comes, "... in the U.S. He" is two sentences: the first one is the result.
bool DecodeState::find_sentence_end_at_stop() {
  if (options_.until_sentence && sentence_end_ == 0 && !tokens_.empty()) {
    const int end = boundary_.finish();
    if (end < static_cast<int>(tokens_.size())) sentence_end_ = end;
  }
  return sentence_end_ > 0;
}

bool DecodeState::finish_sentence() {
  return finish(StopReason::kSentence, sentence_end_, text_end_[sentence_end_ - 1]);
}

// At a limit a sentence is not cut inside a character if an earlier token ends whole.
bool DecodeState::finish_at_limit(StopReason reason) {
  if (find_sentence_end_at_stop()) return finish_sentence();
  int kept = static_cast<int>(tokens_.size());
  if (options_.until_sentence) {
    while (kept > 0 && missing_bytes(std::string_view(text_).substr(0, text_end_[kept - 1])) > 0) {
      --kept;
    }
    if (kept == 0) kept = static_cast<int>(tokens_.size());
  }
  return finish(reason, kept, kept == 0 ? 0 : text_end_[kept - 1]);
}

std::vector<Sampled> DecodeState::held() const {
  std::vector<Sampled> held;
  // After a stop string or the end of the text nothing follows that a next decode could begin with.
  if (reason_ == StopReason::kStopString || reason_ == StopReason::kEndOfText) return held;
  held.assign(tokens_.begin() + num_kept_, tokens_.end());
  if (saw_end_of_text_) held.push_back(end_of_text_);
  return held;
}

// Looks for the first low token that may end the decode. A token inside a character is judged, and
// kept, with the whole of it.
void DecodeState::judge_low_tokens() {
  for (; low_end_ == 0 && first_unjudged_ < static_cast<int>(tokens_.size()); ++first_unjudged_) {
    const int i = first_unjudged_;
    if (tokens_[i].prob >= options_.stop_below) continue;
    size_t begin = i == 0 ? 0 : text_end_[i - 1];
    size_t end = text_end_[i];
    if (!widen_to_characters(text_, &begin, &end)) return;
    const std::string_view bytes = std::string_view(text_).substr(begin, end - begin);
    if (!options_.stop_at_punctuation && is_punctuation_or_space(bytes)) continue;
    low_end_ = i + 1;
    while (text_end_[low_end_ - 1] < end) ++low_end_;
  }
}

// The low token belongs to the sentence for certain, and to no stop string.
bool DecodeState::is_low_end_settled() const {
  if (options_.until_sentence && (sentence_end_ > 0 || boundary_.is_waiting())) return false;
  return !may_become_stop_string(text_end_[low_end_ - 1]);
}

size_t DecodeState::find_stop_string(size_t search_begin) const {
  size_t first = std::string::npos;
  for (const std::string& stop : options_.stop) {
    first = std::min(first, text_.find(stop, search_begin));
  }
  return first;
}

bool DecodeState::may_become_stop_string(size_t end) const {
  for (const std::string& stop : options_.stop) {
    for (size_t length = 1; length < stop.size() && length <= text_.size(); ++length) {
      const size_t begin = text_.size() - length;
      if (begin < end && text_.compare(begin, length, stop, 0, length) == 0) return true;
    }
  }
  return false;
}

}  // namespace flarecore
