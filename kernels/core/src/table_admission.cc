#include <algorithm>

#include "hash.h"
#include "table_impl.h"

namespace mxrec {
namespace {

// Occurrences that were not admitted, of the keys that are being processed.
std::vector<const KeyAt*>& ThreadPending() {
  thread_local std::vector<const KeyAt*> pending;
  return pending;
}

// A bounded table keeps about as many candidates as keys, and a few more in
// each shard of a small one.
constexpr int64_t kMinCandidatesOfShard = 16;

}  // namespace

Status TableImpl::CheckOccurrences(const Occurrences& seen,
                                   int64_t keys) const {
  if (seen.coefficient < 1 || seen.coefficient > INT32_MAX) {
    return Status::InvalidArgument("table '" + options_.name +
                                   "': the coefficient must be in [1, " +
                                   std::to_string(INT32_MAX) + "], got " +
                                   std::to_string(seen.coefficient));
  }
  if (seen.times.size() > 1 && seen.times.size() != keys) {
    return Status::InvalidArgument("table '" + options_.name +
                                   "': timestamps must be none, one for all "
                                   "keys or one per key: expected " +
                                   std::to_string(keys) + ", got " +
                                   std::to_string(seen.times.size()));
  }
  for (int64_t i = 0; i < seen.times.size(); ++i) {
    if (seen.times[i] >= 0) continue;
    return Status::InvalidArgument(
        "table '" + options_.name +
        "': timestamps must be seconds of at least 0, got " +
        std::to_string(seen.times[i]) + " at position " + std::to_string(i));
  }
  return Status::Ok();
}

std::string TableImpl::ShowCoefficients() const {
  std::string text;
  for (const int64_t coefficient : options_.admission.coefficients) {
    text += (text.empty() ? "" : ",") + std::to_string(coefficient);
  }
  return text.empty() ? "1" : text;
}

TableImpl::Seen TableImpl::Observe(const Occurrences& seen) {
  Seen result;
  result.trains = true;
  result.counts = seen.counts;
  result.coefficient = seen.coefficient;
  result.adds_counts =
      options_.record_counts && !is_frozen_.load(std::memory_order_relaxed);
  result.adds_times = options_.admission.record_times;
  if (!result.adds_times) return result;
  if (options_.admission.use_lookup_clock) {
    result.time = newest_time_.fetch_add(1, std::memory_order_relaxed) + 1;
    return result;
  }
  int64_t newest = 0;
  for (const int64_t time : seen.times) newest = std::max(newest, time);
  int64_t known = newest_time_.load(std::memory_order_relaxed);
  while (known < newest && !newest_time_.compare_exchange_weak(
                               known, newest, std::memory_order_relaxed)) {
  }
  if (seen.times.size() > 1) {
    result.times = seen.times;
  } else {
    result.time = seen.times.empty() ? std::max(known, newest) : newest;
  }
  return result;
}

bool TableImpl::Admit(const InFlight& ahead, const KeyAt& key, const Seen& seen,
                      RowIndex* row, int64_t* became_visible, Status* status) {
  Shard* const shard = ahead.shard;
  BeforeCandidatesChange(shard);
  const int64_t added = seen.CountAt(key.position);
  const int64_t threshold = access_threshold_.load(std::memory_order_relaxed);
  const auto& shared = options_.admission.shared_counts;
  Candidates::Entry* candidate = shard->candidates.Find(ahead.hash, key.key);
  const int64_t before = candidate == nullptr ? 0 : candidate->count;
  const int64_t own = SaturatingAdd(before, added);
  const int64_t time = std::max(candidate == nullptr ? 0 : candidate->time,
                                seen.TimeAt(key.position));
  const int64_t total = shared == nullptr ? own : shared->Add(key.key, added);
  if (total < threshold) {
    // A frozen table need not remember a key that counts nothing.
    if (candidate == nullptr && own > 0) {
      candidate = shard->candidates.FindOrAdd(ahead.hash, key.key);
    }
    if (candidate != nullptr) {
      candidate->count = own;
      candidate->time = time;
      CandidateChanged(shard, key.key);
    }
    ThreadPending().push_back(&key);
    return false;
  }
  *status = InsertKey(shard, ahead.hash, key.key, row);
  if (!status->ok()) {  // it stays a candidate, for when there is room
    candidate = shard->candidates.FindOrAdd(ahead.hash, key.key);
    candidate->count = own;
    candidate->time = time;
    CandidateChanged(shard, key.key);
    ThreadPending().clear();
    return false;
  }
  rows_->CountOf(*row)->store(own, std::memory_order_relaxed);
  if (options_.admission.record_times) {
    rows_->TimeOf(*row)->store(time, std::memory_order_relaxed);
  }
  rows_->MakeVisible(*row);
  if (tracker_ != nullptr) {
    tracker_->Changed(*row);
    tracker_->Met(*row, seen.counts.empty() ? 1 : seen.counts[key.position]);
  }
  ++*became_visible;
  if (candidate != nullptr) shard->candidates.Erase(candidate);
  return true;
}

// A key that occurs again among `keys` may have been admitted by a later
// occurrence.
void TableImpl::AdmitPending(Span<Address> addresses, bool any_admitted) {
  std::vector<const KeyAt*>& pending = ThreadPending();
  for (const KeyAt* key : pending) {
    const uint64_t hash = HashKey(key->key);
    Shard* const shard = shards_[ShardOf(hash)].get();
    RowIndex row = 0;
    if (any_admitted && shard->index.Find(hash, key->key, *rows_, &row)) {
      addresses[key->position] = AddressOf(row);
    }
    BoundCandidates(shard);
  }
  pending.clear();
}

void TableImpl::BoundCandidates(Shard* shard) {
  if (options_.admission.max_keys == 0) return;
  Candidates& candidates = shard->candidates;
  const int64_t most =
      options_.admission.max_keys / kShards + kMinCandidatesOfShard;
  if (candidates.size() <= most) return;
  const bool by_count =
      options_.admission.evict_policy == EvictPolicy::kLeastFrequent;
  const auto rank_of = [by_count](const Candidates::Entry& entry) {
    return by_count ? Rank{entry.count, entry.time} : Rank{entry.time, 0};
  };
  std::vector<Rank> ranks;
  ranks.reserve(candidates.size());
  candidates.ForEach(
      [&](const Candidates::Entry& entry) { ranks.push_back(rank_of(entry)); });
  int64_t left = candidates.size() - most * 3 / 4;
  const auto last = ranks.begin() + (left - 1);
  std::nth_element(ranks.begin(), last, ranks.end());
  const Rank cutoff = *last;
  left -= std::count_if(ranks.begin(), last,
                        [cutoff](const Rank& rank) { return rank < cutoff; });
  const int64_t erased = candidates.EraseIf(
      0, candidates.slots(), [&](const Candidates::Entry& entry) {
        const Rank rank = rank_of(entry);
        if (!(rank < cutoff) && !(rank == cutoff && left-- > 0)) return false;
        Uncount(entry.key, entry.count);
        CandidateChanged(shard, entry.key);
        return true;
      });
  evicted_candidates_.fetch_add(erased, std::memory_order_relaxed);
}

// Takes back what a key of this table has added to counts of several.
void TableImpl::Uncount(Key key, int64_t count) const {
  const auto& shared = options_.admission.shared_counts;
  if (shared != nullptr) shared->Add(key, -count);
}

Status TableImpl::SetAccessThreshold(int64_t threshold, int64_t* in_force) {
  if (threshold < 0 || threshold > INT32_MAX) {
    return Status::InvalidArgument(
        "table '" + options_.name +
        "': the threshold of admission must be in [0, " +
        std::to_string(INT32_MAX) + "], got " + std::to_string(threshold));
  }
  if (!options_.admission.admits()) {
    return Status::FailedPrecondition(
        "table '" + options_.name +
        "' has no admission; give a lookup of it an access_threshold");
  }
  if (threshold > 0) {
    access_threshold_.store(threshold, std::memory_order_relaxed);
  }
  is_frozen_.store(threshold == 0, std::memory_order_relaxed);
  *in_force = access_threshold_.load(std::memory_order_relaxed);
  return Status::Ok();
}

AdmissionState TableImpl::admission_state() const {
  AdmissionState state;
  state.access_threshold = access_threshold_.load(std::memory_order_relaxed);
  state.is_frozen = is_frozen_.load(std::memory_order_relaxed);
  state.newest_time = newest_time_.load(std::memory_order_relaxed);
  return state;
}

Status TableImpl::SetAdmissionState(const AdmissionState& state) {
  if ((state.access_threshold >= 0) != options_.admission.admits() ||
      state.newest_time < 0) {
    return Status::InvalidArgument(
        "table '" + options_.name + "': an access_threshold of " +
        std::to_string(state.access_threshold) + " with newest time " +
        std::to_string(state.newest_time) +
        " does not go with one created with access_threshold " +
        std::to_string(options_.admission.access_threshold));
  }
  access_threshold_.store(state.access_threshold, std::memory_order_relaxed);
  is_frozen_.store(state.is_frozen, std::memory_order_relaxed);
  newest_time_.store(state.newest_time, std::memory_order_relaxed);
  return Status::Ok();
}

Status TableImpl::ExportCandidates(
    int64_t chunk_size,
    const std::function<Status(const CandidateChunk&)>& visit) const {
  if (chunk_size < 1) {
    return Status::InvalidArgument("chunk_size must be positive, got " +
                                   std::to_string(chunk_size));
  }
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  UniqueLock inserts(inserts_lock_);
  std::vector<Key> keys;
  std::vector<int64_t> counts;
  std::vector<int64_t> times;
  Status status;
  const auto flush = [&]() {
    if (!keys.empty() && status.ok()) {
      status = visit(CandidateChunk{keys, counts, times});
    }
    keys.clear();
    counts.clear();
    times.clear();
  };
  for (const auto& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard->mutex);
    shard->candidates.ForEach([&](const Candidates::Entry& entry) {
      keys.push_back(entry.key);
      counts.push_back(entry.count);
      times.push_back(entry.time);
      if (static_cast<int64_t>(keys.size()) == chunk_size) flush();
    });
    if (!status.ok()) return status;
  }
  flush();
  return status;
}

Status TableImpl::RestoreCandidates(const CandidateChunk& candidates) {
  const int64_t n = candidates.keys.size();
  if (candidates.counts.size() != n || candidates.times.size() != n ||
      !options_.admission.admits()) {
    return Status::InvalidArgument(
        "table '" + options_.name + "': " + std::to_string(n) +
        " candidates with " + std::to_string(candidates.counts.size()) +
        " counts and " + std::to_string(candidates.times.size()) +
        " times cannot be restored" +
        (options_.admission.admits() ? "" : " where there is no admission"));
  }
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  SharedLock inserts(inserts_lock_);
  const SharedLock rows_for_snapshot = HoldRowsForSnapshot();
  for (int64_t i = 0; i < n; ++i) {
    const Key key = candidates.keys[i];
    const uint64_t hash = HashKey(key);
    Shard* const shard = shards_[ShardOf(hash)].get();
    std::lock_guard<std::mutex> lock(shard->mutex);
    RowIndex row = 0;
    if (candidates.counts[i] < 0 ||
        shard->index.Find(hash, key, *rows_, &row)) {
      continue;
    }
    BeforeCandidatesChange(shard);
    CandidateChanged(shard, key);
    Candidates::Entry* const entry = shard->candidates.FindOrAdd(hash, key);
    entry->count = SaturatingAdd(entry->count, candidates.counts[i]);
    entry->time = std::max(entry->time, candidates.times[i]);
    if (options_.admission.shared_counts != nullptr) {
      options_.admission.shared_counts->Add(key, candidates.counts[i]);
    }
  }
  return Status::Ok();
}

}  // namespace mxrec
