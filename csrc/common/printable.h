// Text of unknown origin, made fit for an error message.
#pragma once

#include <string>
#include <string_view>

namespace flarecore {

// `text` as valid UTF-8 without control characters: what is neither is written as \xNN, and what
// goes beyond `max_bytes` is cut. Names in a hostile file may hold any bytes, and an error message
// that is not UTF-8 could not become a Python exception.
std::string printable(std::string_view text, size_t max_bytes = 96);

}  // namespace flarecore
