// Rows and what belongs to each of them, in slabs that are never shared between
// tables and that are reached from a row index in O(1).
#ifndef MXREC_SRC_ROW_STORE_H_
#define MXREC_SRC_ROW_STORE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "mxrec/address.h"
#include "mxrec/span.h"
#include "mxrec/status.h"

namespace mxrec {

// The way from a row index to its row. A loop over many rows keeps a copy of
// its own, which the compiler can hold in registers.
class RowAccess {
 public:
  int stride() const { return stride_; }

  // The accessors below need row < capacity().
  float* Row(RowIndex row) const {
    return SlabOf(row).data + static_cast<int64_t>(row & slab_mask_) * stride_;
  }
  // How many rows, from that one on, lie one behind the other.
  int64_t RowsInARow(RowIndex row) const {
    return slab_rows() - (row & slab_mask_);
  }
  Key* KeyOf(RowIndex row) const {
    return reinterpret_cast<Key*>(
        SlabOf(row).keys +
        (static_cast<int64_t>(row & slab_mask_) << key_shift_));
  }
  // Only if counts are recorded.
  std::atomic<int64_t>* CountOf(RowIndex row) const {
    return reinterpret_cast<std::atomic<int64_t>*>(KeyOf(row) + 1);
  }
  // Only if times are recorded.
  std::atomic<int64_t>* TimeOf(RowIndex row) const {
    return reinterpret_cast<std::atomic<int64_t>*>(KeyOf(row) + time_place_);
  }
  bool IsVisible(RowIndex row) const {
    return IsSet(Word(kVisible, row)->load(std::memory_order_acquire), row);
  }
  void PrefetchVisible(RowIndex row) const {
    __builtin_prefetch(Word(kVisible, row), 0, 3);
  }
  // True if the row was not visible before. Publishes the row's content.
  bool MakeVisible(RowIndex row) const {
    return !IsSet(
        Word(kVisible, row)->fetch_or(BitOf(row), std::memory_order_acq_rel),
        row);
  }
  // The same for several, ascending for speed.
  void MakeAllVisible(Span<const RowIndex> rows) const {
    uint64_t bits = 0;
    for (int64_t i = 0; i < rows.size(); ++i) {
      bits |= BitOf(rows[i]);
      if (i + 1 < rows.size() && rows[i] >> 6 == rows[i + 1] >> 6) continue;
      Word(kVisible, rows[i])->fetch_or(bits, std::memory_order_acq_rel);
      bits = 0;
    }
  }
  // Of an evicted key; its address is still legal.
  bool IsInLimbo(RowIndex row) const {
    return IsSet(Word(kLimbo, row)->load(std::memory_order_acquire), row);
  }
  // In this order, so that a reader finds the row in one of the two states.
  void MoveToLimbo(RowIndex row) const {
    Word(kLimbo, row)->fetch_or(BitOf(row), std::memory_order_release);
    Word(kVisible, row)->fetch_and(~BitOf(row), std::memory_order_release);
  }
  // How often the row has been used before. Slabs without a reused row have no
  // array of it.
  uint32_t GenerationOf(RowIndex row) const {
    const std::atomic<uint16_t>* const generations =
        SlabOf(row).generations.load(std::memory_order_acquire);
    if (generations == nullptr) return 0;
    return generations[row & slab_mask_].load(std::memory_order_relaxed);
  }

  bool IsInitialized(RowIndex row) const {
    return IsSet(Word(kInitialized, row)->load(std::memory_order_acquire), row);
  }
  // After the row has been written.
  void SetInitialized(RowIndex row) const {
    Word(kInitialized, row)->fetch_or(BitOf(row), std::memory_order_release);
  }
  // True if what is kept elsewhere of the row was of another key until now.
  bool TakeStaleSlots(RowIndex row) const {
    std::atomic<uint64_t>* const word = Word(kStaleSlots, row);
    if (!IsSet(word->load(std::memory_order_relaxed), row)) return false;
    return IsSet(word->fetch_and(~BitOf(row), std::memory_order_relaxed), row);
  }
  bool HasStaleSlots(RowIndex row) const {
    return IsSet(Word(kStaleSlots, row)->load(std::memory_order_relaxed), row);
  }
  // Before the row becomes visible.
  void Freeze(RowIndex row) const {
    Word(kFrozen, row)->fetch_or(BitOf(row), std::memory_order_relaxed);
  }
  bool IsFrozen(RowIndex row) const {
    return IsSet(Word(kFrozen, row)->load(std::memory_order_relaxed), row);
  }

  // Marks are for one holder of the exclusive rows lock. True if it was marked.
  bool TestAndMark(RowIndex row) const {
    std::atomic<uint64_t>* const word = Word(kMark, row);
    const uint64_t marks = word->load(std::memory_order_relaxed);
    word->store(marks | BitOf(row), std::memory_order_relaxed);
    return IsSet(marks, row);
  }
  void ClearMarks(RowIndex row) const {
    Word(kMark, row)->store(0, std::memory_order_relaxed);
  }

  // Whether the 64 rows from `first` on, a multiple of 64, are visible.
  uint64_t VisibleWord(RowIndex first) const {
    return Word(kVisible, first)->load(std::memory_order_acquire);
  }

 protected:
  // Each is an array of its own, a bit for a row, so that what a lookup reads
  // stays in cache and what a table does not use is never resident.
  enum BitKind {
    kVisible,
    kInitialized,  // of rows kept elsewhere
    kFrozen,       // updates skip the row
    kMark,
    kLimbo,
    kStaleSlots,  // kept elsewhere, to be initialized
    kBitKinds
  };
  struct Slab {
    float* data;
    // A key each, followed by its count and time if they are recorded: whoever
    // counts has just compared the key, and all are in one cache line.
    char* keys;
    std::atomic<uint64_t>* bits;  // of each kind, one after the other
    std::atomic<std::atomic<uint16_t>*> generations;  // null: all 0
  };

  Slab& SlabOf(RowIndex row) const { return slabs_[row >> slab_shift_]; }
  std::atomic<uint64_t>* Word(BitKind kind, RowIndex row) const {
    return SlabOf(row).bits + kind * words_per_kind() +
           ((row & slab_mask_) >> 6);
  }
  static uint64_t BitOf(RowIndex row) { return uint64_t{1} << (row & 63); }
  static bool IsSet(uint64_t word, RowIndex row) {
    return (word & BitOf(row)) != 0;
  }
  int64_t slab_rows() const { return int64_t{1} << slab_shift_; }
  int64_t words_per_kind() const { return slab_rows() >> 6; }

  Slab* slabs_ = nullptr;
  int slab_shift_ = 0;
  RowIndex slab_mask_ = 0;
  int key_shift_ = 0;   // log2 of the bytes of a key, its count and time
  int time_place_ = 0;  // of the time, in words from the key
  int stride_ = 0;
};

// Thread safety: Allocate and the accessors of one row may run concurrently;
// row data are guarded by the table's rows lock, or not yet visible. AddSlots
// needs exclusive access to the whole store.
class RowStore : public RowAccess {
 public:
  // `dim` floats per row to begin with; 0 if rows are kept elsewhere.
  RowStore(std::string name, int dim, bool record_counts, bool record_times,
           int64_t max_rows);
  ~RowStore();
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  // Must be called once before use.
  Status Init();

  // Hands out `count` consecutive row indices, not visible, content undefined.
  Status Allocate(uint32_t count, RowIndex* first);

  // Makes the memory of the next `count` rows resident, as far as the system
  // can. The first touch of a huge page may take milliseconds, so that is for
  // a caller whom nobody waits for.
  void TouchAhead(int64_t count);

  // Widens every row by `initial_values.size()` slots of dim floats each.
  Status AddSlots(const std::vector<float>& initial_values);

  void ForgetInitialized() const;

  // Prepares a row that comes from an evicted key for another one: a new
  // generation, and no bit set but that of stale slots. False if the row has
  // been used as often as addresses can tell apart and `may_wrap` is false, or
  // if there is no memory: the row is then of no more use. For the only one
  // that has the row.
  bool Renew(RowIndex row, bool may_wrap);

  bool records_counts() const { return record_counts_; }
  int64_t rows_allocated() const {
    return next_.load(std::memory_order_relaxed);
  }
  int64_t capacity() const {
    return static_cast<int64_t>(slabs_ready_.load(std::memory_order_acquire))
           << slab_shift_;
  }
  int64_t bytes_beside_rows() const;

 private:
  int64_t BitBytes() const {
    return kBitKinds * words_per_kind() *
           static_cast<int64_t>(sizeof(std::atomic<uint64_t>));
  }
  int64_t DataBytes(int stride) const {
    return slab_rows() * stride * static_cast<int64_t>(sizeof(float));
  }
  int64_t MetaBytes() const;
  // Zeroed memory for the keys and bits of a slab, null on failure.
  char* TakeMeta(bool huge_pages);
  // One more slab, unless another thread has already made room.
  Status AddSlab(int64_t rows_needed);

  const std::string name_;
  const int dim_;
  const bool record_counts_;
  const int64_t max_rows_;
  std::atomic<int64_t> generation_bytes_{0};
  int64_t max_slabs_ = 0;
  std::atomic<uint32_t> slabs_ready_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> touched_{0};  // rows whose memory is resident
  std::mutex touch_mutex_;  // held by the one who touches; taken before:
  std::mutex grow_mutex_;   // guards what follows
  struct Area {
    void* start;
    int64_t bytes;
  };
  std::vector<Area> meta_areas_;
  char* meta_rest_ = nullptr;  // of the newest, not taken yet
  int64_t meta_rest_bytes_ = 0;
};

}  // namespace mxrec

#endif  // MXREC_SRC_ROW_STORE_H_
