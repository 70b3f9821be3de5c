// What the core knows of a tokenizer: the bytes of every token, and which ones are special.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/types.h"

namespace flarecore {

class Vocabulary {
 public:
  // bytes[id] are the bytes that token id adds to a text; special and end tokens add none.
  Vocabulary(std::vector<std::string> bytes, const std::vector<TokenId>& special,
             const std::vector<TokenId>& end_of_text)
      : bytes_(std::move(bytes)), flags_(bytes_.size(), 0) {
    for (TokenId id : special) set(id, kSpecial);
    for (TokenId id : end_of_text) set(id, kSpecial | kEndOfText);
  }

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  bool is_special(TokenId id) const { return (flags_[id] & kSpecial) != 0; }
  bool is_end_of_text(TokenId id) const { return (flags_[id] & kEndOfText) != 0; }
  std::string_view text(TokenId id) const {
    return is_special(id) ? std::string_view() : std::string_view(bytes_[id]);
  }

 private:
  enum : uint8_t { kSpecial = 1, kEndOfText = 2 };
  void set(TokenId id, int flags) {
    if (id >= 0 && id < size()) flags_[id] |= static_cast<uint8_t>(flags);
  }

  std::vector<std::string> bytes_;
  std::vector<uint8_t> flags_;
};

}  // namespace flarecore
