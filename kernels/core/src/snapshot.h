// The state of a table at one instant, on its way to a file while the table
// changes.
#ifndef MXREC_SRC_SNAPSHOT_H_
#define MXREC_SRC_SNAPSHOT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "mxrec/checkpoint.h"
#include "mxrec/span.h"
#include "row_store.h"

namespace mxrec {

// Rows that are not written yet are pending. Whoever is about to change a
// pending row copies it here first; the saver copies the others in turn.
//
// Thread safety: of one row, only one thread at a time may call
// KeepBeforeChange; a row may be changed only by who has seen that it is not
// pending.
class Snapshot {
 public:
  using ReadRows = std::function<void(Span<const RowIndex>, float*)>;

  // `stride` floats per row, those at the beginning of it; 0: they are
  // elsewhere, from where `read_rows` copies them, `stride_elsewhere` each.
  Snapshot(TableFileWriter* writer, int64_t rows, int stride, bool counts,
           bool times, ReadRows read_rows, int64_t stride_elsewhere)
      : writer_(writer),
        rows_(rows),
        stride_(stride),
        counts_(counts),
        times_(times),
        read_rows_(std::move(read_rows)),
        stride_elsewhere_(stride_elsewhere),
        pending_(new std::atomic<uint64_t>[static_cast<size_t>((rows + 63) /
                                                               64)]()) {}

  int64_t rows() const { return rows_; }
  // Whether a change of counts and times alone needs Keep.
  bool has_counts_or_times() const { return counts_ || times_; }
  std::atomic<uint64_t>* words() { return pending_.get(); }
  bool IsPending(RowIndex row) const {
    return row < rows_ &&
           (pending_[row >> 6].load(std::memory_order_acquire) >> (row & 63) &
            1) != 0;
  }
  // After the row has been copied.
  void ClearPending(RowIndex row) {
    pending_[row >> 6].fetch_and(~(uint64_t{1} << (row & 63)),
                                 std::memory_order_release);
  }

  // Appends a row to `buffer`, but for what is elsewhere.
  void Append(const RowAccess& access, RowIndex row, BlockBuffer* buffer) {
    const int64_t i = buffer->size++;
    int column = 0;
    buffer->column<int64_t>(column++)[i] = *access.KeyOf(row);
    if (counts_) {
      buffer->column<int64_t>(column++)[i] =
          access.CountOf(row)->load(std::memory_order_relaxed);
    }
    if (times_) {
      buffer->column<int64_t>(column++)[i] =
          access.TimeOf(row)->load(std::memory_order_relaxed);
    }
    if (stride_ > 0) {
      std::memcpy(buffer->column<float>(column) + i * stride_, access.Row(row),
                  static_cast<size_t>(stride_) * sizeof(float));
    }
  }

  // Copies a row that is about to change, if it is pending. May wait for the
  // writer, which waits for no lock of the table.
  void KeepBeforeChange(const RowAccess& access, RowIndex row) {
    if (!IsPending(row)) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (kept_ == nullptr) kept_ = writer_->Take();
      // The writer has failed: the state is lost anyway.
      if (kept_ == nullptr) {
        ClearPending(row);
        return;
      }
      Append(access, row, kept_.get());
      if (stride_ == 0) {
        read_rows_(
            Span<const RowIndex>(&row, 1),
            RowsElsewhere(kept_.get()) + (kept_->size - 1) * stride_elsewhere_);
      }
      if (kept_->size == kept_->capacity()) writer_->Submit(std::move(kept_));
    }
    ClearPending(row);
  }
  // Copies those of the rows that are pending and are about to change
  // elsewhere, for the holder of the exclusive rows lock. False if buffers are
  // full: it is to be called again when the writer has one.
  bool TryKeep(const RowAccess& access, Span<const int64_t> offsets) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<RowIndex> added;  // to the buffer, but for what is elsewhere
    const auto complete = [&] {
      if (added.empty()) return;
      read_rows_(added, RowsElsewhere(kept_.get()) +
                            (kept_->size - static_cast<int64_t>(added.size())) *
                                stride_elsewhere_);
      added.clear();
    };
    for (const int64_t offset : offsets) {
      const RowIndex row = static_cast<RowIndex>(offset);
      if (offset < 0 || !IsPending(row)) continue;
      if (kept_ == nullptr) kept_ = writer_->TryTake();
      if (kept_ == nullptr && writer_->status().ok()) return false;
      ClearPending(row);
      // The writer has failed: the state is lost anyway.
      if (kept_ == nullptr) continue;
      Append(access, row, kept_.get());
      added.push_back(row);
      if (kept_->size == kept_->capacity()) {
        complete();
        writer_->Submit(std::move(kept_));
      }
    }
    complete();
    return true;
  }
  // Copies what is elsewhere of the rows of a buffer, from its first on.
  void ReadElsewhere(const std::vector<RowIndex>& rows, BlockBuffer* buffer) {
    if (!rows.empty()) read_rows_(rows, RowsElsewhere(buffer));
  }
  TableFileWriter* writer() const { return writer_; }
  void SubmitKept() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (kept_ != nullptr) writer_->Submit(std::move(kept_));
  }

 private:
  static float* RowsElsewhere(BlockBuffer* buffer) {
    return buffer->column<float>(static_cast<int>(buffer->columns().size()) -
                                 1);
  }

  TableFileWriter* const writer_;
  const int64_t rows_;
  const int stride_;
  const bool counts_;
  const bool times_;
  const ReadRows read_rows_;
  const int64_t stride_elsewhere_;
  const std::unique_ptr<std::atomic<uint64_t>[]> pending_;
  std::mutex mutex_;  // guards kept_
  std::unique_ptr<BlockBuffer> kept_;
};

}  // namespace mxrec

#endif  // MXREC_SRC_SNAPSHOT_H_
