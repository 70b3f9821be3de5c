#include "text/char_class.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace flarecore {
namespace {

struct CharRange {
  char32_t first, last;
};
struct StridedRange {
  char32_t first, last;
  uint32_t step;
};

#include "text/unicode_tables.inc"

template <typename Range, size_t kSize>
const Range* find_range(const Range (&ranges)[kSize], char32_t c) {
  const auto after = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                                      [](char32_t v, const Range& r) { return v < r.first; });
  if (after == std::begin(ranges) || std::prev(after)->last < c) return nullptr;
  return std::prev(after);
}

template <size_t kSize>
bool in_strided(const StridedRange (&ranges)[kSize], char32_t c) {
  const StridedRange* range = find_range(ranges, c);
  return range != nullptr && (c - range->first) % range->step == 0;
}

struct Mark {
  char32_t code_point;
  uint32_t flags;
};

// Roles of single non-ASCII characters, by code point.
constexpr Mark kMarks[] = {
    {0x85, kNewline},
    {0xAB, kCloser | kLooseCloser},                // «
    {0xB2, kCloser}, {0xB3, kCloser}, {0xB9, kCloser},  // ² ³ ¹: footnote marks
    {0xBB, kCloser},                               // »
    {0x37E, kQuestion},                            // Greek question mark
    {0x589, kStrong},                              // Armenian full stop
    {0x60C, kContinue},                            // Arabic comma
    {0x61B, kContinue},                            // Arabic semicolon
    {0x61C, kCloser},                              // Arabic letter mark
    {0x61F, kStrong},                              // Arabic question mark
    {0x6D4, kStrong},                              // Urdu full stop
    {0x700, kStrong}, {0x701, kStrong}, {0x702, kStrong},  // Syriac full stops
    {0x964, kStrong}, {0x965, kStrong},            // danda, double danda
    {0x104B, kStrong},                             // Myanmar section
    {0x1362, kStrong},                             // Ethiopic full stop
    {0x1367, kStrong}, {0x1368, kStrong},          // Ethiopic question mark, paragraph
    {0x17D4, kStrong}, {0x17D5, kStrong},          // Khmer khan, bariyoosan
    {0x1803, kStrong}, {0x1809, kStrong},          // Mongolian full stops
    {0x1C7E, kStrong}, {0x1C7F, kStrong},          // Ol Chiki
    {0x200D, kCloser},                             // emoji joiner
    {0x200E, kCloser}, {0x200F, kCloser},          // marks of direction
    {0x2018, kCloser | kLooseCloser},              // ‘
    {0x2019, kCloser},                             // ’
    {0x201C, kCloser | kLooseCloser},              // “
    {0x201D, kCloser | kEastQuote},                // ”
    {0x2025, kEllipsis}, {0x2026, kEllipsis},      // ‥ …
    {0x2028, kNewline}, {0x2029, kNewline},
    {0x202C, kCloser},
    {0x2039, kCloser | kLooseCloser},              // ‹
    {0x203A, kCloser},                             // ›
    {0x203C, kQuestion}, {0x203D, kQuestion},      // ‼ ‽
    {0x2047, kQuestion}, {0x2048, kQuestion}, {0x2049, kQuestion},  // ⁇ ⁈ ⁉
    {0x2069, kCloser},
    {0x22EF, kEllipsis},                           // ⋯
    {0x3001, kContinue},                           // 、
    {0x3002, kStrong},                             // 。
    {0x3008, kEastOpener},
    {0x3009, kCloser | kHardCloser | kEastQuote | kTitleCloser},  // 〉
    {0x300A, kEastOpener},
    {0x300B, kCloser | kHardCloser | kEastQuote | kTitleCloser},  // 》
    {0x300C, kEastOpener},
    {0x300D, kCloser | kHardCloser | kEastQuote},  // 」
    {0x300E, kEastOpener},
    {0x300F, kCloser | kHardCloser | kEastQuote},  // 』
    {0x3010, kEastOpener},
    {0x3011, kCloser | kHardCloser | kEastQuote},  // 】
    {0x3015, kCloser | kHardCloser},               // 〕
    {0x3017, kCloser | kHardCloser},               // 〗
    {0xABEB, kStrong},                             // Meetei Mayek
    {0xFE0F, kCloser},                             // emoji presentation
    {0xFF01, kStrong},                             // ！
    {0xFF02, kCloser}, {0xFF07, kCloser},          // ＂ ＇
    {0xFF09, kCloser | kHardCloser | kEastQuote},  // ）
    {0xFF0C, kContinue},                           // ，
    {0xFF0E, kWideDot},                            // ．
    {0xFF1A, kContinue},                           // ：
    {0xFF1B, kStrong},                             // ；
    {0xFF1F, kStrong},                             // ？
    {0xFF3D, kCloser | kHardCloser},               // ］
    {0xFF5D, kCloser | kHardCloser},               // ｝
    {0xFF61, kStrong},                             // ｡
    {0xFF62, kEastOpener},
    {0xFF63, kCloser | kHardCloser | kEastQuote},  // ｣
    {0xFF64, kContinue},                           // ､
};

constexpr bool in(char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; }

constexpr uint32_t ascii_flags(char32_t c) {
  if (in(c, 'A', 'Z')) return kWordChar | kUpper;
  if (in(c, 'a', 'z')) return kWordChar | kLower;
  if (in(c, '0', '9')) return kWordChar | kDigit;
  if (c == '\n' || c == '\r') return kSpace | kNewline;
  if (c <= ' ' || c == 0x7F) return kSpace;
  switch (c) {
    case '.': return kPunct | kDot;
    case '?': case '!': return kPunct | kQuestion;
    case ',': case ';': case ':': return kPunct | kContinue;
    case '\'': return kPunct | kCloser;
    case ')': case ']': case '}': return kPunct | kCloser | kHardCloser;
    case '"': case '*': case '`': case '_': case '~': return kPunct | kCloser | kPaired;
    default: return kPunct;
  }
}

// Han, Kana, Bopomofo (letters only), and Hangul.
bool is_hangul(char32_t c) {
  return in(c, 0x1100, 0x11FF) || in(c, 0x3131, 0x318E) || in(c, 0xA960, 0xA97C) ||
         in(c, 0xAC00, 0xD7FB) || in(c, 0xFFA0, 0xFFDC);
}
bool is_unspaced_east(char32_t c) {
  return in(c, 0x3005, 0x3007) || in(c, 0x3021, 0x3029) || in(c, 0x3031, 0x3035) ||
         in(c, 0x3038, 0x303C) || in(c, 0x3041, 0x30FF) || in(c, 0x3105, 0x312F) ||
         in(c, 0x31A0, 0x31BF) || in(c, 0x31F0, 0x31FF) || in(c, 0x3400, 0x4DBF) ||
         in(c, 0x4E00, 0x9FFF) || in(c, 0xF900, 0xFAFF) || in(c, 0xFF66, 0xFF9F) ||
         in(c, 0x20000, 0x3FFFF);
}
// Thai, Lao, Tibetan, Myanmar, Khmer.
bool is_unspaced_south(char32_t c) { return in(c, 0x0E00, 0x109F) || in(c, 0x1780, 0x17FF); }

bool is_digit(char32_t c) {
  return in(c, 0xFF10, 0xFF19) || in(c, 0x0660, 0x0669) || in(c, 0x06F0, 0x06F9) ||
         in(c, 0x0966, 0x096F);
}

bool is_emoji(char32_t c) { return in(c, 0x2600, 0x27BF) || in(c, 0x1F000, 0x1FAFF); }

uint32_t mark_flags(char32_t c) {
  const auto found = std::lower_bound(std::begin(kMarks), std::end(kMarks), c,
                                      [](const Mark& m, char32_t v) { return m.code_point < v; });
  return found != std::end(kMarks) && found->code_point == c ? found->flags : 0;
}

uint32_t wide_flags(char32_t c) {
  if (find_range(kSpaceRanges, c) != nullptr) return kSpace | mark_flags(c);
  if (find_range(kPunctRanges, c) != nullptr) return kPunct | mark_flags(c);
  if (find_range(kSymbolRanges, c) != nullptr) {
    return kSymbol | mark_flags(c) | (is_emoji(c) ? kCloser : 0u);
  }
  uint32_t flags = kWordChar | mark_flags(c);
  if (in_strided(kUpperRanges, c)) flags |= kUpper;
  if (in_strided(kLowerRanges, c)) flags |= kLower;
  if (is_digit(c)) flags |= kDigit;
  if (is_hangul(c)) flags |= kEastLetter;
  if (is_unspaced_east(c)) flags |= kEastLetter | kUnspaced;
  if (is_unspaced_south(c)) flags |= kUnspaced;
  if (in(c, 0x2070, 0x2079)) flags |= kCloser;  // superscript digits
  return flags;
}

constexpr std::array<uint32_t, 128> make_ascii_table() {
  std::array<uint32_t, 128> table{};
  for (char32_t c = 0; c < 128; ++c) table[c] = ascii_flags(c);
  return table;
}

constexpr std::array<uint32_t, 128> kAscii = make_ascii_table();

}  // namespace

uint32_t char_flags(char32_t c) {
  if (c < 128) return kAscii[c];
  if (in(c, 0x4E00, 0x9FFF)) return kWordChar | kEastLetter | kUnspaced;  // most of Chinese text
  return wide_flags(c);
}

}  // namespace flarecore
