// What a character is to the sentence boundary and to the query mask.
#pragma once

#include <cstdint>

namespace flarecore {

enum CharFlag : uint32_t {
  // Every character has exactly one of these four.
  kWordChar = 1u << 0,  // letters, digits, marks
  kSpace = 1u << 1,     // white space and control characters
  kPunct = 1u << 2,     // Unicode P*, all ASCII punctuation, marks of writing direction
  kSymbol = 1u << 3,    // Unicode S* outside ASCII, emoji joiners, U+FFFD

  kUpper = 1u << 4,
  kLower = 1u << 5,
  kDigit = 1u << 6,      // ASCII, full-width, Arabic and Devanagari digits
  kEastLetter = 1u << 7,  // Han, Kana, Hangul, Bopomofo: a sentence may start without a space
  kUnspaced = 1u << 8,   // scripts that put no spaces between words (not Hangul)
  kNewline = 1u << 9,

  // Terminators.
  kDot = 1u << 10,       // .
  kWideDot = 1u << 11,   // ．
  kEllipsis = 1u << 12,  // … ‥ ⋯
  kQuestion = 1u << 13,  // ? ! and their doubled forms
  kStrong = 1u << 14,    // 。！？；। ؟ ۔ …: need no space after them
  kTerminator = kDot | kWideDot | kEllipsis | kQuestion | kStrong,

  // What may stand between a terminator and the end of its sentence.
  kCloser = 1u << 15,
  kHardCloser = 1u << 16,   // also after a space: it cannot open anything
  kPaired = 1u << 17,       // " * ` _ ~: opens and closes
  kLooseCloser = 1u << 18,  // “ ‘ « ‹: closes in some languages, opens in others
  kEastQuote = 1u << 19,    // 」』”】》 and the like
  kTitleCloser = 1u << 20,  // 》〉

  kContinue = 1u << 21,    // comma, colon, …: the sentence goes on
  kEastOpener = 1u << 22,  // 「『《【
};

uint32_t char_flags(char32_t code_point);

}  // namespace flarecore
