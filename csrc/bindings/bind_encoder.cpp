// SafetensorsFile and the sentence encoder in Python.
#include <algorithm>
#include <memory>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/quantize_option.h"
#include "bindings/safetensors_object.h"
#include "common/check.h"
#include "model/encoder.h"
#include "model/safetensors.h"

namespace py = pybind11;

namespace flarecore {
namespace {

struct SafeTensorObject {
  std::shared_ptr<const SafetensorsFile> file;
  const SafeTensor* tensor;  // owned by file
};

// What is not UTF-8 in a file becomes lone surrogates, as in Python's file names.
py::str to_str(const std::string& text) {
  PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()),
                                           "surrogateescape");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

std::string path_bytes(const py::object& path) {
  return py::bytes(py::module_::import("os").attr("fsencode")(path));
}

py::array tensor_data(const SafeTensorObject& t) {
  const py::capsule owner(new std::shared_ptr<const SafetensorsFile>(t.file), [](void* p) {
    delete static_cast<std::shared_ptr<const SafetensorsFile>*>(p);
  });
  py::array_t<uint8_t> bytes({t.tensor->size_bytes}, {1}, t.tensor->data, owner);
  bytes.attr("flags").attr("writeable") = false;  // the mapping is read-only
  return bytes;
}

py::array tensor_float32(const SafeTensorObject& t) {
  const GgmlType type = t.tensor->type();
  py::array_t<float> values(t.tensor->shape);
  dequantize(type, t.tensor->data, t.tensor->num_values, values.mutable_data());
  return values;
}

void bind_safetensors(py::module_& m) {
  py::class_<SafeTensorObject>(m, "SafeTensor", "One tensor of a safetensors file.")
      .def_property_readonly("name",
                             [](const SafeTensorObject& t) { return to_str(t.tensor->name); })
      .def_property_readonly("dtype", [](const SafeTensorObject& t) { return t.tensor->dtype; })
      .def_property_readonly(
          "shape", [](const SafeTensorObject& t) { return py::tuple(py::cast(t.tensor->shape)); },
          "Sizes, outermost first.")
      .def_property_readonly("size_bytes",
                             [](const SafeTensorObject& t) { return t.tensor->size_bytes; })
      .def_property_readonly("data", &tensor_data,
                             "The bytes as stored, (size_bytes,) uint8, read-only, in the mapped "
                             "file.")
      .def("to_float32", &tensor_float32,
           "The values as float32 of the tensor's shape; ModelFileError unless F32, F16 or BF16.");
  py::class_<SafetensorsObject>(
      m, "SafetensorsFile",
      "A safetensors model file, mapped into memory and checked.\n\nRaises ModelFileError if it is "
      "missing, damaged or hostile.")
      .def(py::init([](const py::object& path) {
             const std::string name = path_bytes(path);
             py::gil_scoped_release release;
             return SafetensorsObject{SafetensorsFile::open(name)};
           }),
           py::arg("path"))
      .def_property_readonly("metadata",
                             [](const SafetensorsObject& self) {
                               py::dict out;
                               for (const auto& [key, value] : self.file->metadata()) {
                                 out[to_str(key)] = to_str(value);
                               }
                               return out;
                             })
      .def_property_readonly("tensors", [](const SafetensorsObject& self) {
        py::list out;
        for (const SafeTensor& tensor : self.file->tensors()) {
          out.append(SafeTensorObject{self.file, &tensor});
        }
        return out;
      });
}

Pooling parse_pooling(const std::string& name) {
  check(name == "mean" || name == "first", ErrorKind::kConfig,
        "encoder: pooling must be \"mean\" or \"first\", got \"", name, "\"");
  return name == "mean" ? Pooling::kMean : Pooling::kFirst;
}

template <typename T>
using InputArray = py::array_t<T, py::array::c_style | py::array::forcecast>;

py::array_t<float> encode(Encoder& self, const InputArray<TokenId>& token_ids,
                          const InputArray<int64_t>& lengths) {
  check(token_ids.ndim() == 1 && lengths.ndim() == 1, ErrorKind::kConfig,
        "encoder: token_ids and lengths must have one dimension, got ", token_ids.ndim(), " and ",
        lengths.ndim());
  py::array_t<float> out({static_cast<py::ssize_t>(lengths.size()),
                          static_cast<py::ssize_t>(self.config().hidden_size)});
  const Span<const TokenId> ids(token_ids.data(), static_cast<size_t>(token_ids.size()));
  const Span<const int64_t> sizes(lengths.data(), static_cast<size_t>(lengths.size()));
  float* data = out.mutable_data();
  {
    py::gil_scoped_release release;
    self.encode(ids, sizes, data);
  }
  return out;
}

void bind_native_encoder(py::module_& m) {
  py::class_<Encoder>(m, "Encoder", "A BERT-style sentence encoder over token ids.")
      .def(py::init([](const py::object& path, int64_t vocab_size, int64_t hidden_size,
                       int64_t num_layers, int64_t num_heads, int64_t intermediate_size,
                       int64_t max_positions, int64_t num_token_types, float layer_norm_eps,
                       const std::string& pooling, const std::string& quantize, int num_threads) {
             EncoderConfig config{vocab_size,    hidden_size,     num_layers,     num_heads,
                                  intermediate_size, max_positions, num_token_types,
                                  layer_norm_eps, parse_pooling(pooling)};
             const std::string name = path_bytes(path);
             const Quantize parsed = parse_quantize(quantize);
             py::gil_scoped_release release;
             return Encoder::load(name, config, parsed, num_threads);
           }),
           py::arg("path"), py::kw_only(), py::arg("vocab_size"), py::arg("hidden_size"),
           py::arg("num_layers"), py::arg("num_heads"), py::arg("intermediate_size"),
           py::arg("max_positions"), py::arg("num_token_types"), py::arg("layer_norm_eps"),
           py::arg("pooling"), py::arg("quantize") = "none", py::arg("num_threads"))
      .def("encode", &encode, py::arg("token_ids"), py::arg("lengths"),
           "Vectors of length 1, (num_texts, hidden_size) float32, of texts that lie one after the "
           "other in token_ids, (num_tokens,) int32; lengths is (num_texts,) int64. The GIL is "
           "released.")
      .def("quantization",
           [](const Encoder& self) { return quantization_list(self.quantization()); },
           "What quantising changed in each matrix, as of Model.")
      .def_property_readonly("num_threads", &Encoder::num_threads);
  m.def("default_encoder_threads", [] { return std::min(8, usable_num_threads()); },
        "Threads of an encoder that was not told: the usable ones, at most 8, as a small model has "
        "no work for more.");
}

}  // namespace

void bind_encoder(py::module_& m) {
  bind_safetensors(m);
  bind_native_encoder(m);
}

}  // namespace flarecore
