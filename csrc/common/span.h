// A pointer and a length: the borrowed view that crosses layers. std::span is C++20.
#pragma once

#include <cstddef>
#include <vector>

namespace flarecore {

template <typename T>
class Span {
 public:
  Span() = default;
  Span(T* data, size_t size) : data_(data), size_(size) {}
  template <typename U>
  Span(const std::vector<U>& v) : data_(v.data()), size_(v.size()) {}  // NOLINT: implicit view
  template <typename U>
  Span(std::vector<U>& v) : data_(v.data()), size_(v.size()) {}  // NOLINT: implicit view

  T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) const { return data_[i]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  T& back() const { return data_[size_ - 1]; }
  Span subspan(size_t begin, size_t count) const { return {data_ + begin, count}; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace flarecore
