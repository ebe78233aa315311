// How the core runs loops on several threads without knowing whose threads
// they are: TensorFlow's intra-op pool in the ops, plain threads in the tests.
#ifndef MXREC_PARALLEL_H_
#define MXREC_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace mxrec {

// Runs body(begin, end) over a partition of [0, total), perhaps concurrently,
// and returns when all of it is done. `cost_per_unit` is a rough number of CPU
// cycles for one unit; an implementation may run everything in the caller.
class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual void For(int64_t total, int64_t cost_per_unit,
                   const std::function<void(int64_t, int64_t)>& body) const = 0;
  // How many threads may work at the same time, the caller's included.
  virtual int threads() const = 0;
};

class SerialParallel final : public Parallel {
 public:
  void For(int64_t total, int64_t /*cost_per_unit*/,
           const std::function<void(int64_t, int64_t)>& body) const override {
    if (total > 0) body(0, total);
  }
  int threads() const override { return 1; }
};

}  // namespace mxrec

#endif  // MXREC_PARALLEL_H_
