#include "text/piece_table.h"

#include <algorithm>

namespace flarecore {
namespace {

// FNV-1a with a final mix: pieces are a few bytes long.
uint32_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return static_cast<uint32_t>(hash ^ (hash >> 29));
}

}  // namespace

PieceTable::PieceTable(const std::vector<std::string>& pieces) : pieces_(pieces) {
  size_t size = 16;
  while (size < 2 * pieces.size()) size *= 2;
  slots_.resize(size);
}

size_t PieceTable::slot_of(std::string_view text, uint32_t hash) const {
  size_t i = hash & (slots_.size() - 1);
  while (slots_[i].id >= 0 && (slots_[i].hash != hash || pieces_[slots_[i].id] != text)) {
    i = (i + 1) & (slots_.size() - 1);
  }
  return i;
}

void PieceTable::insert(TokenId id) {
  const std::string& text = pieces_[id];
  const uint32_t hash = hash_of(text);
  slots_[slot_of(text, hash)] = {hash, id};
  longest_ = std::max(longest_, text.size());
}

TokenId PieceTable::find(std::string_view text) const {
  if (text.size() > longest_) return -1;
  return slots_[slot_of(text, hash_of(text))].id;
}

int32_t PrefixTree::child(int32_t node, char byte) const {
  int32_t next = nodes_[node].first_child;
  while (next != 0 && nodes_[next].byte != byte) next = nodes_[next].next_sibling;
  return next;
}

void PrefixTree::insert(std::string_view text, TokenId id) {
  int32_t node = 0;
  for (const char byte : text) {
    int32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({-1, 0, nodes_[node].first_child, byte});
      nodes_[node].first_child = next;
    }
    node = next;
  }
  nodes_[node].id = id;
}

size_t PrefixTree::longest_prefix(std::string_view text, TokenId* id) const {
  size_t length = 0;
  int32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    node = child(node, text[i]);
    if (node == 0) break;
    if (nodes_[node].id < 0) continue;
    length = i + 1;
    *id = nodes_[node].id;
  }
  return length;
}

}  // namespace flarecore
