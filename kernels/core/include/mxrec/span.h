// A view over contiguous memory (the subset of std::span this project uses).
#ifndef MXREC_SPAN_H_
#define MXREC_SPAN_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace mxrec {

template <typename T>
class Span {
 public:
  constexpr Span() = default;
  constexpr Span(T* data, int64_t size) : data_(data), size_(size) {}
  template <typename U,
            typename = std::enable_if_t<std::is_convertible_v<U*, T*>>>
  Span(std::vector<U>& v)  // NOLINT: implicit by design
      : data_(v.data()), size_(static_cast<int64_t>(v.size())) {}
  template <typename U,
            typename = std::enable_if_t<std::is_convertible_v<const U*, T*>>>
  Span(const std::vector<U>& v)  // NOLINT: implicit by design
      : data_(v.data()), size_(static_cast<int64_t>(v.size())) {}

  constexpr T* data() const { return data_; }
  constexpr int64_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr T& operator[](int64_t i) const { return data_[i]; }
  constexpr T* begin() const { return data_; }
  constexpr T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace mxrec

#endif  // MXREC_SPAN_H_
