// The table behind the interface of mxrec/table.h. Its methods are divided by
// subject: keys and addresses (table_keys.cc), reading rows (table_read.cc),
// updates (table_update.cc), rows kept elsewhere (table_fixed.cc), admission
// (table_admission.cc), eviction (table_evict.cc), files (table_snapshot.cc,
// table_restore.cc, table_filler.cc), and the table as a whole (table.cc).
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
#include <utility>
#include <vector>

#include "candidates.h"
#include "change_tracker.h"
#include "freed_rows.h"
#include "key_sorter.h"
#include "mxrec/checkpoint.h"
#include "mxrec/saving.h"
#include "mxrec/shared_counts.h"
#include "mxrec/table.h"
#include "row_store.h"
#include "rw_lock.h"
#include "shard_index.h"
#include "snapshot.h"
#include "step_clock.h"
#include "write_gate.h"

namespace mxrec {

using SharedLock = std::shared_lock<RwLock>;
using UniqueLock = std::unique_lock<RwLock>;

// Bits of an address that is read ahead of its turn, and what checking one
// costs in cycles, for the thread pool.
constexpr int64_t kVisibleAhead = 16;
constexpr int64_t kValidateCost = 15;

// Of a table's addresses; different for every table of the process and, but for
// a chance of one in a million, from those of an earlier process.
uint32_t NewNonce();

class TableImpl final : public Table {
 public:
  explicit TableImpl(TableOptions options);

  Status Init() { return rows_->Init(); }

  const TableOptions& options() const override { return options_; }

  Status FindOrAdmit(Span<const Key> keys, Span<const Address> hints,
                     const Occurrences& seen, Span<Address> addresses,
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
  Status Clear() override;
  Status Export(
      int64_t chunk_rows,
      const std::function<Status(const ExportChunk&)>& visit) const override;

  Status Offsets(Span<const Address> addresses, Span<int64_t> offsets,
                 bool* all_initialized) const override;
  Status InitializeRows(
      Span<const int64_t> offsets,
      const std::function<void(int64_t, const float*)>& write) override;
  Status BeginWrites(std::shared_ptr<RowWrites>* writes) override;
  bool WaitForWrites(std::function<void()> may_begin) override {
    return writers_->WaitUntilOpen(std::move(may_begin));
  }
  Status KeepRows(Span<const int64_t> offsets, RowWrites* writes) override;
  Status TrainedPositions(Span<const int64_t> offsets,
                          std::vector<int64_t>* positions) const override;
  void ForgetInitializedRows() override;
  Status HasStaleSlots(Span<const int64_t> offsets, bool* any) const override;
  Status ResetSlots(Span<const int64_t> offsets,
                    const std::function<void(int64_t)>& write) override;

  Status BeginStep(std::shared_ptr<void>* step) override;
  Status Evict(int64_t threshold, Evicted* evicted) override;
  Status SetAccessThreshold(int64_t threshold, int64_t* in_force) override;
  AdmissionState admission_state() const override;
  Status SetAdmissionState(const AdmissionState& state) override;
  Status ExportCandidates(
      int64_t chunk_size,
      const std::function<Status(const CandidateChunk&)>& visit) const override;
  Status RestoreCandidates(const CandidateChunk& candidates) override;
  void LogErasedKeys(bool enabled) override;
  void TakeErasedKeys(std::vector<Key>* keys) override;
  EvictionStats eviction_stats() const override;

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
  Status Save(const SaveRequest& request, SavedTable* saved) override;
  void CommitSave(const std::string& prefix) override;
  Status Restore(const RestoreRequest& request, RestoreReport* report) override;
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
    FreedRows freed;       // of evicted keys of the shard, if the table grows
    Candidates candidates;
    bool candidates_pending = false;  // of a snapshot
    // Candidates that have changed or gone since a save of changes, and since
    // the one before if that is not known to be complete.
    std::unordered_set<Key> changed;
    std::unordered_set<Key> changed_saving;
  };

  // What a training lookup tells of its keys, as the table uses it.
  struct Seen {
    Span<const int32_t> counts;
    int64_t coefficient = 1;
    bool trains = false;
    bool adds_counts = false;
    bool adds_times = false;
    Span<const int64_t> times;  // one per key, or empty: then `time`
    int64_t time = 0;

    // What position adds to its key's count.
    int64_t CountAt(int64_t position) const {
      if (!adds_counts) return 0;
      return coefficient * (counts.empty() ? 1 : counts[position]);
    }
    int64_t TimeAt(int64_t position) const {
      return times.empty() ? time : times[position];
    }
  };

  // By what a bounded table ranks its keys: the least go first.
  struct Rank {
    int64_t first;
    int64_t second;
    bool operator<(const Rank& other) const {
      return first != other.first ? first < other.first : second < other.second;
    }
    bool operator==(const Rank& other) const {
      return first == other.first && second == other.second;
    }
  };
  // A pass over all rows that makes room, slice by slice.
  struct Sweep {
    bool is_on = false;
    int64_t next_row = 0;
    int64_t left = 0;  // keys to evict
    Rank cutoff = {0, 0};
    int64_t ties = 0;  // keys of rank `cutoff` to evict
  };
  struct Victim {
    Key key;
    RowIndex row;
    uint64_t hash;
  };

  bool is_fixed() const { return options_.fixed_capacity > 0; }
  Status WrongKind(const char* what) const {
    return Status::FailedPrecondition(
        "table '" + options_.name +
        (is_fixed() ? "' is of fixed capacity and keeps no rows: "
                    : "' grows and keeps its rows itself: ") +
        what + " does not apply");
  }

  enum class Missing { kLeave, kReserve, kInsert, kAdmit };

  Status ReleasedError() const {
    return Status::FailedPrecondition("table '" + options_.name +
                                      "' was released by "
                                      "terminate_config_initializer");
  }

  Status CheckSpans(Span<const Key> keys, Span<const Address> hints,
                    Span<const int32_t> counts, Span<Address> addresses) const;
  Status CheckOccurrences(const Occurrences& seen, int64_t keys) const;
  // Moves the table's newest time or its clock on.
  Seen Observe(const Occurrences& seen);
  bool HintHolds(Address hint, Key key, const RowAccess& rows,
                 int64_t capacity) const;
  // Uses the hints of [begin, end) that hold and writes the other positions to
  // `left`. Returns how many.
  int64_t UseHints(Span<const Key> keys, Span<const Address> hints,
                   const Seen& seen, int64_t begin, int64_t end,
                   Span<Address> addresses, uint32_t* left) const;
  Address AddressOf(RowIndex row) const {
    return MakeAddress(nonce_, rows_->GenerationOf(row), row);
  }
  // Adds an occurrence to the count and the time of a row.
  void Touch(RowIndex row, const RowAccess& rows, const Seen& seen,
             int64_t position) const;
  Status AllocateRow(Shard* shard, RowIndex* row);
  void MakeReadyForMore(int64_t rows_before);
  bool TakeFreedRow(Shard* shard, RowIndex* row);
  // Makes rows of evicted keys ready for a batch of so many keys. For the
  // holder of shared locks of layout and inserts.
  void RenewRows(int64_t keys);
  void LowerOldestWaiting(uint64_t epoch);
  Status InsertKey(Shard* shard, uint64_t hash, Key key, RowIndex* row);
  Status ProcessShards(const KeySorter& sorted, int begin, int end,
                       Missing missing, const Seen& seen,
                       Span<Address> addresses);
  Status ProcessLocked(Span<const KeyAt> keys, Missing missing,
                       const Seen& seen, Span<Address> addresses);
  // A key on its way through the pipeline of ProcessLocked.
  struct InFlight {
    uint64_t hash;
    Shard* shard;
    int64_t likely_row;
  };
  bool ProcessKey(const InFlight& ahead, const KeyAt& key,
                  const RowAccess& rows, Missing missing, const Seen& seen,
                  Span<Address> addresses, int64_t* became_visible,
                  Status* status);
  // Counts a key that has no row. True, and the row it has then, if it is
  // admitted. For the holder of the shard's mutex, as is AdmitPending.
  bool Admit(const InFlight& ahead, const KeyAt& key, const Seen& seen,
             RowIndex* row, int64_t* became_visible, Status* status);
  // Decides on keys that were not admitted, now that the batch is counted.
  void AdmitPending(Span<Address> addresses, bool any_admitted);
  void BoundCandidates(Shard* shard);
  void Uncount(Key key, int64_t count) const;
  Status Process(Span<const Key> keys, Span<const Address> hints,
                 Missing missing, const Seen& seen, Span<Address> addresses,
                 const Parallel& parallel);

  StepClock* StepsToWaitFor() const {
    return options_.admission.may_evict() || is_fixed() ? steps_.get()
                                                        : nullptr;
  }
  template <typename Goes>
  void CollectVictims(int64_t begin, int64_t end, const Goes& goes,
                      std::vector<Victim>* victims) const;
  // Evicts those that `goes(row)` still holds for. Returns how many.
  template <typename Goes>
  int64_t EraseVictims(std::vector<Victim>* victims, const Goes& goes);
  void SetUnknownTimes();
  Rank RankOf(RowIndex row) const;
  // Does a part of what brings the table below its bound, if it is above.
  void MakeRoom(int64_t keys_of_batch);
  void BeginSweep();
  void ContinueSweep();

  // What IsLegal reads.
  static void PrefetchVisible(Address address, const RowAccess& rows,
                              int64_t capacity) {
    if (RowOf(address) < capacity) rows.PrefetchVisible(RowOf(address));
  }
  // `rows` and `capacity` are what the loop keeps of the table.
  bool IsLegal(Address address, const RowAccess& rows, int64_t capacity) const {
    const RowIndex row = RowOf(address);
    return NonceOf(address) == nonce_ && row < capacity &&
           (rows.IsVisible(row) || rows.IsInLimbo(row)) &&
           GenerationOf(address) == rows.GenerationOf(row);
  }
  Status AddressError(Address address, int64_t position) const;
  Status CheckOffsets(Span<const int64_t> offsets) const;
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
  void KeepForSnapshot(Span<const Address> addresses);
  // For the holder of the exclusive rows lock: who needs the rows of before, or
  // which have changed, is served.
  void BeforeChange(Span<const Address> addresses);
  void BeforeAllChange();
  // Before keys come, go or count: whoever then changes a row that a snapshot
  // still needs may copy it. For the holder of a lock of inserts.
  SharedLock HoldRowsForSnapshot() {
    SharedLock rows(rows_lock_, std::defer_lock);
    if (snapshot_ != nullptr) rows.lock();
    return rows;
  }
  // For the holder of the shard's mutex, before it changes the candidates or
  // one of them.
  void BeforeCandidatesChange(Shard* shard) {
    if (shard->candidates_pending) KeepCandidates(shard);
  }
  void CandidateChanged(Shard* shard, Key key) {
    if (tracker_ != nullptr) shard->changed.insert(key);
  }
  void KeepCandidates(Shard* shard);
  Status EnsureSlots(const SlotLayout& slots);

  class Filler;
  Manifest NewManifest(const SaveRequest& request) const;
  Status SavingError(const char* what, const std::string& prefix) const;
  void SetSavingPath(const std::string& path);
  Status Stream(const SaveRequest& request, SaveKind kind,
                TableFileWriter* writer, Manifest* manifest,
                bool* layout_changed);
  struct OpensGate {
    void operator()(WriteGate* gate) const { gate->Open(); }
  };
  using ClosedGate = std::unique_ptr<WriteGate, OpensGate>;
  bool ShareRows(const SaveRequest& request, ClosedGate* closed,
                 int64_t* steps);
  void BeginTracking(const SaveRequest& request, int64_t rows);
  Status WriteEvicted(const std::vector<Key>& evicted, const Manifest& manifest,
                      TableFileWriter* writer) const;
  int64_t MarkPending(const SaveRequest& request, SaveKind kind,
                      Snapshot* snapshot);
  Status CopyPending(Snapshot* snapshot, int64_t* row, BlockBuffer* buffer);
  void ReadRowsElsewhere(const SaveRequest& request, Span<const RowIndex> rows,
                         float* out) const;
  void FillSlots(const SlotLayout& slots, float* row) const;
  // For the holder of a shared layout lock.
  void KeepForWrites(Span<const int64_t> offsets);
  Status CopyCandidates();
  // Whether counts, and so what an occurrence counts, matter to anyone.
  bool HasCoefficients() const {
    return options_.admission.admits() ||
           !options_.admission.coefficients.empty();
  }
  std::string ShowCoefficients() const;
  void UncountAll();
  void RestoreAdmission(const Manifest& manifest, bool has_times,
                        RestoreReport* report);
  Status CheckSaved(const RestoreRequest& request,
                    const Manifest& manifest) const;
  // Until `stopped` is dropped no step is running.
  Status StopSteps(const RestoreRequest& request,
                   std::shared_ptr<void>* stopped);
  Status ResetContent(const SlotLayout& slots);

  const TableOptions options_;
  const Initializer initializer_;
  const std::unordered_set<Key> padding_keys_;
  uint32_t nonce_;  // guarded by layout_lock_

  // Order of acquisition: layout, keeping, inserts, rows, shards from first to
  // last, then those of freed rows, of erased keys and of steps. The mutex of
  // evictions comes before all that it does; a lookup only tries it.
  mutable RwLock layout_lock_;      // exclusive: rows_ replaced, or slots added
  RwLock keeping_lock_;             // exclusive: a snapshot ends
  mutable RwLock inserts_lock_;     // exclusive: no key comes, goes or counts
  mutable RwLock rows_lock_;        // exclusive: row content and marks change
  std::unique_ptr<RowStore> rows_;  // null once released
  SlotLayout slots_;                // guarded by layout_lock_
  std::vector<std::unique_ptr<Shard>> shards_;
  std::atomic<bool> released_{false};
  std::atomic<int64_t> size_{0};
  std::atomic<int64_t> update_count_{0};
  int64_t slot_steps_ = 0;  // guarded by rows_lock_

  std::mutex saving_mutex_;  // before the locks above: one save or restore
  mutable std::mutex saving_path_mutex_;
  std::string saving_path_;  // guarded by saving_path_mutex_
  // Of the save under way, else null. Set and cleared under the exclusive
  // inserts and rows locks; cleared under that of keeping, too.
  Snapshot* snapshot_ = nullptr;
  bool snapshot_is_delta_ = false;
  // From the first save that deltas may build on. Set under the same locks.
  std::unique_ptr<ChangeTracker> tracker_;
  // What the next delta builds on, and what the one after the save that is not
  // known to be complete will. Guarded by saving_mutex_.
  SavedChain chain_;
  SavedChain next_chain_;
  const std::shared_ptr<StepClock> steps_ = std::make_shared<StepClock>();
  const std::shared_ptr<WriteGate> writers_ = std::make_shared<WriteGate>();
  std::atomic<int64_t> access_threshold_;
  std::atomic<bool> is_frozen_;
  std::atomic<int64_t> newest_time_{0};
  std::atomic<bool> times_unknown_{false};  // restored from files without them
  std::mutex evict_mutex_;  // one eviction at a time; guards sweep_
  Sweep sweep_;
  std::mutex freed_mutex_;
  FreedRows freed_;  // of a table of fixed capacity; guarded by freed_mutex_
  std::mutex erased_mutex_;
  std::vector<Key> erased_;  // guarded by erased_mutex_
  std::atomic<bool> logs_erased_{false};
  std::atomic<int64_t> evicted_keys_{0};
  std::atomic<int64_t> evicted_candidates_{0};
  std::atomic<int64_t> rows_waiting_{0};  // of evicted keys
  std::atomic<int64_t> rows_ready_{0};    // that waited and may be used
  std::atomic<bool> lacks_rows_{false};   // a shard had no ready row
  std::atomic<uint64_t> oldest_waiting_{
      UINT64_MAX};  // not later than any epoch
};

}  // namespace mxrec

#endif  // MXREC_SRC_TABLE_IMPL_H_
