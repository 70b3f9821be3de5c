// The words that the sentence boundary knows.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace flarecore {

enum class AbbreviationClass : unsigned char { kNone, kNever, kNumber, kDigit, kAmbiguous };

// Roles of whole words; a word may have several.
enum WordRole : unsigned char {
  kStarter = 1,        // The, However: usually the first word of a sentence
  kLetterHead = 2,     // vitamin, Plan: the single capital after it is no initial
  kNumberHead = 4,     // Step, Chapter: with a number it labels the sentence it opens
  kExclaimedName = 8,  // Yahoo
  kNumeral = 16,       // Two
};

// Class of a word without its final period, exactly as spelt; kNone if it is not in the table.
AbbreviationClass find_abbreviation(std::string_view word);

bool has_role(std::string_view word, WordRole role);

// Everything in the tables, for the reference twin.
std::vector<std::pair<std::string_view, AbbreviationClass>> all_abbreviations();
std::vector<std::pair<std::string_view, unsigned char>> all_word_roles();

}  // namespace flarecore
