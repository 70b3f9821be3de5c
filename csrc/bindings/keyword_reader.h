// Keyword arguments of a call with many of them, checked one by one.
//
// Reading a missing argument gives a harmless value; finish() then names all that are missing, or
// unknown. So nothing may be done with the values before it.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "common/check.h"

namespace flarecore {

class KeywordReader {
 public:
  KeywordReader(const char* call, const pybind11::kwargs& given) : call_(call), given_(given) {}

  // An integer in [least, most].
  int64_t integer(const char* name, int64_t least, int64_t most) {
    const pybind11::object value = take(name, true);
    return value ? to_integer(name, value, least, most) : least;
  }
  int64_t integer(const char* name, int64_t least, int64_t most, int64_t fallback) {
    const pybind11::object value = take(name, false);
    return value ? to_integer(name, value, least, most) : fallback;
  }

  // An address, not 0, that is a multiple of `alignment`.
  template <typename T>
  T* pointer(const char* name, int64_t alignment = alignof(T)) {
    const pybind11::object value = take(name, true);
    return value ? reinterpret_cast<T*>(to_address(name, value, alignment)) : nullptr;
  }
  // The same, or null if it is not given or 0.
  template <typename T>
  T* optional_pointer(const char* name, int64_t alignment = alignof(T)) {
    const pybind11::object value = take(name, false);
    if (!value || (PyLong_Check(value.ptr()) && value.equal(pybind11::int_(0)))) return nullptr;
    return reinterpret_cast<T*>(to_address(name, value, alignment));
  }

  bool flag(const char* name, bool fallback) {
    const pybind11::object value = take(name, false);
    if (!value) return fallback;
    check(PyBool_Check(value.ptr()), ErrorKind::kConfig, name, " must be True or False, got ",
          describe(value));
    return value.ptr() == Py_True;
  }

  std::string text(const char* name) {
    const pybind11::object value = take(name, true);
    if (!value) return {};
    check(PyUnicode_Check(value.ptr()), ErrorKind::kConfig, name, " must be a string, got ",
          describe(value));
    return value.cast<std::string>();
  }

  // A list or tuple of integers.
  std::vector<pybind11::object> list(const char* name) {
    const pybind11::object value = take(name, true);
    return value ? to_list(name, value) : std::vector<pybind11::object>();
  }

  // `count` integers of one item of a list.
  std::vector<int64_t> integers(const char* name, const pybind11::object& item, size_t count) {
    const auto parts = to_list(name, item);
    check(parts.size() == count, ErrorKind::kConfig, "each of ", name, " must have ", count,
          " numbers, got ", describe(item));
    std::vector<int64_t> out;
    for (const auto& part : parts) out.push_back(to_integer(name, part, INT64_MIN, INT64_MAX));
    return out;
  }

  uint64_t to_address(const char* name, const pybind11::object& value, int64_t alignment) {
    check_integer(name, value);
    const uint64_t address = PyLong_AsUnsignedLongLong(value.ptr());
    if (PyErr_Occurred()) PyErr_Clear();
    check(address != 0 && address != ~uint64_t{0}, ErrorKind::kConfig, name,
          " must be the address of device memory (tensor.data_ptr()), got ", describe(value));
    check(address % alignment == 0, ErrorKind::kConfig, name, " must be aligned to ", alignment,
          " bytes, got address ", address);
    return address;
  }

  void finish() {
    for (const auto& [key, value] : given_) {
      const std::string name = pybind11::str(key);
      bool is_known = false;
      for (const std::string& known : known_) is_known |= known == name;
      check(is_known, ErrorKind::kConfig, call_, "() has no argument '", name, "'; it takes ",
            joined(known_));
    }
    check(missing_.empty(), ErrorKind::kConfig, call_, "() needs the arguments ", joined(missing_));
  }

 private:
  pybind11::object take(const char* name, bool is_required) {
    known_.push_back(name);
    if (given_.contains(name)) return given_[name];
    if (is_required) missing_.push_back(name);
    return {};
  }

  static void check_integer(const char* name, const pybind11::object& value) {
    check(PyLong_Check(value.ptr()) && !PyBool_Check(value.ptr()), ErrorKind::kConfig, name,
          " must be an integer, got ", describe(value));
  }

  static int64_t to_integer(const char* name, const pybind11::object& value, int64_t least,
                            int64_t most) {
    check_integer(name, value);
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    check(overflow == 0 && number >= least && number <= most, ErrorKind::kConfig, name,
          " must be ", least, " to ", most, ", got ", describe(value));
    return number;
  }

  static std::vector<pybind11::object> to_list(const char* name, const pybind11::object& value) {
    check(PyList_Check(value.ptr()) || PyTuple_Check(value.ptr()), ErrorKind::kConfig, name,
          " must be a list or tuple, got ", describe(value));
    std::vector<pybind11::object> out;
    for (const auto& item : pybind11::sequence(value)) {
      out.push_back(pybind11::reinterpret_borrow<pybind11::object>(item));
    }
    return out;
  }

  static std::string describe(const pybind11::object& value) { return pybind11::repr(value); }

  static std::string joined(const std::vector<std::string>& names) {
    std::string out;
    for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
    return out;
  }

  std::string call_;
  pybind11::kwargs given_;
  std::vector<std::string> known_, missing_;
};

}  // namespace flarecore
