// Where the pieces of a vocabulary are looked up: a whole piece, or the longest one a text begins with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/types.h"

namespace flarecore {

// Text -> id, exact, for some of the pieces. Borrows them: their number and place must not change.
class PieceTable {
 public:
  explicit PieceTable(const std::vector<std::string>& pieces);

  // Of two pieces of one text the later one counts. Each piece at most once.
  void insert(TokenId id);
  TokenId find(std::string_view text) const;  // -1: no piece

 private:
  struct Slot {
    uint32_t hash = 0;
    TokenId id = -1;  // -1: free
  };
  // Where the text is, or the free slot where it would be.
  size_t slot_of(std::string_view text, uint32_t hash) const;

  const std::vector<std::string>& pieces_;
  std::vector<Slot> slots_;  // a power of two, at most half of them in use
  size_t longest_ = 0;       // bytes
};

// Finds the longest of some texts that another one begins with. Texts are few: each byte of one
// costs a step through its siblings.
class PrefixTree {
 public:
  PrefixTree() : nodes_(1) {}

  void insert(std::string_view text, TokenId id);  // text is not empty
  // Returns the length in bytes and sets *id; 0 if no text fits.
  size_t longest_prefix(std::string_view text, TokenId* id) const;

 private:
  struct Node {
    TokenId id = -1;
    int32_t first_child = 0;   // 0: none; the root is nobody's child
    int32_t next_sibling = 0;
    char byte = 0;
  };
  int32_t child(int32_t node, char byte) const;

  std::vector<Node> nodes_;
};

}  // namespace flarecore
