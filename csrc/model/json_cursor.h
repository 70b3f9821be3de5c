// Reading strict JSON of a known shape, value by value: no tree, no recursion, every byte checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flarecore {

// The caller says what it expects next; anything else is a ModelFileError that names the byte. Only
// what model headers hold is supported: objects, arrays, strings and non-negative integers.
class JsonCursor {
 public:
  // `where` begins every message, for instance "model.safetensors: header".
  JsonCursor(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {}

  // A string without its quotes, escapes resolved.
  std::string read_string(const char* what);
  // An integer in [0, 2^63).
  int64_t read_integer(const char* what);
  // Raises unless only white space is left.
  void expect_end();

  // Calls on_member(key) once per member, after the colon; it must read the value.
  template <typename F>
  void read_object(const char* what, F&& on_member) {
    expect('{', what);
    if (accept('}')) return;
    do {
      const std::string key = read_string("a key");
      expect(':', "a colon after the key");
      on_member(key);
    } while (accept(','));
    expect('}', what);
  }

  // Calls on_item() once per item; it must read the value.
  template <typename F>
  void read_array(const char* what, F&& on_item) {
    expect('[', what);
    if (accept(']')) return;
    do {
      on_item();
    } while (accept(','));
    expect(']', what);
  }

  [[noreturn]] void fail_here(const char* expected) const;

 private:
  bool at_end() const { return position_ == text_.size(); }
  char peek() const { return text_[position_]; }
  void skip_space();
  bool accept(char c);  // skips white space first
  void expect(char c, const char* what);
  void read_escape(std::string* out);
  uint32_t read_hex4();

  std::string_view text_;
  std::string where_;
  size_t position_ = 0;
};

}  // namespace flarecore
