#include "text/sentencepiece.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <unordered_map>

#include "common/check.h"
#include "common/printable.h"
#include "text/utf8.h"

namespace flarecore {
namespace {

constexpr std::string_view kBlank = "\xE2\x96\x81";  // U+2581
constexpr size_t kMaxTextBytes = size_t{1} << 30;

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size() + to.size());
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != text.npos; begin = at + from.size()) {
    out.append(text, begin, at - begin).append(to);
  }
  return out.append(text, begin, text.size() - begin);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// "<0x1F>" -> 31; -1 if it is not of that form.
int byte_value(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return -1;
  const int high = hex_digit(piece[3]), low = hex_digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

size_t char_size(std::string_view text) {
  const int size = utf8_char_length(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  return std::max(size, 1);
}

}  // namespace

// A run of text: a character at first. Joined ones lie in the left symbol, the right one is empty.
struct SentencePiece::Symbol {
  std::string_view text;
  TokenId whole;         // id of a user-defined piece, which is not joined; -1: ordinary text
  int32_t previous, next;
};

// Two neighbours that are a piece together.
struct SentencePiece::Pair {
  float score;
  int32_t left, right;
  size_t size;  // bytes of both when the pair was found: other sizes mean that it is gone
  TokenId id;

  // std::priority_queue hands out the largest.
  bool operator<(const Pair& other) const {
    return score != other.score ? score < other.score : left > other.left;
  }
};

class SentencePiece::Joiner {
 public:
  Joiner(const SentencePiece& model, std::vector<Symbol> symbols)
      : model_(model), symbols_(std::move(symbols)) {}

  std::vector<TokenId> run() {
    const int32_t count = static_cast<int32_t>(symbols_.size());
    for (int32_t i = 0; i + 1 < count; ++i) consider(i, i + 1);
    while (!queue_.empty()) {
      const Pair pair = queue_.top();
      queue_.pop();
      join(pair);
    }
    std::vector<TokenId> ids;
    for (const Symbol& symbol : symbols_) {
      if (symbol.whole >= 0) {
        ids.push_back(symbol.whole);
      } else if (!symbol.text.empty()) {
        emit(symbol.text, &ids);
      }
    }
    return ids;
  }

 private:
  void consider(int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const Symbol &a = symbols_[left], &b = symbols_[right];
    if (a.whole >= 0 || b.whole >= 0) return;
    const std::string_view both(a.text.data(), a.text.size() + b.text.size());
    const TokenId id = model_.table_.find(both);
    if (id >= 0) queue_.push({model_.scores_[id], left, right, both.size(), id});
  }

  void join(const Pair& pair) {
    Symbol &left = symbols_[pair.left], &right = symbols_[pair.right];
    if (left.text.empty() || right.text.empty() ||
        left.text.size() + right.text.size() != pair.size) {
      return;
    }
    if (model_.types_[pair.id] == PieceType::kUnused) halves_[pair.id] = left.text.size();
    left.text = {left.text.data(), pair.size};
    right.text = {};
    left.next = right.next;
    if (right.next >= 0) symbols_[right.next].previous = pair.left;
    consider(left.previous, pair.left);
    consider(pair.left, left.next);
  }

  // An unused piece only serves to reach longer ones: what is left of it is taken apart again, a
  // character down to its bytes.
  void emit(std::string_view text, std::vector<TokenId>* ids) const {
    std::vector<std::string_view> open = {text};
    while (!open.empty()) {
      const std::string_view part = open.back();
      open.pop_back();
      const TokenId id = model_.table_.find(part);
      const auto half = id < 0 ? halves_.end() : halves_.find(id);
      if (half != halves_.end()) {
        open.push_back(part.substr(half->second));
        open.push_back(part.substr(0, half->second));
      } else if (id >= 0 && model_.types_[id] != PieceType::kUnused) {
        ids->push_back(id);
      } else {
        model_.spell(part, ids);
      }
    }
  }

  const SentencePiece& model_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Pair> queue_;
  std::unordered_map<TokenId, size_t> halves_;  // unused piece -> bytes of its left half
};

SentencePiece::SentencePiece(std::vector<std::string> pieces, std::vector<float> scores,
                             std::vector<PieceType> types, bool prefixes_blank, TokenId unknown)
    : pieces_(std::move(pieces)),
      scores_(std::move(scores)),
      types_(std::move(types)),
      table_(pieces_),
      prefixes_blank_(prefixes_blank),
      unknown_(unknown) {
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  for (TokenId id = 0; id < size(); ++id) {
    check(std::isfinite(scores_[id]), ErrorKind::kModelFile, "tokenizer.ggml.scores[", id, "] is ",
          scores_[id], ", expected a finite number");
    add(id);
  }
}

void SentencePiece::add(TokenId id) {
  std::string& piece = pieces_[id];
  if (types_[id] == PieceType::kByte) {
    const int value = byte_value(piece);
    check(value >= 0, ErrorKind::kModelFile, "tokenizer.ggml.tokens[", id, "] is a byte token, \"",
          printable(piece), "\"; expected the form \"<0x1F>\"");
    byte_ids_[value] = id;
  } else if (piece.empty()) {
    return;  // no text has it
  } else if (types_[id] == PieceType::kUserDefined) {
    // Converters write blanks into these, and only into these, as they stand.
    piece = replace_all(piece, " ", kBlank);
    user_defined_.insert(piece, id);
  } else if (types_[id] == PieceType::kNormal || types_[id] == PieceType::kUnused) {
    table_.insert(id);
  }
}

std::string SentencePiece::token_bytes(TokenId id) const {
  const std::string& piece = pieces_[id];
  switch (types_[id]) {
    case PieceType::kByte: return std::string(1, static_cast<char>(byte_value(piece)));
    case PieceType::kControl:
    case PieceType::kUnknown: return piece;
    default: return replace_all(piece, kBlank, " ");
  }
}

std::vector<TokenId> SentencePiece::encode(std::string_view text) const {
  check(text.size() < kMaxTextBytes, ErrorKind::kConfig, "a text of ", text.size(),
        " bytes is too long to encode at once; the limit is ", kMaxTextBytes - 1);
  if (text.empty()) return {};
  std::string escaped = replace_all(text, " ", kBlank);
  if (prefixes_blank_) escaped.insert(0, kBlank);
  return Joiner(*this, split(escaped)).run();
}

std::vector<SentencePiece::Symbol> SentencePiece::split(std::string_view text) const {
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    TokenId whole = -1;
    size_t size = user_defined_.longest_prefix(rest, &whole);
    if (size == 0) size = char_size(rest);
    const int32_t index = static_cast<int32_t>(symbols.size());
    symbols.push_back({rest.substr(0, size), whole, index - 1, index + 1});
    at += size;
  }
  if (!symbols.empty()) symbols.back().next = -1;
  return symbols;
}

// A character that is no piece: its bytes, else the unknown piece, one for a run of such characters.
void SentencePiece::spell(std::string_view chars, std::vector<TokenId>* ids) const {
  const bool has_bytes = std::all_of(chars.begin(), chars.end(), [&](char c) {
    return byte_ids_[static_cast<uint8_t>(c)] >= 0;
  });
  if (has_bytes) {
    for (const char c : chars) ids->push_back(byte_ids_[static_cast<uint8_t>(c)]);
  } else if (unknown_ >= 0 && (ids->empty() || ids->back() != unknown_)) {
    ids->push_back(unknown_);
  }
}

}  // namespace flarecore
