// From a draft and its confidences to a search query (design 3.4).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/span.h"

namespace flarecore {

enum class MaskUnit {
  kToken,  // a low token goes, nothing else
  // A low token takes its whole word along, where words are separated by spaces; punctuation that
  // is left alone beside a gap goes too. A word is a run of letters, digits and marks with the
  // joiners inside it (don't, U.S, 3.14, AT&T); hyphens and dashes separate words. Scripts without
  // spaces (Han, Kana, Thai, Lao, Khmer, Myanmar, Tibetan) lose the characters of the low token
  // only.
  kWord,
};

struct MaskInput {
  Span<const std::string_view> token_bytes;  // (num_tokens)
  Span<const float> probs;                   // (num_tokens) confidences in [0, 1]; NaN is low
  Span<const uint8_t> is_special;            // (num_tokens) or empty: none is special
};

// What counts as low. The paper drops p < threshold, the authors' code p <= threshold.
struct LowRule {
  float threshold;  // [0, 1]
  bool inclusive = false;
};

struct MaskedQuery {
  std::string text;           // valid UTF-8, single spaces, stripped; may be empty
  std::vector<uint8_t> kept;  // (num_tokens) 1 if any visible character of the token is in `text`,
                              // or it has none, is not low and not special
};

// A character goes completely if any of its bytes lies in a token that goes; invalid UTF-8 and
// special tokens become gaps; adjacent gaps and white space become one space. ConfigError: sizes
// differ, threshold or a probability out of range.
MaskedQuery mask_to_query(const MaskInput& input, const LowRule& rule, MaskUnit unit);

struct TokenSpan {
  int begin, end;  // [begin, end)
};

// Spans of low tokens. Tokens of only punctuation or white space are never low, special tokens end
// a span. A low token at index j joins the span whose last low token is at i if j - i < span_gap
// (neighbours always join); every span begins and ends with a low token. Errors as above, and
// ConfigError for a negative span_gap.
std::vector<TokenSpan> low_spans(const MaskInput& input, const LowRule& rule, int span_gap);

// True if the bytes are only punctuation (Unicode P*, ASCII punctuation), white space or nothing.
// A piece of a character and other symbols (€, emoji) are not.
bool is_punctuation_or_space(std::string_view bytes);

}  // namespace flarecore
