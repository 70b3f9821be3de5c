// What the word before a period says: an abbreviation, an initial, an ordinal, a list marker.
#include <algorithm>
#include <string_view>

#include "text/abbreviations.h"
#include "text/char_class.h"
#include "text/sentence_boundary.h"

namespace flarecore {
namespace {

bool is_ascii_digit(char16_t c) { return c >= '0' && c <= '9'; }
bool is_ascii_upper(char16_t c) { return c >= 'A' && c <= 'Z'; }
bool is_ascii_lower(char16_t c) { return c >= 'a' && c <= 'z'; }
bool is_ascii_letter(char16_t c) { return is_ascii_upper(c) || is_ascii_lower(c); }
bool is_lower(char16_t c) { return c == 3 || (char_flags(c) & kLower) != 0; }

bool all_digits(std::u16string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), is_ascii_digit);
}

// "Blvd", "Sgt": no vowel, not all capitals. "PCs" is a plural and "NBC" a name.
bool looks_contracted(std::u16string_view word) {
  if (word.size() < 2 || word.size() > 5) return false;
  for (char16_t c : word) {
    if (!is_ascii_letter(c)) return false;
    if (std::u16string_view(u"aeiouyAEIOUY").find(c) != std::u16string_view::npos) return false;
  }
  const std::u16string_view stem = word.back() == 's' ? word.substr(0, word.size() - 1) : word;
  return std::any_of(stem.begin(), stem.end(), is_ascii_lower);
}

}  // namespace

// "1", "12", "1.2", "a", "IV", "Q3" as the first word of a line.
bool SentenceBoundary::is_list_marker() const {
  const std::u16string_view text = word_.view();
  if (text.size() == 1) return true;
  for (const std::u16string_view numerals : {u"ivx", u"IVX"}) {
    const bool is_numeral = text.find_first_not_of(numerals) == std::u16string_view::npos;
    if (is_numeral && text.size() <= 4) return true;
  }
  int digits = 0;
  for (size_t i = is_ascii_letter(text[0]) ? 1 : 0; i < text.size(); ++i) {
    digits = text[i] == '.' ? 0 : digits + 1;
    if (text[i] != '.' && (!is_ascii_digit(text[i]) || digits > 3)) return false;
  }
  return text.size() <= 8;
}

// U.S, p.m, J.R.R, J.-C
bool SentenceBoundary::is_acronym() const {
  bool after_letter = false;
  int num_letters = 0;
  for (char16_t c : word_.view()) {
    if (c == '.' || c == '-') {
      if (after_letter != (c == '.')) return false;  // a hyphen stands behind a period
      after_letter = false;
    } else {
      if (after_letter || is_ascii_digit(c)) return false;
      after_letter = true;
      ++num_letters;
    }
  }
  return after_letter && num_letters > 1;
}

// With what stands before it: "i.d.R" of "i. d. R.", "ad_es" of "ad es."; alone; "avv" of "l'avv."
AbbreviationClass SentenceBoundary::find_listed() const {
  for (int first = 0; first < 2; ++first) {
    if (linked_[first].size == 0) continue;
    Word joined;
    for (int i = first; i < 2; ++i) {
      joined.add(linked_[i].view());
      joined.add(u".");
    }
    joined.add(word_.view());
    const AbbreviationClass found = find_abbreviation(joined.view());
    if (found != AbbreviationClass::kNone) return found;
  }
  Word pair = previous_word_;
  pair.add(u"_");
  pair.add(word_.view());
  const std::u16string_view word = word_.view();
  const size_t elided = word.rfind(u'\'') + 1;  // 0 if there is none
  for (const std::u16string_view entry : {pair.view(), word, word.substr(elided)}) {
    const bool possessive = entry.size() == 1 && elided > 0;  // John's
    const AbbreviationClass found = find_abbreviation(entry);
    if (found != AbbreviationClass::kNone && !possessive) return found;
  }
  return AbbreviationClass::kNone;
}

SentenceBoundary::WordClass SentenceBoundary::classify_word() const {
  const std::u16string_view text = word_.view();
  if (text.empty()) return WordClass::kOrdinary;  // too long
  if (word_index_ == 0 && is_list_marker()) return WordClass::kMarker;
  const bool labelled = text.size() == 1 && has_role(previous_word_.view(), kLetterHead);
  if (labelled && !is_ascii_digit(text[0])) return WordClass::kOrdinary;
  switch (find_listed()) {
    case AbbreviationClass::kNever: return WordClass::kNever;
    case AbbreviationClass::kNumber: return WordClass::kNumber;
    case AbbreviationClass::kDigit: return WordClass::kDigit;
    case AbbreviationClass::kAmbiguous: return WordClass::kAmbiguous;
    case AbbreviationClass::kNone: break;
  }
  if (all_digits(text)) return classify_number();
  if (text.size() == 1) return classify_letter();
  if (is_acronym()) {
    const bool mixed = std::any_of(text.begin(), text.end(), is_lower);
    return mixed ? WordClass::kAmbiguous : WordClass::kInitial;
  }
  if (looks_contracted(text)) return WordClass::kAmbiguous;
  return is_roman(text) ? classify_number() : WordClass::kOrdinary;
}

SentenceBoundary::WordClass SentenceBoundary::classify_letter() const {
  if (is_lower(word_.text[0])) return WordClass::kLetter;
  return word_after_hyphen_ ? WordClass::kOrdinary : WordClass::kInitial;
}

// Digits or Roman numerals: "Step 2.", "28. 8. 1749", "der 3. Oktober".
SentenceBoundary::WordClass SentenceBoundary::classify_number() const {
  const std::u16string_view text = word_.view(), before = previous_word_.view();
  if (all_digits(text)) {
    if (word_index_ == 1 && has_role(before, kNumberHead)) return WordClass::kNever;
    const bool date = linked_[1].size <= 2 && all_digits(linked_[1].view());
    if (text.size() <= 2 && date) return WordClass::kDigit;
    if (text.size() > 3) return WordClass::kOrdinary;
  }
  return has_role(before, kOrdinalHead) ? WordClass::kAmbiguous : WordClass::kOrdinal;
}

}  // namespace flarecore
