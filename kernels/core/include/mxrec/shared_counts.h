// One count per key over several tables.
#ifndef MXREC_SHARED_COUNTS_H_
#define MXREC_SHARED_COUNTS_H_

#include <cstdint>
#include <memory>

#include "mxrec/address.h"

namespace mxrec {

// Sums of the counts that tables keep for themselves: a table that evicts a key
// takes back what it has added. Thread-safe.
class SharedCounts {
 public:
  SharedCounts();
  ~SharedCounts();

  // The sum afterwards. `count` may be negative; a key whose sum is 0 takes no
  // memory.
  int64_t Add(Key key, int64_t count);
  int64_t Get(Key key) const;
  int64_t bytes() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace mxrec

#endif  // MXREC_SHARED_COUNTS_H_
