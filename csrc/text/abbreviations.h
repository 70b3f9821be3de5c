// The words that the sentence boundary knows.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace flarecore {

enum class AbbreviationClass : unsigned char { kNone, kNever, kNumber, kDigit, kAmbiguous };

// Roles of whole words; a word may have several.
enum WordRole : uint16_t {
  kStarter = 1,        // The, However: usually the first word of a sentence
  kLetterHead = 2,     // vitamin, Plan: the single capital after it is no initial
  kNumberHead = 4,     // Step, Chapter: with a number it labels the sentence it opens
  kExclaimedName = 8,  // Yahoo
  kNumeral = 16,       // Two
  kParticle = 32,      // La, Das: a starter as well, but behind an initial part of a name
  kOrdinalHead = 64,   // der, im: a number after it is an ordinal ("der 3. Oktober")
  kOrdinalNoun = 128,  // Jahrhundert, Mai: the number before it is an ordinal
  kMonth = 256,        // August: a month in German, and in English perhaps the next sentence
  kMonthHead = 512,    // am, bis: before a number and a month, a date for certain
};

// Class of a word without its final period, exactly as spelt; kNone if it is not in the table.
AbbreviationClass find_abbreviation(std::u16string_view word);

bool has_role(std::u16string_view word, unsigned roles);  // any of them

bool is_roman(std::u16string_view word);  // XIV

// Everything in the tables, for the reference twin.
std::vector<std::pair<std::u16string_view, AbbreviationClass>> all_abbreviations();
std::vector<std::pair<std::u16string_view, uint16_t>> all_word_roles();

}  // namespace flarecore
