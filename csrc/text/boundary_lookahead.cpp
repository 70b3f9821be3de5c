// What follows a terminator decides whether the sentence ended there.
#include <algorithm>
#include <string_view>

#include "text/abbreviations.h"
#include "text/char_class.h"
#include "text/sentence_boundary.h"

namespace flarecore {
namespace {

constexpr int kMaxCitation = 12;   // characters inside [ ]
constexpr int kMaxSymbols = 8;     // quotes, dashes, bullets looked past in front of a word

// Japanese particles that carry on after a closed quotation or title: 『君の名は。』は
bool is_particle(char32_t c) {
  return std::u32string_view(U"とっをがのには").find(c) != std::u32string_view::npos;
}

}  // namespace

SentenceBoundary::Verdict SentenceBoundary::look_ahead(char32_t c, uint32_t flags) {
  switch (stage_) {
    case Stage::kRun: return look_run(c, flags);
    case Stage::kCite: return look_cite(c);
    case Stage::kSpace: return look_space(c, flags);
    case Stage::kOpen: return look_open(c, flags);
    case Stage::kGuillemet: return look_guillemet(c, flags);
    case Stage::kLower: return before_lower_word((flags & kUpper) != 0);
    case Stage::kWord: return look_word(c, flags);
    case Stage::kMonth: return look_month(flags);
    case Stage::kIdle: break;
  }
  return Verdict::kNone;
}

// Closers and further terminators are part of the sentence.
SentenceBoundary::Verdict SentenceBoundary::look_run(char32_t c, uint32_t flags) {
  if ((flags & kTerminator) != 0) {
    absorb_terminator(flags);
  } else if (closes(c, flags)) {
    absorb_closer(flags);
  } else if (c == '[') {
    stage_ = Stage::kCite;
    lookahead_count_ = 0;
  } else if ((flags & kSpace) != 0) {
    stage_ = Stage::kSpace;
    return look_space(c, flags);
  } else {
    return directly_before(c, flags);
  }
  return Verdict::kWait;
}

SentenceBoundary::Verdict SentenceBoundary::look_cite(char32_t c) {
  if (c == ']' && lookahead_count_ > 0) {
    absorb_closer(0);
    return Verdict::kWait;
  }
  const bool inside = std::u32string_view(U"0123456789,-–^ ").find(c) != std::u32string_view::npos;
  if (inside && ++lookahead_count_ <= kMaxCitation) return Verdict::kWait;
  return needs_space() ? Verdict::kNone : Verdict::kBoundary;
}

SentenceBoundary::Verdict SentenceBoundary::look_space(char32_t c, uint32_t flags) {
  if ((flags & kSpace) != 0) {
    if ((flags & kNewline) != 0 && options_.newline_is_boundary) {
      newline_seen_ = true;
      set_end();
    }
    return Verdict::kWait;
  }
  if (newline_seen_) return Verdict::kBoundary;
  if ((flags & kTerminator) != 0) {
    absorb_terminator(flags);
    return Verdict::kWait;
  }
  const bool french = c == 0xBB && is_open_pair(c);  // « Non. »
  if ((flags & kHardCloser) != 0 || french) {
    absorb_closer(flags);
    return Verdict::kWait;
  }
  if ((flags & kContinue) != 0) return Verdict::kNone;
  if (!needs_space()) return Verdict::kBoundary;
  if (c == 0xBB) {
    stage_ = Stage::kGuillemet;
    guillemet_tokens_ = num_tokens_;
    guillemet_byte_ = char_end_;
    return Verdict::kWait;
  }
  stage_ = Stage::kOpen;
  lookahead_count_ = 0;
  return look_open(c, flags);
}

// A » whose « stands in an earlier sentence: French closes with " » ", Danish opens with " »Ja".
SentenceBoundary::Verdict SentenceBoundary::look_guillemet(char32_t c, uint32_t flags) {
  if ((flags & kSpace) != 0) {
    absorb_closer(kCloser);
    end_tokens_ = guillemet_tokens_;
    end_byte_ = guillemet_byte_;
    stage_ = Stage::kSpace;
    return look_space(c, flags);
  }
  stage_ = Stage::kOpen;
  lookahead_count_ = 1;
  return look_open(c, flags);
}

// Looks past what may stand before the next word.
SentenceBoundary::Verdict SentenceBoundary::look_open(char32_t c, uint32_t flags) {
  if ((flags & kWordChar) != 0) return before_first_letter(c, flags);
  const bool newline = (flags & kNewline) != 0 && options_.newline_is_boundary;
  if ((flags & kSpace) != 0 && !newline) return Verdict::kWait;
  if (newline || (flags & kTerminator) != 0 || ++lookahead_count_ > kMaxSymbols) {
    return is_plain() || word_class_ == WordClass::kDigit ? Verdict::kBoundary : Verdict::kNone;
  }
  return Verdict::kWait;
}

SentenceBoundary::Verdict SentenceBoundary::look_word(char32_t c, uint32_t flags) {
  if ((flags & kWordChar) != 0 && (flags & kEastLetter) == 0) {
    append(&next_word_, c, flags);
    return Verdict::kWait;
  }
  const bool in_line = (flags & kSpace) != 0 && (flags & kNewline) == 0;
  const bool is_month = word_class_ == WordClass::kOrdinal && has_role(next_word_.view(), kMonth);
  if (is_month && in_line && !after_month_head_) {
    stage_ = Stage::kMonth;
    return Verdict::kWait;
  }
  // Not a period: in "Plan B. I. Newton" the I is no pronoun.
  const bool whole = (flags & (kSpace | kEastLetter)) != 0 || c == ',' || c == '\'' || c == 0x2019;
  return after_next_word(whole, c == '.');
}

// "28. August 1749" is a date; in "He scored 28. August was hot" a sentence begins.
SentenceBoundary::Verdict SentenceBoundary::look_month(uint32_t flags) const {
  if ((flags & (kDigit | kNewline)) != 0) return Verdict::kNone;
  return (flags & kSpace) != 0 ? Verdict::kWait : Verdict::kBoundary;
}

// The next character stands right behind the terminators and closers.
SentenceBoundary::Verdict SentenceBoundary::directly_before(char32_t c, uint32_t flags) const {
  const bool word = (flags & kWordChar) != 0, east = (flags & kEastLetter) != 0;
  if (needs_space()) {
    if (!east && (flags & kEastOpener) == 0) return Verdict::kNone;
    const bool numbered = kind_ == Kind::kPeriod && after_number_ && !after_closer_;
    return is_plain() && !numbered ? Verdict::kBoundary : Verdict::kNone;
  }
  const bool decimal = kind_ == Kind::kWide && after_narrow_ && !after_closer_;
  if (decimal && word && !east) return Verdict::kNone;
  if ((flags & kContinue) != 0) return Verdict::kNone;
  if ((closer_flags_ & kTitleCloser) != 0 && word) return Verdict::kNone;
  if ((closer_flags_ & kEastQuote) != 0 && is_particle(c)) return Verdict::kNone;
  return Verdict::kBoundary;
}

SentenceBoundary::Verdict SentenceBoundary::before_first_letter(char32_t c, uint32_t flags) {
  const WordClass before = word_class_;
  if ((flags & kLower) != 0) {
    stage_ = Stage::kLower;
    return Verdict::kWait;
  }
  bool boundary = !is_abbreviated();  // a letter without case
  const bool read_number = (flags & kDigit) != 0 && before == WordClass::kOrdinal;
  const bool read_word = (flags & kUpper) != 0 && before != WordClass::kOrdinary &&
                         before != WordClass::kDigit;
  if ((read_number && previous_ != '(') || read_word) {
    next_word_.size = 0;
    append(&next_word_, c, flags);
    stage_ = Stage::kWord;
    return Verdict::kWait;
  }
  if ((flags & kDigit) != 0) {
    // Not in "(1176? – 1216)" nor in "What Now?" (1937).
    const bool doubted = kind_ == Kind::kQuestion && after_number_;
    boundary = before == WordClass::kOrdinary && kind_ != Kind::kEllipsis && !doubted &&
               previous_ != '(';
  } else if ((flags & kUpper) != 0) {
    boundary = true;
  }
  return boundary ? Verdict::kBoundary : Verdict::kNone;
}

// `capital_second`: iPhone, eBay. Otherwise lower case starts a sentence only where no capital was
// used at all, and not behind a quotation ("Really?" he asked).
SentenceBoundary::Verdict SentenceBoundary::before_lower_word(bool capital_second) const {
  bool boundary = !is_abbreviated();
  if (!capital_second) {
    const bool plain = word_class_ == WordClass::kOrdinary || word_class_ == WordClass::kOrdinal;
    boundary = !seen_upper_ && plain && !after_closer_ && kind_ != Kind::kEllipsis;
  }
  return boundary ? Verdict::kBoundary : Verdict::kNone;
}

// The word after an abbreviation or ordinal is complete; `whole` if no period or hyphen follows it,
// `dotted` if a period does.
SentenceBoundary::Verdict SentenceBoundary::after_next_word(bool whole, bool dotted) const {
  const std::u16string_view word = next_word_.view();
  const bool digits = word.find_first_not_of(u"0123456789") == std::u16string_view::npos;
  bool boundary = true;
  switch (word_class_) {
    case WordClass::kNumber:
      boundary = word.size() != 1 && !is_roman(word) && !has_role(word, kNumeral);
      break;
    case WordClass::kLetter: boundary = !dotted || word.size() > kMaxLinked; break;
    case WordClass::kOrdinal:  // "28. Mai", "28. 8."
      boundary = !has_role(word, kOrdinalNoun | kMonth) && !(dotted && digits && word.size() <= 2);
      break;
    case WordClass::kInitial: boundary = whole && has_role(word, kStarter); break;
    default: boundary = whole && has_role(word, kStarter | kParticle); break;
  }
  return boundary ? Verdict::kBoundary : Verdict::kNone;
}

SentenceBoundary::Verdict SentenceBoundary::at_text_end() const {
  if (stage_ == Stage::kLower) return before_lower_word(false);
  if (stage_ == Stage::kWord) return after_next_word(true, false);
  return Verdict::kWait;
}

bool SentenceBoundary::closes(char32_t c, uint32_t flags) const {
  if ((flags & kCloser) == 0) return false;
  if (needs_space()) return true;  // right behind . ? ! nothing opens
  if ((flags & kLooseCloser) != 0) return false;
  // 。** closes bold text that is open, else it opens the next sentence's. The second * of **
  // follows the first.
  return (flags & kPaired) == 0 || is_open_pair(c) || c == previous_;
}

void SentenceBoundary::absorb_closer(uint32_t flags) {
  set_end();
  after_closer_ = true;
  closer_flags_ = flags;
  stage_ = Stage::kRun;
}

void SentenceBoundary::absorb_terminator(uint32_t flags) {
  const bool strong_enough = kind_ == Kind::kStrong || kind_ == Kind::kQuestion;
  if ((flags & kStrong) != 0) {
    kind_ = Kind::kStrong;
  } else if ((flags & kQuestion) != 0) {
    if (kind_ != Kind::kStrong) kind_ = Kind::kQuestion;
  } else if (!strong_enough) {
    // Behind a closer a period is a new one; behind a period or a space it makes an ellipsis.
    const bool lone = stage_ == Stage::kRun && after_closer_ && (flags & kEllipsis) == 0;
    kind_ = !lone ? Kind::kEllipsis : (flags & kDot) != 0 ? Kind::kPeriod : Kind::kWide;
  }
  set_end();
  stage_ = Stage::kRun;
  word_class_ = class_without_word();
  after_closer_ = after_number_ = after_narrow_ = false;
  closer_flags_ = 0;
}

}  // namespace flarecore
