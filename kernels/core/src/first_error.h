// The first position at which threads that share a loop found something wrong.
#ifndef MXREC_SRC_FIRST_ERROR_H_
#define MXREC_SRC_FIRST_ERROR_H_

#include <atomic>
#include <cstdint>

namespace mxrec {

// The first error of a parallel loop, by position.
class FirstError {
 public:
  void Report(int64_t position) {
    int64_t seen = position_.load(std::memory_order_relaxed);
    while (position < seen &&
           !position_.compare_exchange_weak(seen, position)) {
    }
  }
  int64_t position() const { return position_.load(); }
  bool any() const { return position() != INT64_MAX; }

 private:
  std::atomic<int64_t> position_{INT64_MAX};
};

}  // namespace mxrec

#endif  // MXREC_SRC_FIRST_ERROR_H_
