// Rows of evicted keys, in the order in which they may be used again.
#ifndef MXREC_SRC_FREED_ROWS_H_
#define MXREC_SRC_FREED_ROWS_H_

#include <cstdint>
#include <vector>

#include "mxrec/address.h"
#include "step_clock.h"

namespace mxrec {

// First in, first out, so that generations are used up evenly.
//
// Thread safety: none.
class FreedRows {
 public:
  int64_t size() const { return static_cast<int64_t>(rows_.size() - next_); }
  int64_t bytes() const {
    return static_cast<int64_t>(rows_.capacity() * sizeof(Freed));
  }
  void Put(RowIndex row, uint64_t epoch) { rows_.push_back({epoch, row}); }
  // False if there is none that no step can hold any more.
  bool Take(const StepClock& clock, RowIndex* row) {
    if (next_ == rows_.size() || !clock.IsOver(rows_[next_].epoch)) {
      return false;
    }
    *row = rows_[next_++].row;
    if (next_ == rows_.size()) {
      rows_.clear();
      next_ = 0;
      if (rows_.capacity() > kKeptRows) rows_.shrink_to_fit();
    } else if (next_ > kKeptRows && 2 * next_ > rows_.size()) {
      rows_.erase(rows_.begin(), rows_.begin() + static_cast<int64_t>(next_));
      next_ = 0;
    }
    return true;
  }

 private:
  static constexpr size_t kKeptRows = 1024;
  struct Freed {
    uint64_t epoch;
    RowIndex row;
  };
  std::vector<Freed> rows_;
  size_t next_ = 0;
};

}  // namespace mxrec

#endif  // MXREC_SRC_FREED_ROWS_H_
