#include "mxrec/table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <numeric>
#include <random>
#include <shared_mutex>
#include <unordered_set>
#include <utility>

#include "first_error.h"
#include "hash.h"
#include "key_sorter.h"
#include "row_math.h"
#include "row_store.h"
#include "rw_lock.h"
#include "shard_index.h"

namespace mxrec {
namespace {

constexpr int kMaxDim = 8192;
constexpr float kAdagradEpsilon = 1e-7f;
// How far ahead of a key its bucket and its row's key are fetched.
constexpr int64_t kBucketAhead = 64;
constexpr int64_t kKeyAhead = 32;
// Shards of a small batch are locked together, so that there is an ahead.
constexpr int64_t kMinKeysTogether = 32;
constexpr int kMaxLockedShards = 16;
constexpr int64_t kMinParallelKeys = 1024;
constexpr int64_t kHintsAhead = 16;    // prefetched
constexpr int64_t kVisibleAhead = 16;  // prefetched
// Row pointers that a gather resolves at a time. Rows of one cache line or two
// are fetched when they are; the copying itself fetches longer ones.
constexpr int64_t kRowsPerBlock = 256;
constexpr int64_t kShortRowsPerBlock = 64;
constexpr int kShortRow = 32;  // floats
// Rough costs in cycles, for the thread pool.
constexpr int64_t kProbeCost = 60;
constexpr int64_t kValidateCost = 15;
// Rows that a shard takes at a time, unless they are very long.
constexpr int64_t kMinRun = 16;
constexpr int64_t kMaxRun = 256;
constexpr int64_t kMinRunBytes = 4 << 10;
constexpr int64_t kMaxRunBytes = 64 << 10;

using SharedLock = std::shared_lock<RwLock>;
using UniqueLock = std::unique_lock<RwLock>;

// Different for every table of the process, and, but for a chance of one in a
// million, from those of an earlier process whose addresses were kept.
uint32_t NewNonce() {
  static std::atomic<uint32_t> next{std::random_device{}()};
  uint32_t nonce = 0;
  while (nonce == 0) nonce = next.fetch_add(1) & kMaxNonce;
  return nonce;
}

KeySorter& ThreadSorter() {
  thread_local KeySorter sorter;
  return sorter;
}

std::vector<float*>& ThreadRows() {
  thread_local std::vector<float*> rows;
  return rows;
}

// Leaves each row once, with the sum of its gradients in order of position.
void SumRepeated(Span<const Address> addresses, const float* gradients, int dim,
                 std::vector<float*>* rows, std::vector<float>* sums) {
  std::vector<Address> unique;
  std::vector<int32_t> position_of(addresses.size());
  std::vector<int32_t> counts;
  Unique<int64_t>(addresses, &unique, position_of.data(), &counts);
  sums->resize(unique.size() * dim);
  int64_t seen = 0;
  for (int64_t i = 0; i < addresses.size(); ++i) {
    const float* from = gradients + i * dim;
    float* to = sums->data() + static_cast<int64_t>(position_of[i]) * dim;
    if (position_of[i] == seen) {
      (*rows)[seen++] = (*rows)[i];
      std::copy_n(from, dim, to);
    } else {
      for (int j = 0; j < dim; ++j) to[j] += from[j];
    }
  }
  rows->resize(unique.size());
}

bool SameSlots(const SlotLayout& a, const SlotLayout& b) {
  return a.optimizer == b.optimizer && a.initial_values == b.initial_values;
}

std::string Show(const SlotLayout& slots) {
  std::string text = slots.optimizer + " (initial values";
  for (const float value : slots.initial_values) {
    text += " " + std::to_string(value);
  }
  return text + ")";
}

class TableImpl final : public Table {
 public:
  explicit TableImpl(TableOptions options)
      : options_(std::move(options)),
        initializer_(options_.initializer, options_.dim),
        padding_keys_(options_.padding_keys.begin(),
                      options_.padding_keys.end()),
        nonce_(NewNonce()),
        rows_(new RowStore(options_.name, is_fixed() ? 0 : options_.dim,
                           options_.record_counts, options_.fixed_capacity)) {
    shards_.reserve(kShards);
    for (int s = 0; s < kShards; ++s) {
      shards_.push_back(std::make_unique<Shard>(s));
    }
  }

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
  Status ApplyAdagrad(Span<const Address> addresses, const float* gradients,
                      const AdagradParams& params,
                      const Parallel& parallel) override;
  Status ApplyFtrl(Span<const Address> addresses, const float* gradients,
                   const FtrlParams& params, const Parallel& parallel) override;
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
  Status Apply(Span<const Address> addresses, const float* gradients,
               const SlotLayout& slots, const Parallel& parallel,
               int64_t cost_per_row,
               const std::function<void(float* const*, const float*, int64_t,
                                        int64_t)>& update);
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
                            bool add_counts, Span<const int32_t> counts,
                            int64_t begin, int64_t end, Span<Address> addresses,
                            uint32_t* left) const {
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
    if (HintHolds(hints[i], keys[i], rows, capacity)) {
      addresses[i] = hints[i];
      if (add_counts) AddCount(RowOf(hints[i]), counts, i);
    } else {
      left[n++] = static_cast<uint32_t>(i);
    }
  }
  return n;
}

// Atomic, since a hint leads here without the shard's mutex.
void TableImpl::AddCount(RowIndex row, Span<const int32_t> counts,
                         int64_t position) const {
  if (!options_.record_counts) return;
  const int64_t count = counts.empty() ? 1 : counts[position];
  rows_->CountOf(row)->fetch_add(count, std::memory_order_relaxed);
}

// A shard takes rows in runs, so that the keys of one shard, which a batch
// visits together, lie together. A run is a small part of the shard.
Status TableImpl::AllocateRow(Shard* shard, RowIndex* row) {
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
  if (!padding_keys_.empty() && padding_keys_.count(key) > 0) {
    rows_->Freeze(*row);
  }
  shard->index.Insert(hash, *row);
  return Status::Ok();
}

// Keys of shards that are locked. A pipeline hides their cache misses: a key's
// bucket is fetched some keys ahead, and its row's key some fewer keys ahead.
Status TableImpl::ProcessLocked(Span<const KeyAt> keys, Missing missing,
                                Span<const int32_t> counts,
                                Span<Address> addresses) {
  const int64_t n = keys.size();
  const RowAccess rows = *rows_;
  Status status;
  int64_t became_visible = 0;
  std::array<InFlight, kBucketAhead> pipeline;
  for (int64_t in = 0; in < n + kBucketAhead; ++in) {
    const int64_t out = in - kBucketAhead;
    InFlight& ends = pipeline[in % kBucketAhead];
    if (out >= 0 && !ProcessKey(ends, keys[out], rows, missing, counts,
                                addresses, &became_visible, &status)) {
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
  if (became_visible != 0) {
    size_.fetch_add(became_visible, std::memory_order_relaxed);
  }
  return status;
}

// False if it failed: then *status says why.
bool TableImpl::ProcessKey(const InFlight& ahead, const KeyAt& key,
                           const RowAccess& rows, Missing missing,
                           Span<const int32_t> counts, Span<Address> addresses,
                           int64_t* became_visible, Status* status) {
  // A row that holds the key is the key's, however the index has grown since.
  RowIndex row = static_cast<RowIndex>(ahead.likely_row);
  bool found = (ahead.likely_row >= 0 && *rows.KeyOf(row) == key.key) ||
               ahead.shard->index.Find(ahead.hash, key.key, rows, &row);
  Shard* const shard = ahead.shard;
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
    }
    AddCount(row, counts, key.position);
  } else if (missing == Missing::kLeave) {
    found = found && (shard->reserved == 0 || rows.IsVisible(row));
  }
  addresses[key.position] = found ? AddressOf(row) : kNoRow;
  return true;
}

// Takes as many shards at a time as keep the pipeline filled.
Status TableImpl::ProcessShards(const KeySorter& sorted, int begin, int end,
                                Missing missing, Span<const int32_t> counts,
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
        ProcessLocked(sorted.Shards(first, last), missing, counts, addresses);
    if (!status.ok()) return status;
    first = last;
  }
  return Status::Ok();
}

Status TableImpl::Process(Span<const Key> keys, Span<const Address> hints,
                          Missing missing, Span<const int32_t> counts,
                          Span<Address> addresses, const Parallel& parallel) {
  KeySorter& sorter = ThreadSorter();
  const bool add_counts = missing == Missing::kInsert && options_.record_counts;
  sorter.Sort(
      keys,
      [&](int64_t begin, int64_t end, uint32_t* left) {
        if (!hints.empty()) {
          return UseHints(keys, hints, add_counts, counts, begin, end,
                          addresses, left);
        }
        std::iota(left, left + (end - begin), static_cast<uint32_t>(begin));
        return end - begin;
      },
      parallel);
  if (sorter.size() == 0) return Status::Ok();
  if (sorter.size() < kMinParallelKeys) {
    return ProcessShards(sorter, 0, kShards, missing, counts, addresses);
  }
  std::mutex status_mutex;
  Status first_failure;
  parallel.For(kShards, (sorter.size() / kShards + 1) * kProbeCost,
               [&](int64_t begin, int64_t end) {
                 const Status status = ProcessShards(
                     sorter, static_cast<int>(begin), static_cast<int>(end),
                     missing, counts, addresses);
                 if (status.ok()) return;
                 std::lock_guard<std::mutex> lock(status_mutex);
                 if (first_failure.ok()) first_failure = status;
               });
  return first_failure;
}

Status TableImpl::FindOrInsert(Span<const Key> keys, Span<const Address> hints,
                               Span<const int32_t> counts,
                               Span<Address> addresses,
                               const Parallel& parallel) {
  const Status status = CheckSpans(keys, hints, counts, addresses);
  if (!status.ok()) return status;
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  SharedLock inserts(inserts_lock_);
  return Process(keys, hints, Missing::kInsert, counts, addresses, parallel);
}

Status TableImpl::Find(Span<const Key> keys, Span<const Address> hints,
                       Span<Address> addresses,
                       const Parallel& parallel) const {
  const Status status = CheckSpans(keys, hints, {}, addresses);
  if (!status.ok()) return status;
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  // Leaves missing keys alone, so nothing of the table changes.
  return const_cast<TableImpl*>(this)->Process(keys, hints, Missing::kLeave, {},
                                               addresses, parallel);
}

Status TableImpl::LookAhead(Span<const Key> keys, bool reserve,
                            Span<Address> hints, const Parallel& parallel) {
  const Status status = CheckSpans(keys, {}, {}, hints);
  if (!status.ok()) return status;
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  // A key that is never trained must not take the place of one that is.
  const bool may_reserve = reserve && !is_fixed();
  return Process(keys, {}, may_reserve ? Missing::kReserve : Missing::kLeave,
                 {}, hints, parallel);
}

Status TableImpl::AddressError(Address address, int64_t position) const {
  const RowIndex row = RowOf(address);
  const char* reason = "its row was evicted";
  if (NonceOf(address) != nonce_) {
    reason = "it was not handed out by this table";
  } else if (row >= rows_->capacity() || !rows_->IsVisible(row)) {
    reason = "it names no row";
  }
  return Status::InvalidArgument(
      "table '" + options_.name + "': illegal address " +
      std::to_string(address) + " at position " + std::to_string(position) +
      ": " + reason +
      "; an address is valid only in the process and for the table that "
      "handed it out");
}

Status TableImpl::Gather(Span<const Address> addresses,
                         const float* default_row, float* out,
                         const Parallel& parallel) const {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  if (is_fixed()) return WrongKind("a gather by address");
  SharedLock row_content(rows_lock_);
  const int dim = options_.dim;
  const bool is_short = dim <= kShortRow;
  const int64_t block_rows = is_short ? kShortRowsPerBlock : kRowsPerBlock;
  const RowMath& math = BestRowMath();
  const int64_t capacity = rows_->capacity();
  FirstError error;
  parallel.For(
      addresses.size(), kValidateCost + dim, [&](int64_t begin, int64_t end) {
        // Rows of the next block are on their way while one is copied.
        using Block = std::array<const float*, kRowsPerBlock>;
        Block blocks[2];
        const RowAccess access = *rows_;
        const auto resolve = [&](int64_t first, Block* rows) {
          const int64_t n = std::min(block_rows, end - first);
          for (int64_t i = 0; i < n; ++i) {
            const int64_t ahead = first + i + kVisibleAhead;
            if (ahead < end)
              PrefetchVisible(addresses[ahead], access, capacity);
            const Address address = addresses[first + i];
            if (address == kNoRow) {
              (*rows)[i] = nullptr;
            } else if (IsLegal(address, access, capacity)) {
              (*rows)[i] = access.Row(RowOf(address));
              if (is_short) __builtin_prefetch((*rows)[i], 0, 3);
            } else {
              error.Report(first + i);
              return false;
            }
          }
          return true;
        };
        if (!resolve(begin, &blocks[0])) return;
        int current = 0;
        for (int64_t first = begin; first < end; first += block_rows) {
          const int64_t next = first + block_rows;
          if (next < end && !resolve(next, &blocks[1 - current])) return;
          math.gather(blocks[current].data(), std::min(next, end) - first, dim,
                      default_row, out + first * dim);
          current = 1 - current;
        }
      });
  if (!error.any()) return Status::Ok();
  return AddressError(addresses[error.position()], error.position());
}

// Row pointers of an update (null for kNoRow and padding keys), all checked,
// and whether any address repeats. For the holder of the exclusive rows lock.
Status TableImpl::ResolveForUpdate(Span<const Address> addresses,
                                   const Parallel& parallel, float** rows,
                                   bool* repeated) const {
  const bool any_padding = !padding_keys_.empty();
  FirstError error;
  parallel.For(
      addresses.size(), kValidateCost, [&](int64_t begin, int64_t end) {
        const RowAccess access = *rows_;
        const int64_t capacity = rows_->capacity();
        for (int64_t i = begin; i < end; ++i) {
          const int64_t ahead = i + kVisibleAhead;
          if (ahead < end) PrefetchVisible(addresses[ahead], access, capacity);
          const Address address = addresses[i];
          if (address == kNoRow) {
            rows[i] = nullptr;
          } else if (IsLegal(address, access, capacity)) {
            const RowIndex row = RowOf(address);
            rows[i] =
                any_padding && access.IsFrozen(row) ? nullptr : access.Row(row);
          } else {
            error.Report(i);
            return;
          }
        }
      });
  if (error.any()) {
    return AddressError(addresses[error.position()], error.position());
  }
  bool again = false;
  const RowAccess access = *rows_;
  for (const Address address : addresses) {
    if (address != kNoRow) again |= access.TestAndMark(RowOf(address));
  }
  for (const Address address : addresses) {
    if (address != kNoRow) access.ClearMarks(RowOf(address));
  }
  *repeated = again;
  return Status::Ok();
}

Status TableImpl::EnsureSlots(const SlotLayout& slots) {
  UniqueLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  if (SameSlots(slots_, slots)) return Status::Ok();
  if (!slots_.optimizer.empty()) {
    return Status::FailedPrecondition(
        "table '" + options_.name + "' keeps the slots of " + Show(slots_) +
        " and cannot be updated by " + Show(slots) +
        "; use one optimizer per table");
  }
  const Status status = rows_->AddSlots(slots.initial_values);
  if (status.ok()) slots_ = slots;
  return status;
}

Status TableImpl::Apply(Span<const Address> addresses, const float* gradients,
                        const SlotLayout& slots, const Parallel& parallel,
                        int64_t cost_per_row,
                        const std::function<void(float* const*, const float*,
                                                 int64_t, int64_t)>& update) {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  if (is_fixed()) return WrongKind("an update by address");
  if (!slots.initial_values.empty() && !SameSlots(slots_, slots)) {
    layout.unlock();
    const Status status = EnsureSlots(slots);
    if (!status.ok()) return status;
    layout.lock();
    if (rows_ == nullptr) return ReleasedError();
  }
  UniqueLock row_content(rows_lock_);
  const int dim = options_.dim;
  std::vector<float*>& rows = ThreadRows();
  rows.resize(addresses.size());
  bool repeated = false;
  const Status status =
      ResolveForUpdate(addresses, parallel, rows.data(), &repeated);
  if (!status.ok()) return status;
  update_count_.fetch_add(1, std::memory_order_relaxed);
  // Only the owner of the slots knows a step: SGD in between does not age them.
  const int64_t step = slots.initial_values.empty() ? 0 : ++slot_steps_;

  std::vector<float> sums;
  if (repeated) {
    SumRepeated(addresses, gradients, dim, &rows, &sums);
    gradients = sums.data();
  }
  parallel.For(static_cast<int64_t>(rows.size()), cost_per_row,
               [&](int64_t begin, int64_t end) {
                 update(rows.data() + begin, gradients + begin * dim,
                        end - begin, step);
               });
  return Status::Ok();
}

Status TableImpl::ApplySgd(Span<const Address> addresses,
                           const float* gradients, const SgdParams& params,
                           const Parallel& parallel) {
  const int dim = options_.dim;
  return Apply(
      addresses, gradients, SlotLayout{}, parallel, kValidateCost + 2 * dim,
      [&](float* const* rows, const float* grads, int64_t n, int64_t /*step*/) {
        BestRowMath().sgd(rows, grads, n, dim, params.learning_rate,
                          params.weight_decay);
      });
}

Status TableImpl::ApplyLazyAdam(Span<const Address> addresses,
                                const float* gradients,
                                const LazyAdamParams& params,
                                const Parallel& parallel) {
  const int dim = options_.dim;
  return Apply(
      addresses, gradients, SlotLayout{"LazyAdam", {0.0f, 0.0f}}, parallel,
      kValidateCost + 6 * dim,
      [&](float* const* rows, const float* grads, int64_t n, int64_t step) {
        const double t = static_cast<double>(step);
        const double step_size =
            params.learning_rate *
            std::sqrt(1.0 - std::pow(static_cast<double>(params.beta2), t)) /
            (1.0 - std::pow(static_cast<double>(params.beta1), t));
        BestRowMath().lazy_adam(rows, grads, n, dim,
                                static_cast<float>(step_size), params.beta1,
                                params.beta2, params.epsilon);
      });
}

Status TableImpl::ApplyAdagrad(Span<const Address> addresses,
                               const float* gradients,
                               const AdagradParams& params,
                               const Parallel& parallel) {
  const int dim = options_.dim;
  return Apply(
      addresses, gradients,
      SlotLayout{"Adagrad", {params.initial_accumulator_value}}, parallel,
      kValidateCost + 4 * dim,
      [&](float* const* rows, const float* grads, int64_t n, int64_t /*step*/) {
        BestRowMath().adagrad(rows, grads, n, dim, params.learning_rate,
                              kAdagradEpsilon);
      });
}

Status TableImpl::ApplyFtrl(Span<const Address> addresses,
                            const float* gradients, const FtrlParams& params,
                            const Parallel& parallel) {
  if (!(params.learning_rate > 0)) {
    return Status::InvalidArgument(
        "table '" + options_.name +
        "': the learning_rate of Ftrl must be positive, got " +
        std::to_string(params.learning_rate));
  }
  const int dim = options_.dim;
  return Apply(
      addresses, gradients,
      SlotLayout{"Ftrl", {params.initial_accumulator_value, 0.0f}}, parallel,
      kValidateCost + 10 * dim,
      [&](float* const* rows, const float* grads, int64_t n, int64_t /*step*/) {
        BestRowMath().ftrl(rows, grads, n, dim, params.learning_rate,
                           params.learning_rate_power, params.l1, params.l2,
                           params.l2_shrinkage);
      });
}

Status TableImpl::Offsets(Span<const Address> addresses, Span<int64_t> offsets,
                          bool* all_initialized) const {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  if (!is_fixed()) return WrongKind("an offset");
  *all_initialized = true;
  for (int64_t i = 0; i < addresses.size(); ++i) {
    const Address address = addresses[i];
    if (address == kNoRow) {
      offsets[i] = -1;
      continue;
    }
    if (!IsLegal(address, *rows_, rows_->capacity())) {
      return AddressError(address, i);
    }
    offsets[i] = RowOf(address);
    *all_initialized &= rows_->IsInitialized(RowOf(address));
  }
  return Status::Ok();
}

Status TableImpl::InitializeRows(
    Span<const int64_t> offsets,
    const std::function<void(int64_t, const float*)>& write) {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  if (!is_fixed()) return WrongKind("an offset");
  std::vector<float> initial(options_.dim);
  for (const int64_t offset : offsets) {
    if (offset < 0 || offset >= rows_->capacity()) continue;
    const RowIndex row = static_cast<RowIndex>(offset);
    if (!rows_->IsVisible(row) || rows_->IsInitialized(row)) continue;
    initializer_.Fill(*rows_->KeyOf(row), initial.data());
    write(offset, initial.data());
    rows_->SetInitialized(row);
  }
  return Status::Ok();
}

Status TableImpl::TrainedPositions(Span<const int64_t> offsets,
                                   std::vector<int64_t>* positions) const {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  if (!is_fixed()) return WrongKind("an offset");
  positions->clear();
  const int64_t rows_ready = rows_->capacity();
  for (int64_t i = 0; i < offsets.size(); ++i) {
    const int64_t offset = offsets[i];
    if (offset < -1 || offset >= options_.fixed_capacity) {
      return Status::InvalidArgument(
          "table '" + options_.name + "': illegal offset " +
          std::to_string(offset) + " at position " + std::to_string(i) +
          ": it must be in [-1, " + std::to_string(options_.fixed_capacity) +
          ")");
    }
    const bool frozen = offset >= 0 && offset < rows_ready &&
                        rows_->IsFrozen(static_cast<RowIndex>(offset));
    if (offset >= 0 && !frozen) positions->push_back(i);
  }
  return Status::Ok();
}

void TableImpl::ForgetInitializedRows() {
  SharedLock layout(layout_lock_);
  if (rows_ != nullptr) rows_->ForgetInitialized();
}

Status TableImpl::Export(
    int64_t chunk_rows,
    const std::function<Status(const ExportChunk&)>& visit) const {
  if (chunk_rows < 1) {
    return Status::InvalidArgument("chunk_rows must be positive, got " +
                                   std::to_string(chunk_rows));
  }
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  // Training stands still, so that all is of one instant.
  UniqueLock inserts(inserts_lock_);
  SharedLock row_content(rows_lock_);
  const int64_t stride = rows_->stride();
  std::vector<Key> keys;
  std::vector<float> rows;
  std::vector<int64_t> counts;
  const auto flush = [&]() {
    if (keys.empty()) return Status::Ok();
    const Status status = visit(ExportChunk{keys, rows, counts});
    keys.clear();
    rows.clear();
    counts.clear();
    return status;
  };
  const int64_t end = std::min(rows_->capacity(), rows_->rows_allocated());
  for (int64_t r = 0; r < end; ++r) {
    const RowIndex row = static_cast<RowIndex>(r);
    if (!rows_->IsVisible(row)) continue;
    keys.push_back(*rows_->KeyOf(row));
    if (stride > 0) {
      const float* data = rows_->Row(row);
      rows.insert(rows.end(), data, data + stride);
    }
    if (options_.record_counts) {
      counts.push_back(rows_->CountOf(row)->load(std::memory_order_relaxed));
    }
    if (static_cast<int64_t>(keys.size()) == chunk_rows) {
      const Status status = flush();
      if (!status.ok()) return status;
    }
  }
  return flush();
}

MemoryUsage TableImpl::memory() const {
  MemoryUsage usage;
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return usage;
  for (const auto& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard->mutex);
    usage.index_bytes += shard->index.bytes();
  }
  usage.row_bytes = rows_->rows_allocated() * rows_->stride() *
                    static_cast<int64_t>(sizeof(float));
  usage.other_bytes = rows_->bytes_beside_rows();
  return usage;
}

void TableImpl::Release() {
  UniqueLock layout(layout_lock_);
  released_.store(true, std::memory_order_release);
  rows_.reset();
  shards_.clear();
  size_.store(0);
}

}  // namespace

Status Table::Create(TableOptions options, std::shared_ptr<Table>* table) {
  if (options.dim < 1 || options.dim > kMaxDim) {
    return Status::InvalidArgument(
        "table '" + options.name + "': dim must be in [1, " +
        std::to_string(kMaxDim) + "], got " + std::to_string(options.dim));
  }
  if (options.fixed_capacity < 0) {
    return Status::InvalidArgument(
        "table '" + options.name +
        "': fixed_capacity must not be negative, got " +
        std::to_string(options.fixed_capacity));
  }
  const InitializerOptions& initializer = options.initializer;
  const bool finite = std::isfinite(initializer.a) &&
                      std::isfinite(initializer.b) &&
                      std::isfinite(initializer.scale);
  const bool spreads = initializer.kind == InitializerKind::kNormal ||
                       initializer.kind == InitializerKind::kTruncatedNormal;
  if (!finite || (spreads && initializer.b < 0) ||
      (initializer.kind == InitializerKind::kUniform &&
       initializer.a > initializer.b)) {
    return Status::InvalidArgument(
        "table '" + options.name +
        "': the initializer's parameters must be "
        "finite, a standard deviation not negative and a range not empty; got "
        "a = " +
        std::to_string(initializer.a) +
        ", b = " + std::to_string(initializer.b) +
        ", scale = " + std::to_string(initializer.scale));
  }
  if (initializer.kind == InitializerKind::kPool &&
      (initializer.pool.empty() ||
       initializer.pool.size() % options.dim != 0)) {
    return Status::InvalidArgument(
        "table '" + options.name +
        "': the initializer's pool must hold rows of " +
        std::to_string(options.dim) + " values, got " +
        std::to_string(initializer.pool.size()) + " values");
  }
  auto created = std::make_shared<TableImpl>(std::move(options));
  const Status status = created->Init();
  if (status.ok()) *table = std::move(created);
  return status;
}

}  // namespace mxrec
