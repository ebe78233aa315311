// Which rows of a table have changed since its last save, for deltas.
#ifndef MXREC_SRC_CHANGE_TRACKER_H_
#define MXREC_SRC_CHANGE_TRACKER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/address.h"
#include "mxrec/checkpoint.h"

namespace mxrec {

// Values by row, in chunks that come into being when they are written.
//
// Thread safety: all methods may run concurrently but Clear, which needs that
// no other does.
template <typename T>
class RowChunks {
 public:
  static constexpr int kShift = 16;  // of rows in a chunk

  explicit RowChunks(int rows_per_value_shift)
      : shift_(rows_per_value_shift),
        chunks_(new std::atomic<std::atomic<T>*>[kChunks]()) {}
  ~RowChunks() {
    for (int64_t c = 0; c < kChunks; ++c) delete[] chunks_[c].load();
  }
  RowChunks(const RowChunks&) = delete;
  RowChunks& operator=(const RowChunks&) = delete;

  // The value of a row, made as 0 if it is not there.
  std::atomic<T>& At(RowIndex row) {
    std::atomic<std::atomic<T>*>& slot = chunks_[row >> kShift];
    std::atomic<T>* chunk = slot.load(std::memory_order_acquire);
    if (chunk == nullptr) {
      auto* const fresh = new std::atomic<T>[ValuesPerChunk()]();
      if (slot.compare_exchange_strong(chunk, fresh,
                                       std::memory_order_acq_rel)) {
        chunk = fresh;
      } else {
        delete[] fresh;
      }
    }
    return chunk[(row & (kChunkRows - 1)) >> shift_];
  }
  T Get(RowIndex row) const {
    const std::atomic<T>* const chunk =
        chunks_[row >> kShift].load(std::memory_order_acquire);
    if (chunk == nullptr) return 0;
    return chunk[(row & (kChunkRows - 1)) >> shift_].load(
        std::memory_order_relaxed);
  }
  void Clear() {
    for (int64_t c = 0; c < kChunks; ++c) delete[] chunks_[c].exchange(nullptr);
  }

 private:
  static constexpr RowIndex kChunkRows = RowIndex{1} << kShift;
  static constexpr int64_t kChunks = int64_t{1} << (kRowBits - kShift);
  int64_t ValuesPerChunk() const { return int64_t{kChunkRows} >> shift_; }

  const int shift_;
  const std::unique_ptr<std::atomic<std::atomic<T>*>[]> chunks_;
};

// The changes of a save that is not known to be complete are kept until it is:
// if it never is, they belong to the next one.
//
// Thread safety: Changed, Met and Evicted may run concurrently with each other;
// the others need that the table stands still.
class ChangeTracker {
 public:
  // `counts`: whether to count how often a key is met.
  explicit ChangeTracker(bool counts)
      : now_(6),
        saving_(6),
        in_files_(6),
        in_new_file_(6),
        met_(counts ? new RowChunks<uint32_t>(0) : nullptr),
        met_saving_(counts ? new RowChunks<uint32_t>(0) : nullptr) {}

  void Changed(RowIndex row) {
    std::atomic<uint64_t>& word = now_.At(row);
    const uint64_t bit = uint64_t{1} << (row & 63);
    // Most rows of a batch are marked already: no need to own the line.
    if ((word.load(std::memory_order_relaxed) & bit) == 0) {
      word.fetch_or(bit, std::memory_order_relaxed);
    }
  }
  bool counts() const { return met_ != nullptr; }
  void Met(RowIndex row, int64_t times) {
    if (met_ == nullptr) return;
    met_->At(row).fetch_add(static_cast<uint32_t>(times),
                            std::memory_order_relaxed);
  }
  // The row may become another key's.
  void Evicted(RowIndex row) {
    if (met_ == nullptr) return;
    met_->At(row).store(0, std::memory_order_relaxed);
    if (met_saving_->Get(row) != 0) {
      met_saving_->At(row).store(0, std::memory_order_relaxed);
    }
    const uint64_t others = ~(uint64_t{1} << (row & 63));
    for (RowChunks<uint64_t>* const files : {&in_files_, &in_new_file_}) {
      if (files->Get(row) != 0) {
        files->At(row).fetch_and(others, std::memory_order_relaxed);
      }
    }
  }

  // All changes up to now become those of a save, which Saving tells.
  void BeginSave(int64_t rows, const std::vector<Key>& evicted) {
    for (int64_t first = 0; first < rows; first += 64) {
      const RowIndex row = static_cast<RowIndex>(first);
      const uint64_t word = now_.Get(row);
      if (word != 0) {
        saving_.At(row).fetch_or(word, std::memory_order_relaxed);
      }
    }
    now_.Clear();
    in_new_file_.Clear();
    evicted_saving_.insert(evicted_saving_.end(), evicted.begin(),
                           evicted.end());
  }
  // The rows of a save among 64 from `first` on, as bits. Rows met fewer times
  // than `least_count` are left to a later save.
  uint64_t Saving(RowIndex first, int64_t least_count) {
    uint64_t word = saving_.Get(first);
    if (word == 0 || met_ == nullptr || least_count <= 1) return word;
    uint64_t left = 0;
    for (uint64_t rest = word; rest != 0; rest &= rest - 1) {
      const int bit = __builtin_ctzll(rest);
      const RowIndex row = first + static_cast<RowIndex>(bit);
      const int64_t met = int64_t{met_->Get(row)} + met_saving_->Get(row);
      if (met < least_count) left |= uint64_t{1} << bit;
    }
    if (left != 0) now_.At(first).fetch_or(left, std::memory_order_relaxed);
    for (uint64_t rest = word & ~left; rest != 0; rest &= rest - 1) {
      const RowIndex row = first + static_cast<RowIndex>(__builtin_ctzll(rest));
      const uint32_t met = met_->At(row).exchange(0, std::memory_order_relaxed);
      met_saving_->At(row).fetch_add(met, std::memory_order_relaxed);
    }
    return word & ~left;
  }
  // What a save has of 64 rows from `first` on.
  void Saved(RowIndex first, uint64_t rows) {
    if (met_ == nullptr || rows == 0) return;
    in_new_file_.At(first).fetch_or(rows, std::memory_order_relaxed);
  }
  // Of 64 visible rows those whose keys are in that save or in files that it
  // builds on: all, but for what was left to a later one each time.
  uint64_t InFiles(RowIndex first, uint64_t visible) const {
    if (met_ == nullptr) return visible;
    return visible & (in_files_.Get(first) | in_new_file_.Get(first));
  }
  const std::vector<Key>& EvictedSaving() const { return evicted_saving_; }
  // `rows` of the table.
  void SaveIsComplete(int64_t rows) {
    for (int64_t first = 0; met_ != nullptr && first < rows; first += 64) {
      const RowIndex row = static_cast<RowIndex>(first);
      const uint64_t word = in_new_file_.Get(row);
      if (word != 0) {
        in_files_.At(row).fetch_or(word, std::memory_order_relaxed);
      }
    }
    in_new_file_.Clear();
    saving_.Clear();
    if (met_saving_ != nullptr) met_saving_->Clear();
    evicted_saving_.clear();
  }

 private:
  RowChunks<uint64_t> now_;     // 64 rows a word
  RowChunks<uint64_t> saving_;  // of saves not known to be complete
  // Of rows that may be left out: whose keys are in the files of the last
  // complete save, and in the file of a save that is not known to be complete.
  RowChunks<uint64_t> in_files_;
  RowChunks<uint64_t> in_new_file_;
  const std::unique_ptr<RowChunks<uint32_t>> met_;
  // What keys were met that a save has, until it is known to be complete.
  const std::unique_ptr<RowChunks<uint32_t>> met_saving_;
  std::vector<Key> evicted_saving_;
};

// The files of a checkpoint that a delta can build on.
struct SavedChain {
  std::string prefix;
  std::vector<SavedFile> files;
  // Of the rows in them: those of a delta must be alike.
  std::string optimizer;
  std::vector<float> slot_initials;
};

}  // namespace mxrec

#endif  // MXREC_SRC_CHANGE_TRACKER_H_
