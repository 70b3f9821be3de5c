// Passages and the files they are kept in.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/engine_handles.h"
#include "common/check.h"

namespace py = pybind11;

namespace flarecore {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

// (size_bytes) uint8, valid as long as `owner`.
py::array_t<uint8_t> read_only(const uint8_t* data, size_t size_bytes, const py::object& owner) {
  py::array_t<uint8_t> array(static_cast<py::ssize_t>(size_bytes), data, owner);
  array.attr("flags").attr("writeable") = false;
  return array;
}

}  // namespace

PassageHandle load_passage(const EngineHandle& engine, const std::shared_ptr<MappedFile>& file,
                           size_t offset, size_t size_bytes, std::vector<TokenId> head,
                           std::vector<TokenId> tokens) {
  check(size_bytes <= file->size() && offset <= file->size() - size_bytes, ErrorKind::kIndexFile,
        file->path(), ": ", size_bytes, " bytes at ", offset, " lie outside the file of ",
        file->size(), " bytes");
  const Span<const uint8_t> data = {file->data() + offset, size_bytes};
  return {engine->load_passage(std::move(head), std::move(tokens), file, data)};
}

void bind_passage(py::module_& m) {
  py::class_<MappedFile, std::shared_ptr<MappedFile>>(m, "MappedFile")
      .def(py::init([](const std::string& path) {
             return std::const_pointer_cast<MappedFile>(MappedFile::open(path));
           }),
           py::arg("path"), NoGil())
      .def_property_readonly("data", [](const py::object& self) {
        const auto& file = self.cast<const MappedFile&>();
        return read_only(file.data(), file.size(), self);
      });
  py::class_<PassageHandle>(m, "PassageKv")
      .def_property_readonly("head_ids", [](const PassageHandle& h) { return h.passage->head(); })
      .def_property_readonly("token_ids", [](const PassageHandle& h) { return h.passage->tokens(); })
      .def_property_readonly("size_bytes",
                             [](const PassageHandle& h) { return h.passage->size_bytes(); })
      // Someone besides this object holds it: a sequence, a checkpoint, a result.
      .def_property_readonly("is_shared",
                             [](const PassageHandle& h) { return h.passage.use_count() > 1; })
      .def_property_readonly("data", [](const py::object& self) {
        const PassageKv& passage = *self.cast<const PassageHandle&>().passage;
        return read_only(passage.block(0), passage.size_bytes(), self);
      });
}

}  // namespace flarecore
