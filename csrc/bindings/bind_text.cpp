// Sentence boundary and query mask for Python. Shapes are checked here, values in csrc/text.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "common/check.h"
#include "text/abbreviations.h"
#include "text/char_class.h"
#include "text/query_mask.h"
#include "text/sentence_boundary.h"

namespace py = pybind11;

namespace flarecore {
namespace {

using Probs = py::array_t<float, py::array::c_style | py::array::forcecast>;

std::vector<int64_t> py_split_sentences(const py::bytes& text, bool newline_is_boundary,
                                        int min_chars) {
  const std::string_view view = text;
  py::gil_scoped_release release;
  return split_sentences(view, {newline_is_boundary, min_chars});
}

// Owns what MaskInput borrows.
struct OwnedMaskInput {
  OwnedMaskInput(const std::vector<py::bytes>& tokens, const Probs& probs,
                 const std::optional<std::vector<bool>>& special)
      : token_bytes(tokens.begin(), tokens.end()) {
    check(probs.ndim() == 1, ErrorKind::kConfig, "probs must have one dimension, got ",
          probs.ndim());
    if (special) is_special.assign(special->begin(), special->end());
    check(!special || special->size() == tokens.size(), ErrorKind::kConfig,
          "one special flag a token: got ", is_special.size(), " for ", tokens.size(), " tokens");
    input = {token_bytes, {probs.data(), static_cast<size_t>(probs.size())}, is_special};
  }
  OwnedMaskInput(const OwnedMaskInput&) = delete;
  OwnedMaskInput& operator=(const OwnedMaskInput&) = delete;

  std::vector<std::string_view> token_bytes;
  std::vector<uint8_t> is_special;
  MaskInput input;
};

MaskUnit parse_unit(const std::string& unit) {
  if (unit == "token") return MaskUnit::kToken;
  if (unit == "word" || unit == "auto") return MaskUnit::kWord;
  fail(ErrorKind::kConfig, "unit must be \"token\", \"word\" or \"auto\", got \"", unit, "\"");
}

std::pair<std::string, std::vector<bool>> py_mask_to_query(
    const std::vector<py::bytes>& token_bytes, const Probs& probs, float beta,
    const std::string& unit, bool inclusive, const std::optional<std::vector<bool>>& special) {
  const OwnedMaskInput owned(token_bytes, probs, special);
  MaskedQuery query = mask_to_query(owned.input, {beta, inclusive}, parse_unit(unit));
  return {std::move(query.text), {query.kept.begin(), query.kept.end()}};
}

std::vector<std::pair<int, int>> py_low_spans(const Probs& probs, float threshold, int span_gap,
                                              const std::vector<py::bytes>& token_bytes,
                                              const std::optional<std::vector<bool>>& special,
                                              bool inclusive) {
  const OwnedMaskInput owned(token_bytes, probs, special);
  std::vector<std::pair<int, int>> spans;
  for (const TokenSpan& span : low_spans(owned.input, {threshold, inclusive}, span_gap)) {
    spans.emplace_back(span.begin, span.end);
  }
  return spans;
}

py::dict py_abbreviations() {
  static const char* const kNames[] = {"none", "never", "number", "digit", "ambiguous"};
  py::dict table;
  for (const auto& [word, value] : all_abbreviations()) {
    table[py::cast(std::u16string(word))] = kNames[static_cast<int>(value)];
  }
  return table;
}

py::dict py_word_roles() {
  py::dict table;
  for (const auto& [word, roles] : all_word_roles()) {
    table[py::cast(std::u16string(word))] = roles;
  }
  return table;
}

// Every character that can open a boundary: terminators and newlines.
py::str py_sentence_marks() {
  std::u32string marks;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    const bool is_surrogate = c >= 0xD800 && c < 0xE000;
    if (!is_surrogate && (char_flags(c) & (kTerminator | kNewline)) != 0) marks.push_back(c);
  }
  return py::cast(marks);
}

void bind_boundary(py::module_& m) {
  py::class_<SentenceBoundary>(m, "SentenceBoundary")
      .def(py::init([](bool newline_is_boundary, int min_chars) {
             return SentenceBoundary({newline_is_boundary, min_chars});
           }),
           py::kw_only(), py::arg("newline_is_boundary") = true, py::arg("min_chars") = 1)
      .def("feed", [](SentenceBoundary& self, const py::bytes& token) {
             const std::string_view bytes = token;
             return self.feed(bytes.data(), bytes.size());
           }, py::arg("token_bytes"))
      .def("finish", &SentenceBoundary::finish)
      .def("reset", &SentenceBoundary::reset)
      .def("copy", [](const SentenceBoundary& self) { return self; })
      .def("__copy__", [](const SentenceBoundary& self) { return self; })
      .def("__deepcopy__", [](const SentenceBoundary& self, const py::dict&) { return self; })
      .def_property_readonly("num_tokens", &SentenceBoundary::num_tokens)
      .def_property_readonly("end_byte", &SentenceBoundary::end_byte);
  m.def("split_sentences", &py_split_sentences, py::arg("text"), py::kw_only(),
        py::arg("newline_is_boundary") = true, py::arg("min_chars") = 1);
}

}  // namespace

void bind_text(py::module_& m) {
  bind_boundary(m);
  m.def("mask_to_query", &py_mask_to_query, py::arg("token_bytes"), py::arg("probs"),
        py::arg("beta"), py::arg("unit") = "word", py::arg("inclusive") = false,
        py::arg("special") = py::none());
  m.def("low_spans", &py_low_spans, py::arg("probs"), py::arg("threshold"), py::arg("span_gap"),
        py::arg("token_bytes"), py::arg("special") = py::none(), py::arg("inclusive") = false);
  m.def("is_punctuation_or_space",
        [](const py::bytes& token) { return is_punctuation_or_space(std::string_view(token)); },
        py::arg("token_bytes"));
  m.def("abbreviations", &py_abbreviations);
  m.def("word_roles", &py_word_roles);
  m.def("sentence_marks", &py_sentence_marks,
        "Every character at which a sentence may end: terminators and newlines.");
  m.def("char_flags", [](uint32_t code_point) { return char_flags(code_point); },
        py::arg("code_point"));
}

}  // namespace flarecore
