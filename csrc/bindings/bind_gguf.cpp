// GgufFile, its metadata and its tensors in Python.
#include <cstring>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "bindings/bindings.h"
#include "bindings/gguf_object.h"
#include "model/gguf.h"

namespace py = pybind11;

namespace flarecore {
namespace {

// The metadata of an opened file as a read-only mapping. A value is made when it is asked for.
struct GgufMetadata {
  std::shared_ptr<const GgufFile> file;
};

struct GgufTensorObject {
  std::shared_ptr<const GgufFile> file;
  const GgufTensor* tensor;  // owned by file
};

// Files may hold any bytes: what is not UTF-8 becomes lone surrogates, as in Python's file names,
// so that nothing is lost and nothing raises.
py::str to_str(std::string_view text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

std::string from_str(const py::str& text) {
  PyObject* encoded = PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape");
  if (encoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(encoded);
}

const char* numpy_type(GgufValueType type) {
  return type == GgufValueType::kBool ? "bool" : gguf_type_name(type);
}

// list[str], a numpy array or a Python number, bool or str.
py::object to_python(const GgufEntry& entry) {
  if (entry.type == GgufValueType::kString) {
    const auto strings = gguf_strings(entry);
    if (!entry.is_array) return to_str(strings[0]);
    py::list out(strings.size());
    for (size_t i = 0; i < strings.size(); ++i) out[i] = to_str(strings[i]);
    return out;
  }
  py::array values(py::dtype(numpy_type(entry.type)), std::vector<py::ssize_t>{
                                                          static_cast<py::ssize_t>(entry.count)});
  std::memcpy(values.mutable_data(), entry.data, entry.size_bytes);
  if (entry.is_array) return values;
  return values.attr("item")();
}

py::object get_item(const GgufMetadata& self, const py::str& key) {
  const GgufEntry* entry = self.file->find_entry(from_str(key));
  if (entry == nullptr) throw py::key_error(py::repr(key).cast<std::string>());
  return to_python(*entry);
}

template <typename MakeItem>
py::list entry_list(const GgufMetadata& self, MakeItem make_item) {
  py::list out;
  for (const GgufEntry& entry : self.file->entries()) out.append(make_item(entry));
  return out;
}

py::list keys(const GgufMetadata& self) {
  return entry_list(self, [](const GgufEntry& e) { return to_str(e.key); });
}

void bind_metadata(py::module_& m) {
  py::class_<GgufMetadata> cls(m, "GgufMetadata",
                               "Metadata of a GGUF file: a read-only mapping of str to int, float, "
                               "bool, str, list[str] or a numpy array. Values are made on access.");
  cls.def("__getitem__", &get_item, py::arg("key"))
      .def("get",
           [](const GgufMetadata& self, const py::str& key, py::object fallback) -> py::object {
             const GgufEntry* entry = self.file->find_entry(from_str(key));
             return entry == nullptr ? fallback : to_python(*entry);
           },
           py::arg("key"), py::arg("default") = py::none())
      .def("__contains__",
           [](const GgufMetadata& self, const py::object& key) {
             return py::isinstance<py::str>(key) && self.file->has(from_str(py::str(key)));
           })
      .def("__len__", [](const GgufMetadata& self) { return self.file->entries().size(); })
      .def("__iter__", [](const GgufMetadata& self) { return py::iter(keys(self)); })
      .def("keys", &keys)
      .def("values", [](const GgufMetadata& self) { return entry_list(self, &to_python); })
      .def("items", [](const GgufMetadata& self) {
        return entry_list(self, [](const GgufEntry& e) {
          return py::make_tuple(to_str(e.key), to_python(e));
        });
      });
  py::module_::import("collections.abc").attr("Mapping").attr("register")(cls);
}

py::array_t<float> to_float32(const GgufTensorObject& t) {
  std::vector<py::ssize_t> shape(t.tensor->shape.rbegin(), t.tensor->shape.rend());
  py::array_t<float> out(shape);
  float* values = out.mutable_data();
  const int64_t size = out.size();
  py::gil_scoped_release release;
  dequantize(t.tensor->type, t.tensor->data, size, values);
  return out;
}

void bind_tensor(py::module_& m) {
  py::class_<GgufTensorObject>(m, "GgufTensor", "One tensor of a GGUF file.")
      .def_property_readonly("name",
                             [](const GgufTensorObject& t) { return to_str(t.tensor->name); })
      .def_property_readonly(
          "type",
          [](const GgufTensorObject& t) {
            return find_ggml_type(static_cast<uint32_t>(t.tensor->type))->name;
          },
          "Storage type, for instance \"Q4_1\".")
      .def_property_readonly(
          "shape",
          [](const GgufTensorObject& t) {
            py::tuple shape(t.tensor->shape.size());
            for (size_t i = 0; i < shape.size(); ++i) shape[i] = t.tensor->shape[i];
            return shape;
          },
          "Sizes in GGUF order: shape[0] is the length of a row (columns).")
      .def_property_readonly("size_bytes",
                             [](const GgufTensorObject& t) { return t.tensor->size_bytes; })
      .def_property_readonly(
          "data",
          [](const GgufTensorObject& t) {
            const py::capsule owner(new std::shared_ptr<const GgufFile>(t.file), [](void* p) {
              delete static_cast<std::shared_ptr<const GgufFile>*>(p);
            });
            py::array_t<uint8_t> bytes({t.tensor->size_bytes}, {1}, t.tensor->data, owner);
            bytes.attr("flags").attr("writeable") = false;  // the mapping is read-only
            return bytes;
          },
          "The bytes as stored, (size_bytes,) uint8, read-only, in the mapped file.")
      .def("to_float32", &to_float32,
           "The values, in numpy order (rows first), as a new float32 array. Raises "
           "UnsupportedError for a type that cannot be read.")
      .def("__repr__", [](const GgufTensorObject& t) {
        return py::str("GgufTensor({!r}, {}, {})")
            .format(to_str(t.tensor->name), py::cast(t).attr("type"), py::cast(t).attr("shape"));
      });
}

GgufObject open_file(const py::object& path) {
  const std::string name = py::bytes(py::module_::import("os").attr("fsencode")(path));
  py::gil_scoped_release release;
  return {GgufFile::open(name)};
}

}  // namespace

void bind_gguf(py::module_& m) {
  bind_metadata(m);
  bind_tensor(m);
  py::class_<GgufObject>(m, "GgufFile",
                         "A GGUF model file (version 2 or 3), mapped into memory and checked.\n\n"
                         "Raises ModelFileError if it is missing, damaged, hostile or of a kind "
                         "that is not supported.")
      .def(py::init(&open_file), py::arg("path"))
      .def_property_readonly("path",
                             [](const GgufObject& self) {
                               return py::module_::import("os").attr("fsdecode")(
                                   py::bytes(self.file->path()));
                             })
      .def_property_readonly("version", [](const GgufObject& self) { return self.file->version(); })
      .def_property_readonly("alignment",
                             [](const GgufObject& self) { return self.file->alignment(); })
      .def_property_readonly("size_bytes",
                             [](const GgufObject& self) { return self.file->size_bytes(); })
      .def_property_readonly("metadata",
                             [](const GgufObject& self) { return GgufMetadata{self.file}; })
      .def_property_readonly("tensors", [](const GgufObject& self) {
        py::list out;
        for (const GgufTensor& tensor : self.file->tensors()) {
          out.append(GgufTensorObject{self.file, &tensor});
        }
        return out;
      });
}

}  // namespace flarecore
