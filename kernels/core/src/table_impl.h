// The table behind the interface of mxrec/table.h. Its methods are divided by
// subject: keys and addresses (table_keys.cc), reading rows (table_read.cc),
// updates (table_update.cc), rows kept elsewhere (table_fixed.cc), and the
// table as a whole (table.cc).
#ifndef MXREC_SRC_TABLE_IMPL_H_
#define MXREC_SRC_TABLE_IMPL_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "key_sorter.h"
#include "mxrec/table.h"
#include "row_store.h"
#include "rw_lock.h"
#include "shard_index.h"

namespace mxrec {

using SharedLock = std::shared_lock<RwLock>;
using UniqueLock = std::unique_lock<RwLock>;

// Bits of an address that is read ahead of its turn, and what checking one
// costs in cycles, for the thread pool.
constexpr int64_t kVisibleAhead = 16;
constexpr int64_t kValidateCost = 15;

class TableImpl final : public Table {
 public:
  explicit TableImpl(TableOptions options);

  Status Init() { return rows_->Init(); }

  const TableOptions& options() const override { return options_; }

  Status FindOrInsert(Span<const Key> keys, Span<const Address> hints,
                      Span<const int32_t> counts, Span<Address> addresses,
                      const Parallel& parallel) override;
  Status Find(Span<const Key> keys, Span<const Address> hints,
              Span<Address> addresses, const Parallel& parallel) const override;
  Status LookAhead(Span<const Key> keys, bool reserve, Span<Address> hints,
                   const Parallel& parallel) override;
  Status Gather(Span<const Address> addresses, const float* default_row,
                float* out, const Parallel& parallel) const override;
  Status ApplySgd(Span<const Address> addresses, const float* gradients,
                  const SgdParams& params, const Parallel& parallel) override;
  Status ApplyLazyAdam(Span<const Address> addresses, const float* gradients,
                       const LazyAdamParams& params,
                       const Parallel& parallel) override;
  Status ApplyAdam(Span<const Address> addresses, const float* gradients,
                   const AdamParams& params, const Parallel& parallel) override;
  Status ApplyAdagrad(Span<const Address> addresses, const float* gradients,
                      const AdagradParams& params,
                      const Parallel& parallel) override;
  Status ApplyFtrl(Span<const Address> addresses, const float* gradients,
                   const FtrlParams& params, const Parallel& parallel) override;
  Status Import(Span<const Key> keys, const float* rows,
                const Parallel& parallel) override;
  Status Export(
      int64_t chunk_rows,
      const std::function<Status(const ExportChunk&)>& visit) const override;

  Status Offsets(Span<const Address> addresses, Span<int64_t> offsets,
                 bool* all_initialized) const override;
  Status InitializeRows(
      Span<const int64_t> offsets,
      const std::function<void(int64_t, const float*)>& write) override;
  Status TrainedPositions(Span<const int64_t> offsets,
                          std::vector<int64_t>* positions) const override;
  void ForgetInitializedRows() override;

  int64_t size() const override {
    return size_.load(std::memory_order_relaxed);
  }
  int64_t capacity() const override {
    SharedLock layout(layout_lock_);
    if (rows_ == nullptr) return 0;
    return is_fixed() ? options_.fixed_capacity : rows_->capacity();
  }
  int stride() const override {
    SharedLock layout(layout_lock_);
    return rows_ == nullptr ? options_.dim : rows_->stride();
  }
  int64_t update_count() const override {
    return update_count_.load(std::memory_order_relaxed);
  }
  MemoryUsage memory() const override;
  void Release() override;
  // Without a lock: the registry asks while a release may be waiting.
  bool released() const override {
    return released_.load(std::memory_order_acquire);
  }

 private:
  // Aligned, so that two shards' mutexes never share a cache line.
  struct alignas(64) Shard {
    explicit Shard(int shard) : index(shard) {}
    std::mutex mutex;  // guards all of the shard
    ShardIndex index;
    RowIndex next_row = 0;  // of the run it is filling
    uint32_t rows_left = 0;
    int64_t reserved = 0;  // keys of the index whose rows are not visible
  };

  bool is_fixed() const { return options_.fixed_capacity > 0; }
  Status WrongKind(const char* what) const {
    return Status::FailedPrecondition(
        "table '" + options_.name +
        (is_fixed() ? "' is of fixed capacity and keeps no rows: "
                    : "' grows and keeps its rows itself: ") +
        what + " does not apply");
  }

  enum class Missing { kLeave, kReserve, kInsert };

  Status ReleasedError() const {
    return Status::FailedPrecondition("table '" + options_.name +
                                      "' was released by "
                                      "terminate_config_initializer");
  }

  Status CheckSpans(Span<const Key> keys, Span<const Address> hints,
                    Span<const int32_t> counts, Span<Address> addresses) const;
  bool HintHolds(Address hint, Key key, const RowAccess& rows,
                 int64_t capacity) const;
  // Uses the hints of [begin, end) that hold and writes the other positions to
  // `left`. Returns how many.
  int64_t UseHints(Span<const Key> keys, Span<const Address> hints,
                   bool add_counts, Span<const int32_t> counts, int64_t begin,
                   int64_t end, Span<Address> addresses, uint32_t* left) const;
  Address AddressOf(RowIndex row) const {
    return MakeAddress(nonce_, rows_->GenerationOf(row), row);
  }
  void AddCount(RowIndex row, Span<const int32_t> counts,
                int64_t position) const;
  Status AllocateRow(Shard* shard, RowIndex* row);
  Status InsertKey(Shard* shard, uint64_t hash, Key key, RowIndex* row);
  Status ProcessShards(const KeySorter& sorted, int begin, int end,
                       Missing missing, Span<const int32_t> counts,
                       Span<Address> addresses);
  Status ProcessLocked(Span<const KeyAt> keys, Missing missing,
                       Span<const int32_t> counts, Span<Address> addresses);
  // A key on its way through the pipeline of ProcessLocked.
  struct InFlight {
    uint64_t hash;
    Shard* shard;
    int64_t likely_row;
  };
  bool ProcessKey(const InFlight& ahead, const KeyAt& key,
                  const RowAccess& rows, Missing missing,
                  Span<const int32_t> counts, Span<Address> addresses,
                  int64_t* became_visible, Status* status);
  Status Process(Span<const Key> keys, Span<const Address> hints,
                 Missing missing, Span<const int32_t> counts,
                 Span<Address> addresses, const Parallel& parallel);

  // What IsLegal reads.
  static void PrefetchVisible(Address address, const RowAccess& rows,
                              int64_t capacity) {
    if (RowOf(address) < capacity) rows.PrefetchVisible(RowOf(address));
  }
  // `rows` and `capacity` are what the loop keeps of the table.
  bool IsLegal(Address address, const RowAccess& rows, int64_t capacity) const {
    const RowIndex row = RowOf(address);
    return NonceOf(address) == nonce_ && row < capacity &&
           rows.IsVisible(row) &&
           GenerationOf(address) == rows.GenerationOf(row);
  }
  Status AddressError(Address address, int64_t position) const;
  Status ResolveForUpdate(Span<const Address> addresses,
                          const Parallel& parallel, float** rows,
                          bool* repeated) const;
  // What an update does to all rows, under the same lock.
  struct WholeTable {
    std::function<void()> before;
    std::function<void()> after;
  };
  Status Apply(Span<const Address> addresses, const float* gradients,
               const SlotLayout& slots, const Parallel& parallel,
               int64_t cost_per_row,
               const std::function<void(float* const*, const float*, int64_t,
                                        int64_t)>& update,
               const WholeTable& whole = {});
  // Calls update(rows, n) for the visible rows that updates may change, in
  // blocks. For the holder of the exclusive rows lock.
  void ForTrainedRows(
      const Parallel& parallel, int64_t cost_per_row,
      const std::function<void(float* const*, int64_t)>& update) const;
  Status EnsureSlots(const SlotLayout& slots);

  const TableOptions options_;
  const Initializer initializer_;
  const std::unordered_set<Key> padding_keys_;
  const uint32_t nonce_;

  // Order of acquisition: layout, inserts, rows, shards from first to last.
  mutable RwLock layout_lock_;      // exclusive: rows_ replaced, or slots added
  mutable RwLock inserts_lock_;     // exclusive: no key appears or is counted
  mutable RwLock rows_lock_;        // exclusive: row content and marks change
  std::unique_ptr<RowStore> rows_;  // null once released
  SlotLayout slots_;                // guarded by layout_lock_
  std::vector<std::unique_ptr<Shard>> shards_;
  std::atomic<bool> released_{false};
  std::atomic<int64_t> size_{0};
  std::atomic<int64_t> update_count_{0};
  int64_t slot_steps_ = 0;  // guarded by rows_lock_
};

}  // namespace mxrec

#endif  // MXREC_SRC_TABLE_IMPL_H_
