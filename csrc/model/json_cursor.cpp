#include "model/json_cursor.h"

#include "common/check.h"

namespace flarecore {
namespace {

void append_utf8(uint32_t code, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace

void JsonCursor::fail_here(const char* expected) const {
  fail(ErrorKind::kModelFile, where_, ": not the expected JSON at byte ", position_, ": wanted ",
       expected, "; download or convert the file again");
}

void JsonCursor::skip_space() {
  while (!at_end() && (peek() == ' ' || peek() == '\n' || peek() == '\r' || peek() == '\t')) {
    ++position_;
  }
}

bool JsonCursor::accept(char c) {
  skip_space();
  if (at_end() || peek() != c) return false;
  ++position_;
  return true;
}

void JsonCursor::expect(char c, const char* what) {
  if (!accept(c)) fail_here(what);
}

void JsonCursor::expect_end() {
  skip_space();
  if (!at_end()) fail_here("the end");
}

int64_t JsonCursor::read_integer(const char* what) {
  skip_space();
  const size_t begin = position_;
  uint64_t value = 0;
  while (!at_end() && peek() >= '0' && peek() <= '9') {
    const uint64_t digit = static_cast<uint64_t>(peek() - '0');
    if (value > (uint64_t{INT64_MAX} - digit) / 10) fail_here("an integer below 2^63");
    value = value * 10 + digit;
    ++position_;
  }
  const bool leading_zero = position_ - begin > 1 && text_[begin] == '0';
  if (position_ == begin || leading_zero) fail_here(what);
  return static_cast<int64_t>(value);
}

std::string JsonCursor::read_string(const char* what) {
  expect('"', what);
  std::string out;
  while (!at_end() && peek() != '"') {
    const char c = peek();
    if (static_cast<unsigned char>(c) < 0x20) fail_here("a string without control characters");
    ++position_;
    if (c == '\\') {
      read_escape(&out);
    } else {
      out.push_back(c);
    }
  }
  if (at_end()) fail_here("the end of a string");
  ++position_;
  return out;
}

void JsonCursor::read_escape(std::string* out) {
  static constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  if (at_end()) fail_here("the end of a string");
  const char c = peek();
  ++position_;
  const size_t found = kEscapes.find(c);
  if (found != std::string_view::npos) {
    out->push_back(kMeanings[found]);
    return;
  }
  if (c != 'u') fail_here("a known escape");
  uint32_t code = read_hex4();
  if (code >= 0xD800 && code < 0xDC00) {
    const bool paired = text_.substr(position_, 2) == "\\u";
    if (paired) position_ += 2;
    const uint32_t low = paired ? read_hex4() : 0;
    if (low < 0xDC00 || low >= 0xE000) fail_here("both halves of a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xDC00 && code < 0xE000) {
    fail_here("both halves of a surrogate pair");
  }
  append_utf8(code, out);
}

uint32_t JsonCursor::read_hex4() {
  uint32_t code = 0;
  for (int i = 0; i < 4; ++i) {
    if (at_end()) fail_here("four hexadecimal digits");
    const char c = peek();
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) fail_here("four hexadecimal digits");
    code = code * 16 + static_cast<uint32_t>(digit);
    ++position_;
  }
  return code;
}

}  // namespace flarecore
