// The SentencePiece tokenizer for Python. The vocabulary is checked here, its scores in csrc/text.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "common/check.h"
#include "text/sentencepiece.h"

namespace py = pybind11;

namespace flarecore {
namespace {

using Scores = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Types = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;

// As the metadata reader hands them out: bytes that are not UTF-8 are lone surrogates.
std::vector<std::string> pieces_of(const py::list& tokens) {
  std::vector<std::string> pieces;
  pieces.reserve(tokens.size());
  for (const py::handle token : tokens) {
    PyObject* text = token.ptr();
    check(PyUnicode_Check(text) != 0, ErrorKind::kModelFile, "a token must be a string");
    if (PyUnicode_IS_ASCII(text)) {
      pieces.emplace_back(static_cast<const char*>(PyUnicode_DATA(text)),
                          static_cast<size_t>(PyUnicode_GET_LENGTH(text)));
      continue;
    }
    PyObject* encoded = PyUnicode_AsEncodedString(text, "utf-8", "surrogateescape");
    if (encoded == nullptr) throw py::error_already_set();
    pieces.emplace_back(std::string_view(py::reinterpret_steal<py::bytes>(encoded)));
  }
  return pieces;
}

std::unique_ptr<SentencePiece> make(const py::list& tokens, const Scores& scores,
                                    const Types& types, bool prefixes_blank,
                                    std::optional<TokenId> unknown) {
  const auto count = static_cast<py::ssize_t>(tokens.size());
  check(scores.ndim() == 1 && types.ndim() == 1 && scores.size() == count && types.size() == count,
        ErrorKind::kModelFile, "a vocabulary of ", count, " tokens has ", scores.size(),
        " scores and ", types.size(), " types; it must have one of each a token");
  std::vector<PieceType> kinds(types.size());
  std::copy_n(types.data(), types.size(), reinterpret_cast<int32_t*>(kinds.data()));
  return std::make_unique<SentencePiece>(
      pieces_of(tokens), std::vector<float>(scores.data(), scores.data() + scores.size()),
      std::move(kinds), prefixes_blank, unknown.value_or(-1));
}

py::list token_table(const SentencePiece& model) {
  py::list table(model.size());
  for (TokenId id = 0; id < model.size(); ++id) table[id] = py::bytes(model.token_bytes(id));
  return table;
}

}  // namespace

void bind_sentencepiece(py::module_& m) {
  py::class_<SentencePiece>(m, "SentencePiece")
      .def(py::init(&make), py::arg("tokens"), py::arg("scores"), py::arg("types"), py::kw_only(),
           py::arg("prefixes_blank"), py::arg("unknown"))
      .def("encode",
           [](const SentencePiece& self, const py::bytes& text) {
             const std::string_view view = text;
             py::gil_scoped_release release;
             return self.encode(view);
           },
           py::arg("text"), "Ids of UTF-8 text.")
      .def("token_table", &token_table, "Bytes of every id.");
}

}  // namespace flarecore
