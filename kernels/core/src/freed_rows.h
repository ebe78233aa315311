// Rows of evicted keys, in the order in which they were freed.
#ifndef MXREC_SRC_FREED_ROWS_H_
#define MXREC_SRC_FREED_ROWS_H_

#include <cstdint>
#include <vector>

#include "mxrec/address.h"
#include "step_clock.h"

namespace mxrec {

// First in, first out, so that generations are used up evenly. Rows wait until
// no step can hold them, and are then made ready for other keys.
//
// Thread safety: none.
class FreedRows {
 public:
  int64_t bytes() const {
    return static_cast<int64_t>(rows_.capacity() * sizeof(Freed) +
                                ready_.capacity() * sizeof(RowIndex));
  }
  void Put(RowIndex row, uint64_t epoch) { rows_.push_back({epoch, row}); }
  // Calls renew(row) for at most `most` rows that no step can hold any more,
  // and keeps those for which it is true as ready. Returns how many it was
  // called for.
  template <typename Renew>
  int64_t MakeReady(const StepClock& clock, int64_t most, const Renew& renew) {
    int64_t n = 0;
    for (; n < most && next_ < rows_.size(); ++n, ++next_) {
      if (!clock.IsOver(rows_[next_].epoch)) break;
      if (renew(rows_[next_].row)) ready_.push_back(rows_[next_].row);
    }
    if (next_ == rows_.size()) {
      rows_.clear();
      next_ = 0;
      if (rows_.capacity() > kKeptRows) rows_.shrink_to_fit();
    } else if (next_ > kKeptRows && 2 * next_ > rows_.size()) {
      rows_.erase(rows_.begin(), rows_.begin() + static_cast<int64_t>(next_));
      next_ = 0;
    }
    return n;
  }
  // Of those that still wait; the greatest number if there is none.
  uint64_t OldestEpoch() const {
    return next_ == rows_.size() ? UINT64_MAX : rows_[next_].epoch;
  }
  bool TakeReady(RowIndex* row) {
    if (ready_.empty()) return false;
    *row = ready_.back();
    ready_.pop_back();
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
  std::vector<RowIndex> ready_;
};

}  // namespace mxrec

#endif  // MXREC_SRC_FREED_ROWS_H_
