#include "row_math.h"

namespace mxrec {

const RowMath& BestRowMath() {
  static const RowMath* best = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw")) {
      return &internal::kRowMathAvx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      return &internal::kRowMathAvx2;
    }
    return &internal::kRowMathBaseline;
  }();
  return *best;
}

}  // namespace mxrec
