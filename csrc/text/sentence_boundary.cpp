// The sentence so far: words, counts and where a candidate end opens.
#include "text/sentence_boundary.h"

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "common/check.h"
#include "text/abbreviations.h"
#include "text/char_class.h"

namespace flarecore {
namespace {

constexpr int kMaxMinChars = 1000000;
constexpr uint8_t kManyWords = 200;

uint8_t pair_bit(char32_t c) {
  switch (c) {
    case '"': return 1;
    case '*': return 2;
    case '`': return 4;
    case '_': return 8;
    case '~': return 16;
    default: return 32;  // « »
  }
}

}  // namespace

static_assert(std::is_trivially_copyable_v<SentenceBoundary>, "a checkpoint is a plain copy");

SentenceBoundary::SentenceBoundary(BoundaryOptions options) : options_(options) {
  check(options.min_chars >= 1 && options.min_chars <= kMaxMinChars, ErrorKind::kConfig,
        "min_chars must be in [1, ", kMaxMinChars, "], got ", options.min_chars,
        "; 1 is the shortest sentence");
}

void SentenceBoundary::reset() { *this = SentenceBoundary(options_); }

int SentenceBoundary::feed(const char* bytes, size_t size) {
  if (decided_) return end_tokens_;
  ++num_tokens_;
  for (size_t i = 0; i < size; ++i) {
    char32_t chars[4];
    const int count = decoder_.push(static_cast<uint8_t>(bytes[i]), chars);
    ++num_bytes_;
    for (int k = 0; k < count; ++k) {
      if (step(chars[k], num_bytes_ - decoder_.num_pending()) == Verdict::kBoundary) {
        decided_ = true;
        return end_tokens_;
      }
    }
  }
  return 0;
}

int SentenceBoundary::finish() {
  if (decided_ || num_tokens_ == 0) return end_tokens_;
  bool boundary = false;
  for (int i = decoder_.num_pending(); i > 0 && !boundary; --i) {
    boundary = step(kReplacementChar, num_bytes_) == Verdict::kBoundary;
  }
  if (!boundary && at_text_end() != Verdict::kBoundary) {
    end_tokens_ = num_tokens_;
    end_byte_ = num_bytes_;
  }
  decided_ = true;
  return end_tokens_;
}

SentenceBoundary::Verdict SentenceBoundary::step(char32_t c, int64_t char_end) {
  const uint32_t flags = char_flags(c);
  char_end_ = char_end;
  if (stage_ != Stage::kIdle) {
    const Verdict verdict = look_ahead(c, flags);
    if (verdict == Verdict::kBoundary) return verdict;
    if (verdict == Verdict::kNone) stage_ = Stage::kIdle;
  }
  if (stage_ == Stage::kIdle && (flags & (kTerminator | kNewline)) != 0) open(c, flags);
  track(c, flags);
  return Verdict::kWait;
}

// Opens a candidate at a terminator or newline, if a sentence may end here at all.
void SentenceBoundary::open(char32_t c, uint32_t flags) {
  const bool newline = (flags & kNewline) != 0;
  if (newline && !options_.newline_is_boundary) return;
  const bool in_word = word_state_ == WordState::kInside;
  WordClass word_class = WordClass::kOrdinary;
  if (in_word && (flags & (kDot | kWideDot)) != 0) word_class = classify_word();
  if (in_word && c == '!' && has_role(word_.view(), kExclaimedName)) {
    word_class = WordClass::kAmbiguous;
  }
  if (word_class == WordClass::kMarker) num_chars_ = num_chars_before_word_;
  if (word_class == WordClass::kMarker || word_class == WordClass::kNever) return;
  if (num_chars_ < options_.min_chars) return;

  set_end();
  stage_ = newline ? Stage::kSpace : Stage::kRun;
  newline_seen_ = newline;
  kind_ = (flags & kStrong) != 0     ? Kind::kStrong
          : (flags & kQuestion) != 0 ? Kind::kQuestion
          : (flags & kEllipsis) != 0 ? Kind::kEllipsis
          : (flags & kWideDot) != 0  ? Kind::kWide
                                     : Kind::kPeriod;
  after_space_ = (char_flags(previous_) & kSpace) != 0;
  word_class_ = kind_ == Kind::kEllipsis ? class_without_word() : word_class;
  after_month_head_ = in_word && has_role(previous_word_.view(), kMonthHead);
  after_narrow_ = in_word;
  after_number_ = in_word && word_.size <= kMaxWord &&
                  word_.view().find_first_not_of(u"0123456789.") == std::u16string_view::npos;
  after_closer_ = false;
  closer_flags_ = 0;
  lookahead_count_ = 0;
}

bool SentenceBoundary::is_open_pair(char32_t c) const { return (open_pairs_ & pair_bit(c)) != 0; }

void SentenceBoundary::track(char32_t c, uint32_t flags) {
  if ((flags & kPaired) != 0 && c != previous_) open_pairs_ ^= pair_bit(c);
  if (c == 0xAB) open_pairs_ |= pair_bit(c);
  if (c == 0xBB) open_pairs_ &= static_cast<uint8_t>(~pair_bit(c));
  if ((flags & kUpper) != 0) seen_upper_ = true;
  if ((flags & kWordChar) != 0) {
    num_chars_ = std::min(num_chars_ + 1, kMaxMinChars);
    track_word_char(c, flags);
  } else if (word_state_ == WordState::kInside && (c == '&' || c == '\'' || c == 0x2019)) {
    append(&word_, c, flags);
  } else {
    const bool dot = (flags & kDot) != 0 && word_state_ == WordState::kInside;
    const bool hyphen = c == '-' && word_state_ == WordState::kAfterDot;  // J.-C.
    after_dot_ = dot || (after_dot_ && (flags & kSpace) != 0 && (flags & kNewline) == 0);
    word_state_ = dot      ? WordState::kAfterDot
                  : hyphen ? WordState::kAfterDotHyphen
                           : WordState::kOutside;
    if ((flags & kSpace) == 0) only_space_since_word_ = false;
    if ((flags & kNewline) != 0) num_words_ = 0;
  }
  previous_ = c;
}

void SentenceBoundary::track_word_char(char32_t c, uint32_t flags) {
  if ((flags & kEastLetter) != 0) {
    word_state_ = WordState::kOutside;
    only_space_since_word_ = after_dot_ = false;
    num_words_ = std::min<uint8_t>(num_words_ + 1, kManyWords);
    return;
  }
  if (word_state_ == WordState::kAfterDot) word_.add(u".");
  if (word_state_ == WordState::kAfterDotHyphen) word_.add(u".-");
  if (word_state_ == WordState::kOutside) start_word();
  append(&word_, c, flags);
  word_state_ = WordState::kInside;
  only_space_since_word_ = true;
  after_dot_ = false;
}

void SentenceBoundary::start_word() {
  previous_word_ = word_;
  if (!only_space_since_word_) previous_word_.size = 0;
  const bool is_linked = after_dot_ && word_.size <= kMaxLinked &&
                         word_.view().find(u'.') == std::u16string_view::npos;
  linked_[0] = is_linked ? linked_[1] : Word{};
  linked_[1] = is_linked ? word_ : Word{};
  word_.size = 0;
  word_after_hyphen_ = previous_ == '-';
  num_chars_before_word_ = num_chars_ - 1;  // the first letter is counted already
  word_index_ = num_words_;
  num_words_ = std::min<uint8_t>(num_words_ + 1, kManyWords);
}

void SentenceBoundary::append(Word* word, char32_t c, uint32_t flags) {
  char16_t stored = static_cast<char16_t>(c);
  if (c == 0x2019) {
    stored = '\'';
  } else if (c >= 0xFF10 && c <= 0xFF5A) {
    stored = static_cast<char16_t>(c - 0xFEE0);
  } else if (c > 0xFFFF) {
    stored = (flags & kUpper) != 0 ? 2 : (flags & kLower) != 0 ? 3 : 1;
  }
  word->add({&stored, 1});
}

void SentenceBoundary::Word::add(std::u16string_view units) {
  for (char16_t unit : units) {
    if (size < kMaxWord) text[size] = unit;
    size = std::min<uint8_t>(size + 1, kMaxWord + 1);
  }
}

std::vector<int64_t> split_sentences(std::string_view text, BoundaryOptions options) {
  SentenceBoundary boundary(options);
  std::vector<int64_t> ends;
  for (size_t begin = 0; begin < text.size();) {
    boundary.reset();
    const std::string_view rest = text.substr(begin);
    if (boundary.feed(rest.data(), rest.size()) == 0) boundary.finish();
    begin += static_cast<size_t>(boundary.end_byte());
    ends.push_back(static_cast<int64_t>(begin));
  }
  return ends;
}

}  // namespace flarecore
