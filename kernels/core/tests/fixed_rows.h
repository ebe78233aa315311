// Rows and a slot of a table of fixed capacity, kept as TensorFlow keeps them:
// in arrays that steps write without a lock.
#ifndef MXREC_TESTS_FIXED_ROWS_H_
#define MXREC_TESTS_FIXED_ROWS_H_

#include <algorithm>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "mxrec/saving.h"
#include "mxrec/table.h"
#include "tests/table_utils.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {

// From here on the step writes rows; waits while a save begins.
inline std::shared_ptr<RowWrites> BeginWrites(Table* table) {
  std::shared_ptr<RowWrites> writes;
  while (true) {
    EXPECT_OK(table->BeginWrites(&writes));
    if (writes != nullptr) return writes;
    const auto opened = std::make_shared<std::promise<void>>();
    if (table->WaitForWrites([opened] { opened->set_value(); })) {
      opened->get_future().wait();
    }
  }
}

class FixedRows {
 public:
  explicit FixedRows(Table* table)
      : table_(table),
        dim_(table->options().dim),
        rows_(table->options().fixed_capacity * dim_),
        slots_(rows_.size()) {}

  // What a lookup does before its rows are read, and written if it trains.
  std::vector<int64_t> Offsets(const std::vector<Address>& addresses,
                               RowWrites* writes) {
    std::vector<int64_t> offsets(addresses.size());
    bool all_initialized = false;
    EXPECT_OK(table_->Offsets(addresses, offsets, &all_initialized));
    if (writes != nullptr) EXPECT_OK(table_->KeepRows(offsets, writes));
    if (!all_initialized) {
      std::lock_guard<std::mutex> lock(mutex_);
      EXPECT_OK(table_->InitializeRows(
          offsets, [this](int64_t offset, const float* initial) {
            std::copy_n(initial, dim_, rows_.data() + offset * dim_);
          }));
    }
    return offsets;
  }
  // Adds to the rows and to their slots.
  void Add(const std::vector<int64_t>& offsets, float value) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      EXPECT_OK(table_->ResetSlots(offsets, [this](int64_t offset) {
        std::fill_n(slots_.data() + offset * dim_, dim_, 0.0f);
      }));
    }
    for (const int64_t offset : offsets) {
      for (int64_t i = offset * dim_; offset >= 0 && i < (offset + 1) * dim_;
           ++i) {
        rows_[i] += value;
        slots_[i] += value;
      }
    }
  }
  // Of a save that lets steps go on.
  void ShareIn(SaveRequest* request) {
    request->slots = SlotLayout{"Adagrad", {0.0f}};
    request->share_rows = [](int64_t*) { return true; };
    request->read_rows = [this](Span<const RowIndex> offsets, float* out) {
      for (const RowIndex offset : offsets) {
        out = std::copy_n(rows_.data() + int64_t{offset} * dim_, dim_, out);
        out = std::copy_n(slots_.data() + int64_t{offset} * dim_, dim_, out);
      }
    };
  }
  const float* Row(int64_t offset) const {
    return rows_.data() + offset * dim_;
  }

 private:
  Table* const table_;
  const int64_t dim_;
  std::mutex mutex_;  // of what writes rows for the table
  std::vector<float> rows_;
  std::vector<float> slots_;
};

}  // namespace testing
}  // namespace mxrec

#endif  // MXREC_TESTS_FIXED_ROWS_H_
