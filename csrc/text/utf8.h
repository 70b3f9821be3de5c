// UTF-8, byte by byte: token bytes may end inside a character.
//
// Decoding is strict (no overlong forms, no surrogates, nothing above U+10FFFF). Where no valid
// character starts, that one byte is U+FFFD and decoding goes on at the next byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace flarecore {

constexpr char32_t kReplacementChar = 0xFFFD;

// Length in bytes of the valid character at the start of data, or 0 if there is none (or size is
// 0).
int utf8_char_length(const uint8_t* data, size_t size);

// Code point of a valid character of `length` bytes.
char32_t utf8_code_point(const uint8_t* data, int length);

void append_utf8(char32_t code_point, std::string* out);

// Incremental decoder with at most three bytes of state; a plain value.
class Utf8Decoder {
 public:
  // Takes one byte and writes the characters that are now known, in order, to out (room for 4).
  // All but the last of several are U+FFFD. Returns how many.
  int push(uint8_t byte, char32_t* out);
  // The bytes of an unfinished character (0 to 3), each of which is U+FFFD if the text ends here.
  int num_pending() const { return num_pending_; }

 private:
  uint8_t pending_[3] = {};
  uint8_t num_pending_ = 0;
};

}  // namespace flarecore
