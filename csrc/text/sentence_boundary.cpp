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

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }
bool is_ascii_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_ascii_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_ascii_letter(char c) { return is_ascii_upper(c) || is_ascii_lower(c); }

// "Blvd", "Sgt": no vowel, not all capitals. "PCs" is a plural and "NBC" a name.
bool looks_contracted(std::string_view word) {
  if (word.size() < 2 || word.size() > 5) return false;
  for (char c : word) {
    if (!is_ascii_letter(c)) return false;
    if (std::string_view("aeiouyAEIOUY").find(c) != std::string_view::npos) return false;
  }
  const std::string_view stem = word.back() == 's' ? word.substr(0, word.size() - 1) : word;
  return std::any_of(stem.begin(), stem.end(), is_ascii_lower);
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
  after_narrow_ = in_word;
  after_number_ = in_word && word_.size <= kMaxWord &&
                  word_.view().find_first_not_of("0123456789.") == std::string_view::npos;
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
    word_state_ = dot ? WordState::kAfterDot : WordState::kOutside;
    if ((flags & kSpace) == 0) only_space_since_word_ = false;
    if ((flags & kNewline) != 0) num_words_ = 0;
  }
  previous_ = c;
}

void SentenceBoundary::track_word_char(char32_t c, uint32_t flags) {
  if ((flags & kEastLetter) != 0) {
    word_state_ = WordState::kOutside;
    only_space_since_word_ = false;
    num_words_ = std::min<uint8_t>(num_words_ + 1, kManyWords);
    return;
  }
  if (word_state_ == WordState::kAfterDot) append(&word_, '.', kDot);
  if (word_state_ == WordState::kOutside) start_word();
  append(&word_, c, flags);
  word_state_ = WordState::kInside;
  only_space_since_word_ = true;
}

void SentenceBoundary::start_word() {
  previous_word_ = word_;
  if (!only_space_since_word_) previous_word_.size = 0;
  word_.size = 0;
  word_after_hyphen_ = previous_ == '-';
  num_chars_before_word_ = num_chars_ - 1;  // the first letter is counted already
  word_index_ = num_words_;
  num_words_ = std::min<uint8_t>(num_words_ + 1, kManyWords);
}

void SentenceBoundary::append(Word* word, char32_t c, uint32_t flags) {
  if (word->size >= kMaxWord) {
    word->size = kMaxWord + 1;
    return;
  }
  char stored = '\x01';
  if (c < 0x80) {
    stored = static_cast<char>(c);
  } else if (c == 0x2019) {
    stored = '\'';
  } else if (c >= 0xFF10 && c <= 0xFF5A) {
    stored = static_cast<char>(c - 0xFEE0);
  } else if ((flags & kUpper) != 0) {
    stored = '\x02';
  }
  word->text[word->size++] = stored;
}

// "1", "12", "1.2", "a", "IV", "Q3" as the first word of a line.
bool SentenceBoundary::is_list_marker() const {
  const std::string_view text = word_.view();
  if (text.size() == 1) return true;
  if (text.find_first_not_of("ivx") == std::string_view::npos && text.size() <= 4) return true;
  if (text.find_first_not_of("IVX") == std::string_view::npos && text.size() <= 4) return true;
  int digits = 0;
  for (size_t i = is_ascii_letter(text[0]) ? 1 : 0; i < text.size(); ++i) {
    digits = text[i] == '.' ? 0 : digits + 1;
    if (text[i] != '.' && (!is_ascii_digit(text[i]) || digits > 3)) return false;
  }
  return text.size() <= 8;
}

// U.S, p.m, J.R.R
bool SentenceBoundary::is_acronym() const {
  if (word_.size < 3 || word_.size > kMaxWord || word_.size % 2 == 0) return false;
  for (int i = 0; i < word_.size; ++i) {
    if ((word_.text[i] == '.') != (i % 2 == 1) || is_ascii_digit(word_.text[i])) return false;
  }
  return true;
}

SentenceBoundary::WordClass SentenceBoundary::classify_word() const {
  const std::string_view text = word_.view();
  if (text.empty()) return WordClass::kOrdinary;  // too long
  if (word_index_ == 0 && is_list_marker()) return WordClass::kMarker;
  switch (find_abbreviation(text)) {
    case AbbreviationClass::kNever: return WordClass::kNever;
    case AbbreviationClass::kNumber: return WordClass::kNumber;
    case AbbreviationClass::kDigit: return WordClass::kDigit;
    case AbbreviationClass::kAmbiguous: return WordClass::kAmbiguous;
    case AbbreviationClass::kNone: break;
  }
  const std::string_view before = previous_word_.view();
  if (text.size() == 1 && (is_ascii_upper(text[0]) || text[0] == '\x02')) {
    const bool initial = !word_after_hyphen_ && !has_role(before, kLetterHead);
    return initial ? WordClass::kAmbiguous : WordClass::kOrdinary;
  }
  if (is_acronym() || looks_contracted(text)) return WordClass::kAmbiguous;
  if (word_index_ == 1 && has_role(before, kNumberHead) &&
      std::all_of(text.begin(), text.end(), is_ascii_digit)) {
    return WordClass::kNever;
  }
  return WordClass::kOrdinary;
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
