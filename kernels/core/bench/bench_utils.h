// What the parts of bench_core share.
#ifndef MXREC_BENCH_BENCH_UTILS_H_
#define MXREC_BENCH_BENCH_UTILS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "mxrec/address.h"

namespace mxrec {
namespace testing {

constexpr int64_t kBatch = 1 << 16;

inline double Milliseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now() - start)
      .count();
}

// The value that a share of `values` lies below.
inline double Quantile(std::vector<double> values, double share) {
  const size_t at =
      std::min(values.size() - 1, static_cast<size_t>(share * values.size()));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

inline double Median(const std::vector<double>& values) {
  return Quantile(values, 0.5);
}

// An arbitrary but fixed key for each rank, so that popular keys lie nowhere in
// particular.
inline Key KeyOf(int64_t rank) {
  return static_cast<Key>(static_cast<uint64_t>(rank) * 0x9E3779B97F4A7C15ull);
}

// The parts; `rounds` is how often each thing is measured.
void BenchOperations(int rounds);
void BenchLimits(int rounds);
void BenchGrowth();

}  // namespace testing
}  // namespace mxrec

#endif  // MXREC_BENCH_BENCH_UTILS_H_
