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
#include "mxrec/status.h"

namespace mxrec {

// Thread safety: Allocate and the accessors of one row may run concurrently;
// row data are guarded by the table's rows lock, or not yet visible. AddSlots
// needs exclusive access to the whole store.
class RowStore {
 public:
  // `dim` floats per row to begin with; 0 if rows are kept elsewhere.
  RowStore(std::string name, int dim, bool record_counts, int64_t max_rows);
  ~RowStore();
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  // Must be called once before use.
  Status Init();

  // Hands out `count` consecutive row indices, not visible, content undefined.
  Status Allocate(uint32_t count, RowIndex* first);

  // Widens every row by `initial_values.size()` slots of dim floats each.
  Status AddSlots(const std::vector<float>& initial_values);

  int stride() const { return stride_; }
  bool records_counts() const { return record_counts_; }
  int64_t rows_allocated() const {
    return next_.load(std::memory_order_relaxed);
  }
  int64_t capacity() const {
    return static_cast<int64_t>(slabs_ready_.load(std::memory_order_acquire))
           << slab_shift_;
  }
  int64_t bytes_beside_rows() const;

  // The accessors below need row < capacity().
  float* Row(RowIndex row) const {
    return SlabOf(row).data + static_cast<int64_t>(row & slab_mask_) * stride_;
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
  bool IsVisible(RowIndex row) const {
    return (Bits(row).visible.load(std::memory_order_acquire) >> (row & 63)) &
           1;
  }
  // True if the row was not visible before. Publishes the row's content.
  bool MakeVisible(RowIndex row) const {
    const uint64_t bit = uint64_t{1} << (row & 63);
    return (Bits(row).visible.fetch_or(bit, std::memory_order_acq_rel) & bit) ==
           0;
  }
  // No operation reuses a row yet, so every row is of the first generation.
  uint32_t GenerationOf(RowIndex /*row*/) const { return 0; }

  bool IsInitialized(RowIndex row) const {
    return (Bits(row).initialized.load(std::memory_order_acquire) >>
            (row & 63)) &
           1;
  }
  // After the row has been written.
  void SetInitialized(RowIndex row) const {
    Bits(row).initialized.fetch_or(uint64_t{1} << (row & 63),
                                   std::memory_order_release);
  }
  void ForgetInitialized() const;

  // Before the row becomes visible.
  void Freeze(RowIndex row) const {
    Bits(row).frozen.fetch_or(uint64_t{1} << (row & 63),
                              std::memory_order_relaxed);
  }
  bool IsFrozen(RowIndex row) const {
    return (Bits(row).frozen.load(std::memory_order_relaxed) >> (row & 63)) & 1;
  }

  // Marks are for one holder of the exclusive rows lock. True if it was marked.
  bool TestAndMark(RowIndex row) const {
    const uint64_t bit = uint64_t{1} << (row & 63);
    uint64_t& word = Bits(row).mark;
    const bool marked = (word & bit) != 0;
    word |= bit;
    return marked;
  }
  void ClearMarks(RowIndex row) const { Bits(row).mark = 0; }

 private:
  struct RowBits {  // of 64 rows
    std::atomic<uint64_t> visible;
    std::atomic<uint64_t> initialized;  // of rows kept elsewhere
    std::atomic<uint64_t> frozen;       // updates skip the row
    uint64_t mark;
  };
  struct Slab {
    float* data;
    // A key each, followed by its count if counts are recorded: whoever counts
    // has just compared the key, and both are in one cache line.
    char* keys;
    RowBits* bits;
  };

  Slab& SlabOf(RowIndex row) const { return slabs_[row >> slab_shift_]; }
  RowBits& Bits(RowIndex row) const {
    return SlabOf(row).bits[(row & slab_mask_) >> 6];
  }
  int64_t slab_rows() const { return int64_t{1} << slab_shift_; }
  int64_t DataBytes(int stride) const {
    return slab_rows() * stride * static_cast<int64_t>(sizeof(float));
  }
  int64_t MetaBytes() const;
  // One more slab, unless another thread has already made room.
  Status AddSlab(int64_t rows_needed);

  const std::string name_;
  const int dim_;
  const bool record_counts_;
  const int key_shift_;  // log2 of the bytes of a key and its count
  const int64_t max_rows_;
  int slab_shift_ = 0;
  RowIndex slab_mask_ = 0;
  int64_t max_slabs_ = 0;
  int stride_;
  Slab* slabs_ = nullptr;
  std::atomic<uint32_t> slabs_ready_{0};
  std::atomic<int64_t> next_{0};
  std::mutex grow_mutex_;
};

}  // namespace mxrec

#endif  // MXREC_SRC_ROW_STORE_H_
