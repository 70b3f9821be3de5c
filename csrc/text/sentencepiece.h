// Tokenizer of Llama 2 and Gemma: SentencePiece's BPE (Kudo and Richardson 2018, arXiv 1808.06226).
//
// Blanks become U+2581 first. User-defined pieces are found as they stand, leftmost and then longest,
// and are never joined to anything. The characters between them are joined, two neighbours at a time:
// of all neighbours that are a piece together, the piece of the highest score, of equal scores the
// leftmost. A character that is no piece in the end is spelled by its bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/piece_table.h"

namespace flarecore {

// Values of tokenizer.ggml.token_type.
enum class PieceType : int32_t {
  kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6,
};

class SentencePiece {
 public:
  // One type and one finite score a piece. Control and unknown pieces never come out of a text, but
  // for `unknown` (-1: none), which stands for a character where there are no bytes to spell it.
  // `prefixes_blank`: every text gets a blank in front. Raises ModelFileError.
  SentencePiece(std::vector<std::string> pieces, std::vector<float> scores,
                std::vector<PieceType> types, bool prefixes_blank, TokenId unknown);
  // The table borrows the pieces.
  SentencePiece(const SentencePiece&) = delete;
  SentencePiece& operator=(const SentencePiece&) = delete;

  // Valid UTF-8 to ids. Raises ConfigError for a text of a gigabyte or more.
  std::vector<TokenId> encode(std::string_view text) const;

  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  // What an id stands for: text with blanks, a single byte, the name of a control piece.
  std::string token_bytes(TokenId id) const;

 private:
  struct Symbol;
  struct Pair;
  class Joiner;

  void add(TokenId id);
  std::vector<Symbol> split(std::string_view text) const;
  void spell(std::string_view chars, std::vector<TokenId>* ids) const;

  std::vector<std::string> pieces_;  // (vocab) as matched: user-defined ones with U+2581
  std::vector<float> scores_;
  std::vector<PieceType> types_;
  PieceTable table_;          // normal and unused pieces
  PrefixTree user_defined_;
  TokenId byte_ids_[256];     // -1: none
  bool prefixes_blank_;
  TokenId unknown_;
};

}  // namespace flarecore
