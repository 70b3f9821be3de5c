#include "text/query_mask.h"

#include <cmath>

#include "common/check.h"
#include "text/char_class.h"
#include "text/utf8.h"

namespace flarecore {
namespace {

// Confidences may round a little above 1.
constexpr float kMaxProb = 1.001f;

struct MaskChar {
  char32_t code_point;
  uint32_t flags;
  int first_token, last_token;
  bool dropped;
};

bool is_special(const MaskInput& input, size_t i) {
  return !input.is_special.empty() && input.is_special[i] != 0;
}

bool is_low(float prob, const LowRule& rule) {
  return std::isnan(prob) || (rule.inclusive ? prob <= rule.threshold : prob < rule.threshold);
}

void check_input(const MaskInput& input, const LowRule& rule) {
  const size_t n = input.token_bytes.size();
  check(input.probs.size() == n, ErrorKind::kConfig, "one probability a token: got ",
        input.probs.size(), " for ", n, " tokens");
  check(input.is_special.empty() || input.is_special.size() == n, ErrorKind::kConfig,
        "one special flag a token, or none: got ", input.is_special.size(), " for ", n, " tokens");
  check(rule.threshold >= 0.0f && rule.threshold <= 1.0f, ErrorKind::kConfig,
        "the threshold must be in [0, 1], got ", rule.threshold);
  for (size_t i = 0; i < n; ++i) {
    const float p = input.probs[i];
    check(std::isnan(p) || (p >= 0.0f && p <= kMaxProb), ErrorKind::kConfig, "probability ", i,
          " must be in [0, 1], got ", p, "; pass probabilities, not their logarithms");
  }
}

class QueryMask {
 public:
  QueryMask(const MaskInput& input, const LowRule& rule) : input_(input), rule_(rule) { decode(); }

  void widen_to_words();
  void drop_lone_punctuation();
  MaskedQuery build() const;

 private:
  void decode();
  void decode_run(const std::string& bytes, const std::vector<int>& owner);
  bool is_word_char(size_t i) const;
  bool joins(size_t i) const;
  size_t unit_end(size_t begin) const;
  bool is_kept_word_char(size_t i) const { return !chars_[i].dropped && is_word_like(i); }
  bool is_word_like(size_t i) const { return (chars_[i].flags & kWordChar) != 0; }

  const MaskInput& input_;
  const LowRule& rule_;
  std::vector<MaskChar> chars_;
};

// Special tokens cut the text: no character or word reaches across one.
void QueryMask::decode() {
  std::string bytes;
  std::vector<int> owner;
  for (size_t i = 0; i < input_.token_bytes.size(); ++i) {
    if (is_special(input_, i)) {
      decode_run(bytes, owner);
      bytes.clear();
      owner.clear();
      chars_.push_back({' ', kSpace, static_cast<int>(i), static_cast<int>(i), true});
    } else {
      bytes.append(input_.token_bytes[i]);
      owner.resize(bytes.size(), static_cast<int>(i));
    }
  }
  decode_run(bytes, owner);
}

void QueryMask::decode_run(const std::string& bytes, const std::vector<int>& owner) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  for (size_t at = 0; at < bytes.size();) {
    const int length = utf8_char_length(data + at, bytes.size() - at);
    const size_t size = length == 0 ? 1 : static_cast<size_t>(length);
    const char32_t c = length == 0 ? kReplacementChar : utf8_code_point(data + at, length);
    bool dropped = c == kReplacementChar;
    for (size_t b = at; b < at + size; ++b) {
      dropped = dropped || is_low(input_.probs[static_cast<size_t>(owner[b])], rule_);
    }
    chars_.push_back({c, char_flags(c), owner[at], owner[at + size - 1], dropped});
    at += size;
  }
}

// Marks that belong to the character before them, in scripts where a character is a word.
bool is_attached_mark(char32_t c) {
  const auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  return c == 0x0E31 || in(0x0E34, 0x0E3A) || in(0x0E47, 0x0E4E) ||   // Thai
         c == 0x0EB1 || in(0x0EB4, 0x0EBC) || in(0x0EC8, 0x0ECE) ||   // Lao
         in(0x0F71, 0x0F84) || in(0x0F8D, 0x0FBC) ||                  // Tibetan
         in(0x102B, 0x103E) || in(0x1056, 0x1059) ||                  // Myanmar
         in(0x17B4, 0x17D3) || in(0x3099, 0x309A);                    // Khmer, Kana
}

bool QueryMask::is_word_char(size_t i) const {
  return i < chars_.size() && (chars_[i].flags & kWordChar) != 0 &&
         (chars_[i].flags & kUnspaced) == 0;
}

// True if the character only holds a word together: it stands between two of its letters or digits.
bool QueryMask::joins(size_t i) const {
  if (i == 0 || !is_word_char(i - 1) || !is_word_char(i + 1)) return false;
  switch (chars_[i].code_point) {
    case '\'': case 0x2019: case '.': case '&': case '_': case '@': case 0x200C: case 0x200D:
      return true;
    case ',': case ':': case 0xFF0E: case 0xFF0C:
      return (chars_[i - 1].flags & chars_[i + 1].flags & kDigit) != 0;
    default:
      return false;
  }
}

// End of the word (or character with its marks) that begins here.
size_t QueryMask::unit_end(size_t begin) const {
  size_t end = begin + 1;
  if (is_word_char(begin)) {
    while (is_word_char(end) || (end < chars_.size() && joins(end))) ++end;
  } else if (is_word_like(begin)) {
    while (end < chars_.size() && is_attached_mark(chars_[end].code_point)) ++end;
  }
  return end;
}

void QueryMask::widen_to_words() {
  for (size_t begin = 0; begin < chars_.size();) {
    const size_t end = unit_end(begin);
    bool dropped = false;
    for (size_t i = begin; i < end; ++i) dropped = dropped || chars_[i].dropped;
    for (size_t i = begin; i < end; ++i) chars_[i].dropped = dropped;
    begin = end;
  }
}

// In "born in [Pennsylvania], then" the comma has lost its word.
void QueryMask::drop_lone_punctuation() {
  const auto is_kept_mark = [this](size_t i) {
    return i < chars_.size() && !chars_[i].dropped && (chars_[i].flags & (kPunct | kSymbol)) != 0;
  };
  for (size_t begin = 0; begin < chars_.size();) {
    size_t end = begin;
    while (is_kept_mark(end)) ++end;
    if (end == begin) {
      ++begin;
      continue;
    }
    const bool gap_before = begin > 0 && chars_[begin - 1].dropped;
    const bool gap_after = end < chars_.size() && chars_[end].dropped;
    const bool held = (begin > 0 && is_kept_word_char(begin - 1)) ||
                      (end < chars_.size() && is_kept_word_char(end));
    const bool dropped = (gap_before || gap_after) && !held;
    for (size_t i = begin; i < end; ++i) chars_[i].dropped = dropped;
    begin = end + 1;  // what stands there is no mark, or is dropped
  }
}

MaskedQuery QueryMask::build() const {
  const size_t n = input_.token_bytes.size();
  MaskedQuery query;
  std::vector<uint8_t> visible(n, 0), shown(n, 0);
  bool gap = false;
  for (const MaskChar& c : chars_) {
    const bool space = (c.flags & kSpace) != 0;
    for (auto t = static_cast<size_t>(c.first_token); t <= static_cast<size_t>(c.last_token); ++t) {
      if (space || input_.token_bytes[t].empty()) continue;
      visible[t] = 1;
      if (!c.dropped) shown[t] = 1;
    }
    if (c.dropped || space) {
      gap = true;
      continue;
    }
    if (gap && !query.text.empty()) query.text.push_back(' ');
    gap = false;
    append_utf8(c.code_point, &query.text);
  }
  for (size_t i = 0; i < n; ++i) {
    const bool empty_kept =
        visible[i] == 0 && !is_special(input_, i) && !is_low(input_.probs[i], rule_);
    query.kept.push_back(shown[i] != 0 || empty_kept ? 1 : 0);
  }
  return query;
}

}  // namespace

MaskedQuery mask_to_query(const MaskInput& input, const LowRule& rule, MaskUnit unit) {
  check_input(input, rule);
  QueryMask mask(input, rule);
  if (unit == MaskUnit::kWord) {
    mask.widen_to_words();
    mask.drop_lone_punctuation();
  }
  return mask.build();
}

std::vector<TokenSpan> low_spans(const MaskInput& input, const LowRule& rule, int span_gap) {
  check_input(input, rule);
  check(span_gap >= 0, ErrorKind::kConfig, "span_gap must be at least 0 tokens, got ", span_gap);
  std::vector<TokenSpan> spans;
  bool open = false;  // the last span may still grow
  for (size_t i = 0; i < input.token_bytes.size(); ++i) {
    if (is_special(input, i)) open = false;
    if (is_special(input, i) || !is_low(input.probs[i], rule)) continue;
    if (is_punctuation_or_space(input.token_bytes[i])) continue;
    const int at = static_cast<int>(i);
    const int distance = open ? at - (spans.back().end - 1) : 0;
    if (open && (distance == 1 || distance < span_gap)) {
      spans.back().end = at + 1;
    } else {
      spans.push_back({at, at + 1});
    }
    open = true;
  }
  return spans;
}

bool is_punctuation_or_space(std::string_view bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  for (size_t at = 0; at < bytes.size();) {
    const int length = utf8_char_length(data + at, bytes.size() - at);
    if (length == 0) return false;
    if ((char_flags(utf8_code_point(data + at, length)) & (kPunct | kSpace)) == 0) return false;
    at += static_cast<size_t>(length);
  }
  return true;
}

}  // namespace flarecore
