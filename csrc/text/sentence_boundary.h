// Streaming sentence boundary over token bytes.
//
// Where a sentence ends is a property of the bytes alone: however they are cut into tokens, the end
// is the same byte, rounded up to the end of the token that holds it. The rules (a terminator here
// is one of . ? ! … or a strong one such as 。 that needs no space after it):
//   - A sentence ends after a terminator and the closing quotes, brackets, emphasis, emoji and
//     citations ("[1]") right behind it. White space belongs to the next sentence, but newlines in
//     it belong to the finished one (newline_is_boundary): a paragraph break survives a
//     regeneration.
//   - A newline ends a sentence whatever stands before it (newline_is_boundary).
//   - What follows a terminator decides: a lower-case word never starts a sentence (but in text
//     without a single capital); an abbreviation, initial or number asks for more
//     (abbreviations.inc), an ordinal for the word it may count ("28. August",
//     sentence_words.inc). No language is given or guessed: the words say enough.
//   - A sentence has at least min_chars letters or digits, list markers ("1.") not counted;
//     anything less is joined to what follows.
// State is bounded and trivially copyable; nothing is allocated. Invalid UTF-8 reads as U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/abbreviations.h"
#include "text/utf8.h"

namespace flarecore {

struct BoundaryOptions {
  bool newline_is_boundary = true;
  int min_chars = 1;  // letters and digits a sentence has at least, [1, 1000000]
};

class SentenceBoundary {
 public:
  explicit SentenceBoundary(BoundaryOptions options = {});  // ConfigError: min_chars out of range

  void reset();  // to the start of a sentence

  // Feeds the bytes of the next token (any cut of the text, also none). Returns the number of
  // tokens fed since reset() that make up the finished sentence (at least 1, the current one at
  // most), or 0 while that is undecided. Usually the token after a terminator decides. Later tokens
  // belong to the next sentence: reset() and feed them again. Once decided, further calls change
  // nothing.
  int feed(const char* bytes, size_t size);

  // The text ends here: decides, as feed() would, and returns the number of tokens of the first
  // sentence. All of them, unless the end settles an earlier boundary ("… U.S. He"). 0 if no token
  // was fed.
  int finish();

  int num_tokens() const { return num_tokens_; }  // fed since reset(), while undecided
  // Whether what comes next may still show that the sentence has ended.
  bool is_waiting() const { return stage_ != Stage::kIdle; }
  // Byte, counted from reset(), behind the finished sentence, not rounded to a token. Meaningful
  // once feed() or finish() has decided.
  int64_t end_byte() const { return end_byte_; }
  const BoundaryOptions& options() const { return options_; }

 private:
  enum class Verdict : uint8_t { kWait, kBoundary, kNone };
  // How the terminator run reads; kWide is a single ．, which may be a decimal point.
  enum class Kind : uint8_t { kPeriod, kEllipsis, kQuestion, kStrong, kWide };
  // Where the look-ahead behind a terminator stands.
  enum class Stage : uint8_t {
    kIdle,   // no terminator is pending
    kRun,    // right behind terminators and closers
    kCite,   // inside [1]
    kSpace,  // in the white space that follows
    kOpen,   // past opening quotes, dashes and the like
    kGuillemet,  // behind a » after white space: a closer where white space follows
    kLower,  // behind a lower-case letter: "iPhone" or a lower-case word?
    kWord,   // inside a capitalised word, or the number behind an ordinal
    kMonth,  // behind "28. August": a year makes it a date
  };
  // What the word before a period says.
  enum class WordClass : uint8_t {
    kOrdinary, kMarker, kNever, kNumber, kDigit, kAmbiguous,
    kInitial,  // J., U.S.: as kAmbiguous, but La or Das behind it is part of a name
    kLetter,   // a lower-case letter: more than a word only before another short one ("n. Chr.")
    kOrdinal,  // a small number: an ordinal before a noun that is counted
  };
  enum class WordState : uint8_t { kOutside, kInside, kAfterDot, kAfterDotHyphen };

  static constexpr int kMaxWord = 16;
  static constexpr int kMaxLinked = 4;  // letters of a part of "i. d. R."
  struct Word {
    // Full-width letters as ASCII; beyond 16 bits capitals as 2, lower case as 3, others as 1.
    char16_t text[kMaxWord] = {};
    uint8_t size = 0;  // kMaxWord + 1: too long for any table
    std::u16string_view view() const { return {text, size > kMaxWord ? size_t{0} : size}; }
    void add(std::u16string_view units);
  };

  // The sentence so far (sentence_boundary.cpp, its words sentence_word.cpp).
  Verdict step(char32_t c, int64_t char_end);
  void open(char32_t c, uint32_t flags);
  void track(char32_t c, uint32_t flags);
  void track_word_char(char32_t c, uint32_t flags);
  void start_word();
  WordClass classify_word() const;
  WordClass classify_letter() const;
  WordClass classify_number() const;
  AbbreviationClass find_listed() const;
  bool is_list_marker() const;
  bool is_acronym() const;
  bool is_open_pair(char32_t c) const;
  static void append(Word* word, char32_t c, uint32_t flags);

  // The look-ahead behind a terminator (boundary_lookahead.cpp).
  Verdict look_ahead(char32_t c, uint32_t flags);
  Verdict look_run(char32_t c, uint32_t flags);
  Verdict look_cite(char32_t c);
  Verdict look_space(char32_t c, uint32_t flags);
  Verdict look_open(char32_t c, uint32_t flags);
  Verdict look_guillemet(char32_t c, uint32_t flags);
  Verdict look_word(char32_t c, uint32_t flags);
  Verdict look_month(uint32_t flags) const;
  Verdict directly_before(char32_t c, uint32_t flags) const;
  Verdict before_first_letter(char32_t c, uint32_t flags);
  Verdict before_lower_word(bool capital_second) const;
  Verdict after_next_word(bool whole, bool dotted) const;
  Verdict at_text_end() const;
  bool closes(char32_t c, uint32_t flags) const;
  bool needs_space() const { return kind_ != Kind::kStrong && kind_ != Kind::kWide; }
  // Nothing about the word before speaks against an end.
  bool is_plain() const {
    return word_class_ == WordClass::kOrdinary || word_class_ == WordClass::kOrdinal ||
           word_class_ == WordClass::kLetter;
  }
  bool is_abbreviated() const {
    return word_class_ == WordClass::kAmbiguous || word_class_ == WordClass::kInitial;
  }
  // An ellipsis between spaces is a pause or an omission more often than an end.
  WordClass class_without_word() const {
    return kind_ == Kind::kEllipsis && after_space_ ? WordClass::kAmbiguous : WordClass::kOrdinary;
  }
  void absorb_closer(uint32_t flags);
  void absorb_terminator(uint32_t flags);
  void set_end() {
    end_tokens_ = num_tokens_;
    end_byte_ = char_end_;
  }

  BoundaryOptions options_;
  Utf8Decoder decoder_;

  int num_tokens_ = 0;
  int64_t num_bytes_ = 0;
  int64_t char_end_ = 0;  // byte after the current character
  bool decided_ = false;

  // The candidate end and its look-ahead.
  int end_tokens_ = 0;
  int64_t end_byte_ = 0;
  Stage stage_ = Stage::kIdle;
  Kind kind_ = Kind::kPeriod;
  WordClass word_class_ = WordClass::kOrdinary;
  bool after_closer_ = false;     // a closer stands behind the last terminator
  uint32_t closer_flags_ = 0;     // of the last closer behind it
  bool after_number_ = false;     // the word before the period is a number
  bool after_month_head_ = false;  // the word before that number is am, bis, ...
  bool after_narrow_ = false;     // a letter or digit that is no East Asian one stands before ．
  bool after_space_ = false;      // white space stands before the first terminator
  bool newline_seen_ = false;
  int guillemet_tokens_ = 0;      // the end behind a » that may be a closer
  int64_t guillemet_byte_ = 0;
  uint8_t lookahead_count_ = 0;   // characters of the citation, or symbols looked past
  Word next_word_;

  // The sentence so far.
  int num_chars_ = 0;             // letters and digits, saturating
  bool seen_upper_ = false;
  uint8_t open_pairs_ = 0;        // bit per mark (" * ` _ ~ and «) that is open
  char32_t previous_ = 0;
  Word word_;
  WordState word_state_ = WordState::kOutside;
  bool word_after_hyphen_ = false;
  int num_chars_before_word_ = 0;
  uint8_t word_index_ = 0;        // in its line
  uint8_t num_words_ = 0;         // in the line, saturating
  bool only_space_since_word_ = false;
  Word previous_word_;            // empty unless only white space lies between it and word_
  bool after_dot_ = false;        // only a period and white space in the line lie behind word_
  Word linked_[2];                // short words before word_, each with a period: "i", "d" of "R"
};

// End offsets in bytes of the sentences of a whole text: ascending, the last one is text.size().
std::vector<int64_t> split_sentences(std::string_view text, BoundaryOptions options = {});

}  // namespace flarecore
