// Initial rows as a pure function of (seed, key, column).
#ifndef MXREC_INITIALIZER_H_
#define MXREC_INITIALIZER_H_

#include <cstdint>
#include <vector>

#include "mxrec/address.h"

namespace mxrec {

enum class InitializerKind {
  kConstant,         // a
  kUniform,          // [a, b)
  kNormal,           // mean a, standard deviation b
  kTruncatedNormal,  // the same, redrawn beyond 2 standard deviations
  kPool,             // a row of `pool`, chosen by a hash of (seed, key)
};

struct InitializerOptions {
  InitializerKind kind = InitializerKind::kConstant;
  double a = 0.0;
  double b = 0.0;
  uint64_t seed = 0;
  // Multiplies every initial value (`init_param` of create_table).
  float scale = 1.0f;
  // kPool only: row-major [n, dim], n >= 1.
  std::vector<float> pool;
};

// Thread-safe (immutable after construction). The random bits are Philox4x32-10
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) with
// the seed as key and (key, column block, redraw) as counter.
class Initializer {
 public:
  Initializer(InitializerOptions options, int dim);
  // Writes the dim initial values of `key` to row[0, dim).
  void Fill(Key key, float* row) const;
  const InitializerOptions& options() const { return options_; }
  int dim() const { return dim_; }

 private:
  InitializerOptions options_;
  int dim_;
};

}  // namespace mxrec

#endif  // MXREC_INITIALIZER_H_
