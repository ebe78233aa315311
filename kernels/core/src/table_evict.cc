#include <algorithm>

#include "hash.h"
#include "table_impl.h"

namespace mxrec {
namespace {

// Rows, or slots of candidates, that are looked at while no lock is wanted by
// others: some tenths of a millisecond.
constexpr int64_t kRowsPerSlice = 16 << 10;
constexpr int64_t kSlotsPerSlice = 8 << 10;
// Keys that go while their shard is locked: about as long.
constexpr int64_t kVictimsPerLock = 512;
// A sweep of a bounded table looks at so many rows per lookup, or so many per
// key of its batch: more than a lookup can add rows, however few of them go.
constexpr int64_t kRowsPerLookup = 64 << 10;
constexpr int64_t kRowsPerKey = 32;
// How far ahead rows are made ready, for the next batches.
constexpr int64_t kReadyPerKey = 4;
constexpr int64_t kMinReadyOfShard = 16;
// A sweep learns from all rows of a table which ranks are to go, or, where
// there are more than this, from a sample: each of those rows is read from
// memory.
constexpr int64_t kExactRows = 64 << 10;
constexpr int64_t kSample = 16 << 10;
// A bounded table is brought down to this part below its bound.
constexpr int64_t kSlack = 10;

}  // namespace

bool TableImpl::TakeFreedRow(Shard* shard, RowIndex* row) {
  if (rows_ready_.load(std::memory_order_relaxed) == 0 &&
      rows_waiting_.load(std::memory_order_relaxed) == 0) {
    return false;
  }
  std::unique_lock<std::mutex> lock(freed_mutex_, std::defer_lock);
  if (is_fixed()) lock.lock();
  FreedRows& freed = is_fixed() ? freed_ : shard->freed;
  if (!freed.TakeReady(row)) {
    lacks_rows_.store(true, std::memory_order_relaxed);
    return false;
  }
  rows_ready_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

// Under the exclusive rows lock: so nobody has found a row legal and is still
// reading it, not even by an address that was kept for longer than a step.
void TableImpl::RenewRows(int64_t keys) {
  if (rows_waiting_.load(std::memory_order_relaxed) == 0 ||
      !steps_->IsOver(oldest_waiting_.load(std::memory_order_relaxed)) ||
      (rows_ready_.load(std::memory_order_relaxed) >= keys &&
       !lacks_rows_.load(std::memory_order_relaxed))) {
    return;
  }
  UniqueLock row_content(rows_lock_);
  oldest_waiting_.store(UINT64_MAX, std::memory_order_relaxed);
  lacks_rows_.store(false, std::memory_order_relaxed);
  const auto renew = [this](RowIndex row) {
    // A row that cannot be told from its first use any more is given up, but
    // for tables whose rows are all they will ever have.
    if (!rows_->Renew(row, is_fixed())) return false;
    rows_ready_.fetch_add(1, std::memory_order_relaxed);
    return true;
  };
  const int64_t wanted = kReadyPerKey * keys;
  int64_t renewed = 0;
  if (is_fixed()) {
    std::lock_guard<std::mutex> lock(freed_mutex_);
    renewed = freed_.MakeReady(*steps_, wanted, renew);
    LowerOldestWaiting(freed_.OldestEpoch());
  } else {
    for (const auto& shard : shards_) {
      std::lock_guard<std::mutex> lock(shard->mutex);
      renewed += shard->freed.MakeReady(
          *steps_, wanted / kShards + kMinReadyOfShard, renew);
      LowerOldestWaiting(shard->freed.OldestEpoch());
    }
  }
  rows_waiting_.fetch_sub(renewed, std::memory_order_relaxed);
}

void TableImpl::LowerOldestWaiting(uint64_t epoch) {
  uint64_t oldest = oldest_waiting_.load(std::memory_order_relaxed);
  while (epoch < oldest && !oldest_waiting_.compare_exchange_weak(
                               oldest, epoch, std::memory_order_relaxed)) {
  }
}

Status TableImpl::BeginStep(std::shared_ptr<void>* step) {
  step->reset();
  if (StepsToWaitFor() == nullptr) return Status::Ok();
  // The clock may outlive the table.
  const std::shared_ptr<StepClock> steps = steps_;
  uint64_t begun = 0;
  if (!steps->BeginUnlessStopped(&begun)) {
    return Status::FailedPrecondition(
        "table '" + options_.name +
        "' is about to be restored and waits for the steps that use it to "
        "end: no other may begin; run it again when the restore has ended");
  }
  step->reset(steps.get(), [steps, begun](void*) { steps->End(begun); });
  return Status::Ok();
}

// Without locks: what a visible row says of its key stays while it is visible,
// and only evictions, of which there is one at a time, end that.
template <typename Goes>
void TableImpl::CollectVictims(int64_t begin, int64_t end, const Goes& goes,
                               std::vector<Victim>* victims) const {
  victims->clear();
  const RowAccess rows = *rows_;
  for (int64_t r = begin; r < end; ++r) {
    const RowIndex row = static_cast<RowIndex>(r);
    if (!rows.IsVisible(row) || !goes(row)) continue;
    const Key key = *rows.KeyOf(row);
    victims->push_back({key, row, HashKey(key)});
  }
  std::sort(victims->begin(), victims->end(),
            [](const Victim& a, const Victim& b) {
              return ShardOf(a.hash) < ShardOf(b.hash);
            });
}

template <typename Goes>
int64_t TableImpl::EraseVictims(std::vector<Victim>* victims,
                                const Goes& goes) {
  int64_t erased = 0;
  const RowAccess rows = *rows_;
  for (size_t first = 0; first < victims->size();) {
    const int s = ShardOf((*victims)[first].hash);
    size_t last = first;
    while (last < victims->size() && ShardOf((*victims)[last].hash) == s &&
           last - first < static_cast<size_t>(kVictimsPerLock)) {
      ++last;
    }
    Shard* const shard = shards_[s].get();
    std::lock_guard<std::mutex> lock(shard->mutex);
    size_t gone = first;  // those that go are moved to the front
    for (size_t i = first; i < last; ++i) {
      const Victim victim = (*victims)[i];
      if (i + 8 < last) shard->index.PrefetchBucket((*victims)[i + 8].hash);
      if (!goes(victim.row)) continue;
      if (snapshot_ != nullptr) snapshot_->KeepBeforeChange(rows, victim.row);
      if (tracker_ != nullptr) tracker_->Evicted(victim.row);
      shard->index.Erase(victim.hash, victim.row);
      rows.MoveToLimbo(victim.row);
      if (options_.admission.shared_counts != nullptr) {
        Uncount(victim.key,
                rows.CountOf(victim.row)->load(std::memory_order_relaxed));
      }
      (*victims)[gone++] = victim;
    }
    const int64_t n = static_cast<int64_t>(gone - first);
    if (n > 0) {
      // After they have become invisible.
      const uint64_t epoch = steps_->Advance();
      std::unique_lock<std::mutex> freed_lock(freed_mutex_, std::defer_lock);
      if (is_fixed()) freed_lock.lock();
      FreedRows& freed = is_fixed() ? freed_ : shard->freed;
      for (size_t i = first; i < gone; ++i) {
        freed.Put((*victims)[i].row, epoch);
      }
      LowerOldestWaiting(epoch);
      rows_waiting_.fetch_add(n, std::memory_order_relaxed);
      size_.fetch_sub(n, std::memory_order_relaxed);
      evicted_keys_.fetch_add(n, std::memory_order_relaxed);
      if (logs_erased_.load(std::memory_order_relaxed)) {
        std::lock_guard<std::mutex> log_lock(erased_mutex_);
        for (size_t i = first; i < gone; ++i) {
          erased_.push_back((*victims)[i].key);
        }
      }
    }
    erased += n;
    first = last;
  }
  return erased;
}

Status TableImpl::Evict(int64_t threshold, Evicted* evicted) {
  *evicted = {};
  if (threshold < 0) {
    return Status::InvalidArgument(
        "table '" + options_.name +
        "': the threshold of eviction must not be negative, got " +
        std::to_string(threshold));
  }
  if (!options_.admission.record_times) {
    return Status::FailedPrecondition("table '" + options_.name +
                                      "' does not keep when keys were last "
                                      "seen, so none can be evicted; give "
                                      "a lookup of it an eviction_threshold");
  }
  std::lock_guard<std::mutex> one_at_a_time(evict_mutex_);
  if (times_unknown_.exchange(false)) SetUnknownTimes();
  const int64_t cutoff =
      newest_time_.load(std::memory_order_relaxed) - threshold;
  const auto is_old = [this, cutoff](RowIndex row) {
    return rows_->TimeOf(row)->load(std::memory_order_relaxed) <= cutoff;
  };
  std::vector<Victim> victims;
  for (int64_t begin = 0;; begin += kRowsPerSlice) {
    SharedLock layout(layout_lock_);
    if (rows_ == nullptr) return ReleasedError();
    SharedLock inserts(inserts_lock_);
    const SharedLock rows_for_snapshot = HoldRowsForSnapshot();
    const int64_t rows = std::min(rows_->rows_allocated(), rows_->capacity());
    if (begin >= rows) break;
    CollectVictims(begin, std::min(rows, begin + kRowsPerSlice), is_old,
                   &victims);
    evicted->keys += EraseVictims(&victims, is_old);
  }
  for (int s = 0; s < kShards; ++s) {
    for (int64_t begin = 0, slots = 0;; begin += kSlotsPerSlice) {
      SharedLock layout(layout_lock_);
      if (rows_ == nullptr) return ReleasedError();
      SharedLock inserts(inserts_lock_);
      Shard* const shard = shards_[s].get();
      std::lock_guard<std::mutex> lock(shard->mutex);
      BeforeCandidatesChange(shard);
      Candidates& candidates = shard->candidates;
      if (candidates.slots() != slots) begin = 0;  // they have moved
      slots = candidates.slots();
      if (begin >= slots) {
        candidates.Trim();
        break;
      }
      evicted->candidates += candidates.EraseIf(
          begin, std::min(slots, begin + kSlotsPerSlice),
          [this, cutoff, shard](const Candidates::Entry& entry) {
            if (entry.time > cutoff) return false;
            Uncount(entry.key, entry.count);
            CandidateChanged(shard, entry.key);
            return true;
          });
    }
  }
  evicted_candidates_.fetch_add(evicted->candidates, std::memory_order_relaxed);
  return Status::Ok();
}

// Keys of files without times age from the first eviction on.
void TableImpl::SetUnknownTimes() {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return;
  SharedLock inserts(inserts_lock_);
  const int64_t newest = newest_time_.load(std::memory_order_relaxed);
  const int64_t rows = std::min(rows_->rows_allocated(), rows_->capacity());
  for (int64_t r = 0; r < rows; ++r) {
    const RowIndex row = static_cast<RowIndex>(r);
    int64_t none = 0;
    if (rows_->IsVisible(row)) {
      rows_->TimeOf(row)->compare_exchange_strong(none, newest,
                                                  std::memory_order_relaxed);
    }
  }
  for (const auto& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard->mutex);
    BeforeCandidatesChange(shard.get());
    shard->candidates.ForEach([&](Candidates::Entry& entry) {
      if (entry.time != 0) return;
      entry.time = newest;
      CandidateChanged(shard.get(), entry.key);
    });
  }
}

TableImpl::Rank TableImpl::RankOf(RowIndex row) const {
  const int64_t time = rows_->TimeOf(row)->load(std::memory_order_relaxed);
  if (options_.admission.evict_policy == EvictPolicy::kLeastRecent) {
    return {time, 0};
  }
  return {rows_->CountOf(row)->load(std::memory_order_relaxed), time};
}

// For the holder of shared locks of layout and inserts, as are the next two.
void TableImpl::MakeRoom(int64_t keys_of_batch) {
  const int64_t bound = options_.admission.max_keys;
  // Not exact while others insert: then they look too.
  std::unique_lock<std::mutex> evict(evict_mutex_, std::try_to_lock);
  if (!evict.owns_lock() || (!sweep_.is_on && size() <= bound)) return;
  int64_t rows = std::max(kRowsPerLookup, kRowsPerKey * keys_of_batch);
  if (!sweep_.is_on) BeginSweep();
  while (sweep_.is_on && rows > 0) {
    ContinueSweep();
    rows -= kRowsPerSlice;
  }
}

// Learns from some rows, or all of a small table, what rank is to go.
void TableImpl::BeginSweep() {
  const int64_t bound = options_.admission.max_keys;
  const int64_t excess =
      size() - (bound - std::max<int64_t>(1, bound / kSlack));
  const int64_t rows = std::min(rows_->rows_allocated(), rows_->capacity());
  const int64_t stride =
      rows <= kExactRows ? 1 : (rows + kSample - 1) / kSample;
  std::vector<Rank> ranks;
  ranks.reserve(rows / stride + 1);
  uint64_t jitter = static_cast<uint64_t>(rows);
  for (int64_t block = 0; block < rows; block += stride) {
    // One row of each block, in no pattern.
    jitter = HashKey(static_cast<int64_t>(jitter));
    const int64_t r =
        block + static_cast<int64_t>(jitter % static_cast<uint64_t>(stride));
    if (r >= rows || !rows_->IsVisible(static_cast<RowIndex>(r))) continue;
    ranks.push_back(RankOf(static_cast<RowIndex>(r)));
  }
  const int64_t n = static_cast<int64_t>(ranks.size());
  if (n == 0 || excess <= 0) return;
  const int64_t going = std::clamp<int64_t>(
      stride == 1 ? excess
                  : static_cast<int64_t>(static_cast<double>(n) * excess /
                                         static_cast<double>(size())),
      1, n);
  const auto last = ranks.begin() + (going - 1);
  std::nth_element(ranks.begin(), last, ranks.end());
  sweep_.is_on = true;
  sweep_.next_row = 0;
  sweep_.left = excess;
  sweep_.cutoff = *last;
  // Of a small table exactly the excess goes. Of a large one the first of equal
  // rank go until it is gone.
  sweep_.ties = stride == 1
                    ? going - std::count_if(ranks.begin(), last,
                                            [this](const Rank& rank) {
                                              return rank < sweep_.cutoff;
                                            })
                    : excess;
}

void TableImpl::ContinueSweep() {
  const int64_t rows = std::min(rows_->rows_allocated(), rows_->capacity());
  const int64_t end = std::min(rows, sweep_.next_row + kRowsPerSlice);
  std::vector<Victim> victims;
  CollectVictims(
      sweep_.next_row, end,
      [this](RowIndex row) { return !(sweep_.cutoff < RankOf(row)); },
      &victims);
  EraseVictims(&victims, [this](RowIndex row) {
    const Rank rank = RankOf(row);
    const bool is_tied = rank == sweep_.cutoff;
    if (sweep_.left <= 0 || sweep_.cutoff < rank) return false;
    if (is_tied && sweep_.ties <= 0) return false;
    sweep_.ties -= is_tied ? 1 : 0;
    --sweep_.left;
    return true;
  });
  sweep_.next_row = end;
  sweep_.is_on = sweep_.left > 0 && end < rows;
}

void TableImpl::LogErasedKeys(bool enabled) {
  std::lock_guard<std::mutex> lock(erased_mutex_);
  logs_erased_.store(enabled, std::memory_order_relaxed);
  if (!enabled) erased_ = {};
}

void TableImpl::TakeErasedKeys(std::vector<Key>* keys) {
  keys->clear();
  std::lock_guard<std::mutex> lock(erased_mutex_);
  keys->swap(erased_);
}

EvictionStats TableImpl::eviction_stats() const {
  EvictionStats stats;
  SharedLock layout(layout_lock_);
  for (const auto& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard->mutex);
    stats.candidates += shard->candidates.size();
  }
  stats.evicted_keys = evicted_keys_.load(std::memory_order_relaxed);
  stats.evicted_candidates =
      evicted_candidates_.load(std::memory_order_relaxed);
  stats.rows_waiting = rows_waiting_.load(std::memory_order_relaxed) +
                       rows_ready_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace mxrec
