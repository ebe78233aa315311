#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <utility>

#include "hash.h"
#include "table_impl.h"

namespace mxrec {
namespace {

// How far ahead of a key its bucket and its row's key are fetched.
constexpr int64_t kBucketAhead = 64;
constexpr int64_t kKeyAhead = 32;
// Shards of a small batch are locked together, so that there is an ahead.
constexpr int64_t kMinKeysTogether = 32;
constexpr int kMaxLockedShards = 16;
constexpr int64_t kMinParallelKeys = 1024;
constexpr int64_t kHintsAhead = 16;  // prefetched
// Rough cost in cycles, for the thread pool.
constexpr int64_t kProbeCost = 60;
// Counts below this can be added without a look at each other.
constexpr int64_t kCountsThatAdd = int64_t{1} << 40;
// Rows that a shard takes at a time, unless they are very long.
constexpr int64_t kMinRun = 16;
constexpr int64_t kMaxRun = 256;
constexpr int64_t kMinRunBytes = 4 << 10;
constexpr int64_t kMaxRunBytes = 64 << 10;
// Memory of rows that is made resident before they are taken.
constexpr int64_t kMaxReadyBytes = 16 << 20;

KeySorter& ThreadSorter() {
  thread_local KeySorter sorter;
  return sorter;
}

}  // namespace

Status TableImpl::CheckSpans(Span<const Key> keys, Span<const Address> hints,
                             Span<const int32_t> counts,
                             Span<Address> addresses) const {
  const int64_t n = keys.size();
  if (addresses.size() != n || (!hints.empty() && hints.size() != n) ||
      (!counts.empty() && counts.size() != n)) {
    return Status::InvalidArgument(
        "table '" + options_.name + "': " + std::to_string(n) +
        " keys do not go with " + std::to_string(hints.size()) + " hints, " +
        std::to_string(counts.size()) + " counts and " +
        std::to_string(addresses.size()) + " addresses");
  }
  int32_t least = 0;
  for (const int32_t count : counts) least = std::min(least, count);
  if (least < 0) {
    const int64_t position =
        std::find(counts.begin(), counts.end(), least) - counts.begin();
    return Status::InvalidArgument(
        "table '" + options_.name + "': counts must not be negative, got " +
        std::to_string(least) + " at position " + std::to_string(position));
  }
  return Status::Ok();
}

bool TableImpl::HintHolds(Address hint, Key key, const RowAccess& rows,
                          int64_t capacity) const {
  if (NonceOf(hint) != nonce_) return false;
  const RowIndex row = RowOf(hint);
  if (row >= capacity) return false;
  // Visibility first: it is what publishes the row's key to this thread. A
  // reserved row is left to the search, which makes it visible.
  return GenerationOf(hint) == rows.GenerationOf(row) && rows.IsVisible(row) &&
         *rows.KeyOf(row) == key;
}

int64_t TableImpl::UseHints(Span<const Key> keys, Span<const Address> hints,
                            const Seen& seen, int64_t begin, int64_t end,
                            Span<Address> addresses, uint32_t* left) const {
  const RowAccess rows = *rows_;
  const int64_t capacity = rows_->capacity();
  int64_t n = 0;
  for (int64_t i = begin; i < end; ++i) {
    if (i + kHintsAhead < end) {
      const Address ahead = hints[i + kHintsAhead];
      if (NonceOf(ahead) == nonce_ && RowOf(ahead) < capacity) {
        __builtin_prefetch(rows.KeyOf(RowOf(ahead)), 0, 3);
        rows.PrefetchVisible(RowOf(ahead));
      }
    }
    // A row that must be copied first is left to the holder of its shard.
    const bool is_kept = seen.trains && snapshot_ != nullptr &&
                         snapshot_->IsPending(RowOf(hints[i]));
    if (!is_kept && HintHolds(hints[i], keys[i], rows, capacity)) {
      addresses[i] = hints[i];
      Touch(RowOf(hints[i]), rows, seen, i);
    } else {
      left[n++] = static_cast<uint32_t>(i);
    }
  }
  return n;
}

// Atomic, since a hint leads here without the shard's mutex.
void TableImpl::Touch(RowIndex row, const RowAccess& rows, const Seen& seen,
                      int64_t position) const {
  if (seen.trains && tracker_ != nullptr) {
    if (is_fixed() || seen.adds_counts || seen.adds_times) {
      tracker_->Changed(row);
    }
    tracker_->Met(row, seen.counts.empty() ? 1 : seen.counts[position]);
  }
  if (seen.adds_counts) {
    const int64_t added = seen.CountAt(position);
    std::atomic<int64_t>* const count = rows.CountOf(row);
    int64_t old = count->load(std::memory_order_relaxed);
    if (std::max(old, added) < kCountsThatAdd) {
      count->fetch_add(added, std::memory_order_relaxed);
    } else {
      while (!count->compare_exchange_weak(old, SaturatingAdd(old, added),
                                           std::memory_order_relaxed)) {
      }
    }
    const auto& shared = options_.admission.shared_counts;
    if (shared != nullptr) shared->Add(*rows.KeyOf(row), added);
  }
  if (seen.adds_times) {
    const int64_t time = seen.TimeAt(position);
    std::atomic<int64_t>* const last = rows.TimeOf(row);
    int64_t old = last->load(std::memory_order_relaxed);
    while (old < time &&
           !last->compare_exchange_weak(old, time, std::memory_order_relaxed)) {
    }
  }
}

// A shard takes rows in runs, so that the keys of one shard, which a batch
// visits together, lie together. A run is a small part of the shard.
Status TableImpl::AllocateRow(Shard* shard, RowIndex* row) {
  if (TakeFreedRow(shard, row)) return Status::Ok();
  // Offsets of a fixed capacity are handed out without a gap.
  if (is_fixed()) return rows_->Allocate(1, row);
  if (shard->rows_left == 0) {
    const int64_t row_bytes =
        rows_->stride() * static_cast<int64_t>(sizeof(float));
    const int64_t least =
        std::clamp<int64_t>(kMinRunBytes / row_bytes, 1, kMinRun);
    const int64_t most =
        std::clamp<int64_t>(kMaxRunBytes / row_bytes, 1, kMaxRun);
    const uint32_t run = static_cast<uint32_t>(
        std::clamp(shard->index.size() / 32, least, std::max(least, most)));
    const Status status = rows_->Allocate(run, &shard->next_row);
    if (!status.ok()) return status;
    shard->rows_left = run;
  }
  *row = shard->next_row++;
  --shard->rows_left;
  return Status::Ok();
}

// Not visible yet.
Status TableImpl::InsertKey(Shard* shard, uint64_t hash, Key key,
                            RowIndex* row) {
  if (!shard->index.Reserve(*rows_)) {
    return Status::ResourceExhausted("table '" + options_.name +
                                     "': no memory to index more than " +
                                     std::to_string(size()) + " keys");
  }
  const Status status = AllocateRow(shard, row);
  if (!status.ok()) return status;
  if (!is_fixed()) {
    float* data = rows_->Row(*row);
    initializer_.Fill(key, data);
    float* slot = data + options_.dim;
    for (const float initial : slots_.initial_values) {
      slot = std::fill_n(slot, options_.dim, initial);
    }
  }
  *rows_->KeyOf(*row) = key;
  if (options_.record_counts) {
    rows_->CountOf(*row)->store(0, std::memory_order_relaxed);
  }
  if (options_.admission.record_times) {
    rows_->TimeOf(*row)->store(0, std::memory_order_relaxed);
  }
  if (!padding_keys_.empty() && padding_keys_.count(key) > 0) {
    rows_->Freeze(*row);
  }
  shard->index.Insert(hash, *row);
  return Status::Ok();
}

// Keys of shards that are locked. A pipeline hides their cache misses: a key's
// bucket is fetched some keys ahead, and its row's key some fewer keys ahead.
Status TableImpl::ProcessLocked(Span<const KeyAt> keys, Missing missing,
                                const Seen& seen, Span<Address> addresses) {
  const int64_t n = keys.size();
  const RowAccess rows = *rows_;
  Status status;
  int64_t became_visible = 0;
  std::array<InFlight, kBucketAhead> pipeline;
  for (int64_t in = 0; in < n + kBucketAhead; ++in) {
    const int64_t out = in - kBucketAhead;
    InFlight& ends = pipeline[in % kBucketAhead];
    if (out >= 0 && !ProcessKey(ends, keys[out], rows, missing, seen, addresses,
                                &became_visible, &status)) {
      break;
    }
    if (in < n) {
      const uint64_t hash = HashKey(keys[in].key);
      ends = {hash, shards_[ShardOf(hash)].get(), -1};
      ends.shard->index.PrefetchBucket(hash);
    }
    const int64_t middle = in - (kBucketAhead - kKeyAhead);
    if (middle >= 0 && middle < n) {
      InFlight& key = pipeline[middle % kBucketAhead];
      key.likely_row = key.shard->index.LikelyRow(key.hash, rows);
      if (key.likely_row >= 0 && key.shard->reserved != 0) {
        rows.PrefetchVisible(static_cast<RowIndex>(key.likely_row));
      }
    }
  }
  if (missing == Missing::kAdmit && status.ok()) {
    AdmitPending(addresses, became_visible != 0);
  }
  if (became_visible != 0) {
    size_.fetch_add(became_visible, std::memory_order_relaxed);
  }
  return status;
}

// False if it failed: then *status says why.
bool TableImpl::ProcessKey(const InFlight& ahead, const KeyAt& key,
                           const RowAccess& rows, Missing missing,
                           const Seen& seen, Span<Address> addresses,
                           int64_t* became_visible, Status* status) {
  // A row that holds the key is the key's, however the index has grown since.
  RowIndex row = static_cast<RowIndex>(ahead.likely_row);
  bool found = (ahead.likely_row >= 0 && *rows.KeyOf(row) == key.key) ||
               ahead.shard->index.Find(ahead.hash, key.key, rows, &row);
  Shard* const shard = ahead.shard;
  if (found && seen.trains && snapshot_ != nullptr &&
      snapshot_->has_counts_or_times()) {
    snapshot_->KeepBeforeChange(rows, row);
  }
  if (missing == Missing::kAdmit) {
    if (found) {
      Touch(row, rows, seen, key.position);
    } else {
      found = Admit(ahead, key, seen, &row, became_visible, status);
      if (!status->ok()) return false;
    }
    addresses[key.position] = found ? AddressOf(row) : kNoRow;
    return true;
  }
  if (!found && missing != Missing::kLeave) {
    *status = InsertKey(shard, ahead.hash, key.key, &row);
    if (!status->ok()) return false;
    found = true;
    ++shard->reserved;
  }
  // Where nothing is reserved, visible bits need not be read.
  if (missing == Missing::kInsert) {
    if (shard->reserved != 0 && !rows.IsVisible(row)) {
      rows.MakeVisible(row);
      --shard->reserved;
      ++*became_visible;
      if (tracker_ != nullptr) tracker_->Changed(row);
    }
    Touch(row, rows, seen, key.position);
  } else if (missing == Missing::kLeave) {
    found = found && (shard->reserved == 0 || rows.IsVisible(row));
  }
  addresses[key.position] = found ? AddressOf(row) : kNoRow;
  return true;
}

// Takes as many shards at a time as keep the pipeline filled.
Status TableImpl::ProcessShards(const KeySorter& sorted, int begin, int end,
                                Missing missing, const Seen& seen,
                                Span<Address> addresses) {
  for (int first = begin; first < end;) {
    std::array<std::unique_lock<std::mutex>, kMaxLockedShards> locks;
    int last = first;
    do {
      if (!sorted.Shards(last, last + 1).empty()) {
        locks[last - first] =
            std::unique_lock<std::mutex>(shards_[last]->mutex);
      }
      ++last;
    } while (last < end && last - first < kMaxLockedShards &&
             sorted.Shards(first, last).size() < kMinKeysTogether);
    const Status status =
        ProcessLocked(sorted.Shards(first, last), missing, seen, addresses);
    if (!status.ok()) return status;
    first = last;
  }
  return Status::Ok();
}

Status TableImpl::Process(Span<const Key> keys, Span<const Address> hints,
                          Missing missing, const Seen& seen,
                          Span<Address> addresses, const Parallel& parallel) {
  KeySorter& sorter = ThreadSorter();
  sorter.Sort(
      keys,
      [&](int64_t begin, int64_t end, uint32_t* left) {
        if (!hints.empty()) {
          return UseHints(keys, hints, seen, begin, end, addresses, left);
        }
        std::iota(left, left + (end - begin), static_cast<uint32_t>(begin));
        return end - begin;
      },
      parallel);
  if (sorter.size() == 0) return Status::Ok();
  if (sorter.size() < kMinParallelKeys) {
    return ProcessShards(sorter, 0, kShards, missing, seen, addresses);
  }
  std::mutex status_mutex;
  Status first_failure;
  parallel.For(kShards, (sorter.size() / kShards + 1) * kProbeCost,
               [&](int64_t begin, int64_t end) {
                 const Status status = ProcessShards(
                     sorter, static_cast<int>(begin), static_cast<int>(end),
                     missing, seen, addresses);
                 if (status.ok()) return;
                 std::lock_guard<std::mutex> lock(status_mutex);
                 if (first_failure.ok()) first_failure = status;
               });
  return first_failure;
}

Status TableImpl::FindOrAdmit(Span<const Key> keys, Span<const Address> hints,
                              const Occurrences& seen, Span<Address> addresses,
                              const Parallel& parallel) {
  Status status = CheckSpans(keys, hints, seen.counts, addresses);
  if (status.ok()) status = CheckOccurrences(seen, keys.size());
  if (!status.ok()) return status;
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  const int64_t rows_before = rows_->rows_allocated();
  {
    SharedLock inserts(inserts_lock_);
    RenewRows(keys.size());
    const SharedLock rows_for_snapshot = HoldRowsForSnapshot();
    const StepClock::Hold step(StepsToWaitFor());
    status = Process(
        keys, hints,
        options_.admission.admits() ? Missing::kAdmit : Missing::kInsert,
        Observe(seen), addresses, parallel);
    if (options_.admission.max_keys > 0) MakeRoom(keys.size());
  }
  MakeReadyForMore(rows_before);
  return status;
}

// Who took rows will take more. What waits for them to be resident holds no
// lock of a shard, where lookups would wait too.
void TableImpl::MakeReadyForMore(int64_t rows_before) {
  const int64_t taken = rows_->rows_allocated() - rows_before;
  const int64_t row_bytes = std::max<int64_t>(
      rows_->stride() * static_cast<int64_t>(sizeof(float)), 1);
  if (taken > 0) rows_->TouchAhead(std::min(taken, kMaxReadyBytes / row_bytes));
}

Status TableImpl::Find(Span<const Key> keys, Span<const Address> hints,
                       Span<Address> addresses,
                       const Parallel& parallel) const {
  const Status status = CheckSpans(keys, hints, {}, addresses);
  if (!status.ok()) return status;
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  const StepClock::Hold step(StepsToWaitFor());
  // Leaves missing keys alone, so nothing of the table changes.
  return const_cast<TableImpl*>(this)->Process(keys, hints, Missing::kLeave, {},
                                               addresses, parallel);
}

Status TableImpl::LookAhead(Span<const Key> keys, bool reserve,
                            Span<Address> hints, const Parallel& parallel) {
  Status status = CheckSpans(keys, {}, {}, hints);
  if (!status.ok()) return status;
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  const StepClock::Hold step(StepsToWaitFor());
  // A key that is never trained must not take the place of one that is.
  const bool may_reserve = reserve && !is_fixed() &&
                           !options_.admission.admits() &&
                           options_.admission.max_keys == 0;
  const int64_t rows_before = rows_->rows_allocated();
  status = Process(keys, {}, may_reserve ? Missing::kReserve : Missing::kLeave,
                   {}, hints, parallel);
  MakeReadyForMore(rows_before);
  return status;
}

}  // namespace mxrec
