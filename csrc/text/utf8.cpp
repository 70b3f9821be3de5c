#include "text/utf8.h"

namespace flarecore {
namespace {

// Bytes of the character that starts with `lead`, 0 for a byte that starts none.
int length_of_lead(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// The second byte carries the limits that rule out overlong forms, surrogates and > U+10FFFF.
bool is_second(uint8_t lead, uint8_t byte) {
  switch (lead) {
    case 0xE0: return byte >= 0xA0 && byte <= 0xBF;
    case 0xED: return byte >= 0x80 && byte <= 0x9F;
    case 0xF0: return byte >= 0x90 && byte <= 0xBF;
    case 0xF4: return byte >= 0x80 && byte <= 0x8F;
    default: return (byte & 0xC0) == 0x80;
  }
}

bool continues(const uint8_t* prefix, int index, uint8_t byte) {
  return index == 1 ? is_second(prefix[0], byte) : (byte & 0xC0) == 0x80;
}

}  // namespace

int utf8_char_length(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const int length = length_of_lead(data[0]);
  if (length == 0 || static_cast<size_t>(length) > size) return 0;
  for (int i = 1; i < length; ++i) {
    if (!continues(data, i, data[i])) return 0;
  }
  return length;
}

char32_t utf8_code_point(const uint8_t* data, int length) {
  if (length == 1) return data[0];
  char32_t code_point = data[0] & (0x7F >> length);
  for (int i = 1; i < length; ++i) code_point = code_point << 6 | (data[i] & 0x3F);
  return code_point;
}

void append_utf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
    return;
  }
  const int length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  const uint8_t lead = length == 2 ? 0xC0 : length == 3 ? 0xE0 : 0xF0;
  out->push_back(static_cast<char>(lead | c >> (6 * (length - 1))));
  for (int i = length - 2; i >= 0; --i) {
    out->push_back(static_cast<char>(0x80 | (c >> (6 * i) & 0x3F)));
  }
}

int Utf8Decoder::push(uint8_t byte, char32_t* out) {
  int count = 0;
  if (num_pending_ > 0 && !continues(pending_, num_pending_, byte)) {
    // What was pending is no character. Only its first byte could have started one, so each of its
    // bytes is replaced, and `byte` starts afresh.
    for (; num_pending_ > 0; --num_pending_) out[count++] = kReplacementChar;
  }
  const int length = length_of_lead(num_pending_ > 0 ? pending_[0] : byte);
  if (length == 0) {
    out[count++] = kReplacementChar;
  } else if (num_pending_ + 1 < length) {
    pending_[num_pending_++] = byte;
  } else {
    uint8_t bytes[4] = {pending_[0], pending_[1], pending_[2], 0};
    bytes[length - 1] = byte;
    out[count++] = utf8_code_point(bytes, length);
    num_pending_ = 0;
  }
  return count;
}

}  // namespace flarecore
