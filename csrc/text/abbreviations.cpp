#include "text/abbreviations.h"

#include <algorithm>

namespace flarecore {
namespace {

struct WordList {
  uint16_t value;
  std::u16string_view words;  // separated by single spaces
};

#define WORD_LIST(value, words) {static_cast<uint16_t>(value), u"" words},
constexpr WordList kAbbreviationLists[] = {
#include "text/abbreviations.inc"
};
constexpr WordList kRoleLists[] = {
#include "text/sentence_words.inc"
};
#undef WORD_LIST

// Sorted array of (word, value): a few hundred entries, searched at periods only.
class WordTable {
 public:
  template <size_t kSize>
  explicit WordTable(const WordList (&lists)[kSize]) {
    for (const WordList& list : lists) {
      for (std::u16string_view rest = list.words; !rest.empty();) {
        const size_t end = std::min(rest.find(u' '), rest.size());
        entries_.emplace_back(rest.substr(0, end), list.value);
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
    }
    std::sort(entries_.begin(), entries_.end());
    merge_repeated();
  }

  uint16_t find(std::u16string_view word) const {
    const auto before = [](const Entry& e, std::u16string_view w) { return e.first < w; };
    const auto at = std::lower_bound(entries_.begin(), entries_.end(), word, before);
    return at != entries_.end() && at->first == word ? at->second : 0;
  }

  const std::vector<std::pair<std::u16string_view, uint16_t>>& entries() const {
    return entries_;
  }

 private:
  using Entry = std::pair<std::u16string_view, uint16_t>;

  // A word of several lists has the bits of all of them (roles; abbreviations are in one list).
  void merge_repeated() {
    size_t kept = 0;
    for (const Entry& entry : entries_) {
      if (kept > 0 && entries_[kept - 1].first == entry.first) {
        entries_[kept - 1].second |= entry.second;
      } else {
        entries_[kept++] = entry;
      }
    }
    entries_.resize(kept);
  }

  std::vector<Entry> entries_;
};

const WordTable& abbreviations() {
  static const WordTable table(kAbbreviationLists);
  return table;
}

const WordTable& roles() {
  static const WordTable table(kRoleLists);
  return table;
}

}  // namespace

AbbreviationClass find_abbreviation(std::u16string_view word) {
  return static_cast<AbbreviationClass>(abbreviations().find(word));
}

bool has_role(std::u16string_view word, unsigned wanted) {
  return (roles().find(word) & wanted) != 0;
}

bool is_roman(std::u16string_view word) {
  return !word.empty() && word.find_first_not_of(u"IVXLCDM") == std::u16string_view::npos;
}

std::vector<std::pair<std::u16string_view, AbbreviationClass>> all_abbreviations() {
  std::vector<std::pair<std::u16string_view, AbbreviationClass>> out;
  for (const auto& [word, value] : abbreviations().entries()) {
    out.emplace_back(word, static_cast<AbbreviationClass>(value));
  }
  return out;
}

std::vector<std::pair<std::u16string_view, uint16_t>> all_word_roles() {
  return roles().entries();
}

}  // namespace flarecore
