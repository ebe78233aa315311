#include "mxrec/table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <utility>

#include "hash.h"
#include "row_math.h"
#include "row_store.h"
#include "rw_lock.h"
#include "shard_index.h"

namespace mxrec {
namespace {

constexpr int kMaxDim = 8192;
// Below this many keys sorting them by shard costs more than it saves.
constexpr int64_t kMinSortedKeys = 2048;
constexpr int64_t kGroup = 16;          // keys whose cache misses overlap
constexpr int64_t kRowsPerBlock = 256;  // row pointers resolved at a time
// Rough costs in cycles, for the thread pool.
constexpr int64_t kProbeCost = 60;
constexpr int64_t kValidateCost = 15;
constexpr uint32_t kMinRun = 16;
constexpr uint32_t kMaxRun = 256;

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

struct KeyAt {
  Key key;
  uint32_t position;
};

// Positions of keys, sorted by shard.
struct Sorted {
  std::vector<KeyAt> keys;
  std::array<uint32_t, kShards + 1> start;
};

// Kept per thread: see Unique.
Sorted& ThreadSorted() {
  thread_local Sorted sorted;
  return sorted;
}

std::vector<uint32_t>& ThreadPositions() {
  thread_local std::vector<uint32_t> positions;
  return positions;
}

void SortByShard(Span<const Key> keys, const std::vector<uint32_t>& positions,
                 Sorted* sorted) {
  std::array<uint32_t, kShards + 1> next{};
  for (const uint32_t position : positions) {
    ++next[ShardOf(HashKey(keys[position])) + 1];
  }
  for (int s = 0; s < kShards; ++s) next[s + 1] += next[s];
  sorted->start = next;
  if (sorted->keys.size() < positions.size()) {
    sorted->keys.resize(positions.size());
  }
  for (const uint32_t position : positions) {
    const Key key = keys[position];
    sorted->keys[next[ShardOf(HashKey(key))]++] = {key, position};
  }
}

// The first error of a parallel loop, by position.
class FirstError {
 public:
  void Report(int64_t position) {
    int64_t seen = position_.load(std::memory_order_relaxed);
    while (position < seen &&
           !position_.compare_exchange_weak(seen, position)) {
    }
  }
  int64_t position() const { return position_.load(); }
  bool any() const { return position() != INT64_MAX; }

 private:
  std::atomic<int64_t> position_{INT64_MAX};
};

class TableImpl final : public Table {
 public:
  explicit TableImpl(TableOptions options)
      : options_(std::move(options)),
        initializer_(options_.initializer, options_.dim),
        nonce_(NewNonce()),
        rows_(
            new RowStore(options_.name, options_.dim, options_.record_counts)) {
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
  Status Export(
      int64_t chunk_rows,
      const std::function<Status(const ExportChunk&)>& visit) const override;

  int64_t size() const override {
    return size_.load(std::memory_order_relaxed);
  }
  int64_t capacity() const override {
    SharedLock layout(layout_lock_);
    return rows_ == nullptr ? 0 : rows_->capacity();
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
  bool released() const override {
    SharedLock layout(layout_lock_);
    return rows_ == nullptr;
  }

 private:
  // Aligned, so that two shards' mutexes never share a cache line.
  struct alignas(64) Shard {
    explicit Shard(int shard) : index(shard) {}
    std::mutex mutex;  // guards all of the shard
    ShardIndex index;
    RowIndex next_row = 0;  // of the run it is filling
    uint32_t rows_left = 0;
  };

  enum class Missing { kLeave, kReserve, kInsert };

  Status ReleasedError() const {
    return Status::FailedPrecondition("table '" + options_.name +
                                      "' was released by "
                                      "terminate_config_initializer");
  }

  bool HintHolds(Address hint, Key key) const;
  Address AddressOf(RowIndex row) const {
    return MakeAddress(nonce_, rows_->GenerationOf(row), row);
  }
  void AddCount(RowIndex row, Span<const int32_t> counts,
                int64_t position) const;
  Status AllocateRow(Shard* shard, RowIndex* row);
  Status InsertKey(Shard* shard, uint64_t hash, Key key, bool visible,
                   RowIndex* row);
  Status ProcessRange(Shard* shard, const KeyAt* begin, int64_t n,
                      Missing missing, Span<const int32_t> counts,
                      Span<Address> addresses);
  Status ProcessPositions(Span<const Key> keys,
                          const std::vector<uint32_t>& positions,
                          Missing missing, Span<const int32_t> counts,
                          Span<Address> addresses, const Parallel& parallel);

  const char* Illegal(Address address) const;
  Status AddressError(Address address, int64_t position) const;
  Status ResolveForUpdate(Span<const Address> addresses,
                          std::vector<float*>* rows, bool* repeated) const;
  Status Apply(Span<const Address> addresses, const float* gradients,
               const SlotLayout& slots, const Parallel& parallel,
               int64_t cost_per_row,
               const std::function<void(float* const*, const float*, int64_t,
                                        int64_t)>& update);
  Status EnsureSlots(const SlotLayout& slots);

  const TableOptions options_;
  const Initializer initializer_;
  const uint32_t nonce_;

  // Order of acquisition: layout, rows, one shard.
  mutable RwLock layout_lock_;      // exclusive: rows_ replaced, or slots added
  mutable RwLock rows_lock_;        // exclusive: row content and marks change
  std::unique_ptr<RowStore> rows_;  // null once released
  SlotLayout slots_;                // guarded by layout_lock_
  std::vector<std::unique_ptr<Shard>> shards_;
  std::atomic<int64_t> size_{0};
  std::atomic<int64_t> update_count_{0};
};

bool TableImpl::HintHolds(Address hint, Key key) const {
  if (NonceOf(hint) != nonce_) return false;
  const RowIndex row = RowOf(hint);
  if (row >= rows_->capacity()) return false;
  // Visibility first: it is what publishes the row's key to this thread. A
  // reserved row is left to the search, which makes it visible.
  return GenerationOf(hint) == rows_->GenerationOf(row) &&
         rows_->IsVisible(row) && *rows_->KeyOf(row) == key;
}

void TableImpl::AddCount(RowIndex row, Span<const int32_t> counts,
                         int64_t position) const {
  if (!options_.record_counts) return;
  const int64_t count = counts.empty() ? 1 : counts[position];
  rows_->CountOf(row)->fetch_add(count, std::memory_order_relaxed);
}

// A shard takes rows in runs, so that the keys of one shard, which a batch
// visits together, lie together.
Status TableImpl::AllocateRow(Shard* shard, RowIndex* row) {
  if (shard->rows_left == 0) {
    uint32_t run = kMinRun;
    while (run < kMaxRun && run * 16 < shard->index.size()) run *= 2;
    const Status status = rows_->Allocate(run, &shard->next_row);
    if (!status.ok()) return status;
    shard->rows_left = run;
  }
  *row = shard->next_row++;
  --shard->rows_left;
  return Status::Ok();
}

Status TableImpl::InsertKey(Shard* shard, uint64_t hash, Key key, bool visible,
                            RowIndex* row) {
  if (!shard->index.Reserve(*rows_)) {
    return Status::ResourceExhausted("table '" + options_.name +
                                     "': no memory to index more than " +
                                     std::to_string(size()) + " keys");
  }
  const Status status = AllocateRow(shard, row);
  if (!status.ok()) return status;
  float* data = rows_->Row(*row);
  initializer_.Fill(key, data);
  float* slot = data + options_.dim;
  for (const float initial : slots_.initial_values) {
    slot = std::fill_n(slot, options_.dim, initial);
  }
  *rows_->KeyOf(*row) = key;
  shard->index.Insert(hash, *row);
  if (visible) {
    rows_->MakeVisible(*row);
    size_.fetch_add(1, std::memory_order_relaxed);
  }
  return Status::Ok();
}

// Keys of one shard. Their cache misses overlap within a group: first all
// buckets, then all keys, then the work.
Status TableImpl::ProcessRange(Shard* shard, const KeyAt* begin, int64_t n,
                               Missing missing, Span<const int32_t> counts,
                               Span<Address> addresses) {
  std::lock_guard<std::mutex> lock(shard->mutex);
  std::array<uint64_t, kGroup> hashes;
  for (int64_t first = 0; first < n; first += kGroup) {
    const int64_t group = std::min(kGroup, n - first);
    const KeyAt* keys = begin + first;
    for (int64_t i = 0; i < group; ++i) {
      hashes[i] = HashKey(keys[i].key);
      shard->index.PrefetchBucket(hashes[i]);
    }
    for (int64_t i = 0; i < group; ++i) {
      shard->index.PrefetchKey(hashes[i], *rows_);
    }
    for (int64_t i = 0; i < group; ++i) {
      const uint32_t position = keys[i].position;
      RowIndex row = 0;
      if (!shard->index.Find(hashes[i], keys[i].key, *rows_, &row)) {
        if (missing == Missing::kLeave) {
          addresses[position] = kNoRow;
          continue;
        }
        const Status status = InsertKey(shard, hashes[i], keys[i].key,
                                        missing == Missing::kInsert, &row);
        if (!status.ok()) return status;
      } else if (missing == Missing::kInsert) {
        if (rows_->MakeVisible(row)) {
          size_.fetch_add(1, std::memory_order_relaxed);
        }
      } else if (missing == Missing::kLeave && !rows_->IsVisible(row)) {
        addresses[position] = kNoRow;
        continue;
      }
      addresses[position] = AddressOf(row);
      if (missing == Missing::kInsert) AddCount(row, counts, position);
    }
  }
  return Status::Ok();
}

Status TableImpl::ProcessPositions(Span<const Key> keys,
                                   const std::vector<uint32_t>& positions,
                                   Missing missing, Span<const int32_t> counts,
                                   Span<Address> addresses,
                                   const Parallel& parallel) {
  const int64_t n = static_cast<int64_t>(positions.size());
  if (n < kMinSortedKeys) {
    for (const uint32_t position : positions) {
      const KeyAt one = {keys[position], position};
      const Status status =
          ProcessRange(shards_[ShardOf(HashKey(one.key))].get(), &one, 1,
                       missing, counts, addresses);
      if (!status.ok()) return status;
    }
    return Status::Ok();
  }
  Sorted& sorted = ThreadSorted();
  SortByShard(keys, positions, &sorted);
  std::mutex status_mutex;
  Status first_failure;
  parallel.For(
      kShards, (n / kShards + 1) * kProbeCost, [&](int64_t begin, int64_t end) {
        for (int64_t s = begin; s < end; ++s) {
          const int64_t count = sorted.start[s + 1] - sorted.start[s];
          if (count == 0) continue;
          const Status status =
              ProcessRange(shards_[s].get(), &sorted.keys[sorted.start[s]],
                           count, missing, counts, addresses);
          if (status.ok()) continue;
          std::lock_guard<std::mutex> lock(status_mutex);
          if (first_failure.ok()) first_failure = status;
          return;
        }
      });
  return first_failure;
}

Status TableImpl::FindOrInsert(Span<const Key> keys, Span<const Address> hints,
                               Span<const int32_t> counts,
                               Span<Address> addresses,
                               const Parallel& parallel) {
  for (int64_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0) {
      return Status::InvalidArgument(
          "table '" + options_.name + "': counts must not be negative, got " +
          std::to_string(counts[i]) + " at position " + std::to_string(i));
    }
  }
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  std::vector<uint32_t>& positions = ThreadPositions();
  positions.clear();
  for (int64_t i = 0; i < keys.size(); ++i) {
    if (!hints.empty() && HintHolds(hints[i], keys[i])) {
      addresses[i] = hints[i];
      AddCount(RowOf(hints[i]), counts, i);
    } else {
      positions.push_back(static_cast<uint32_t>(i));
    }
  }
  return ProcessPositions(keys, positions, Missing::kInsert, counts, addresses,
                          parallel);
}

Status TableImpl::Find(Span<const Key> keys, Span<const Address> hints,
                       Span<Address> addresses,
                       const Parallel& parallel) const {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  std::vector<uint32_t>& positions = ThreadPositions();
  positions.clear();
  for (int64_t i = 0; i < keys.size(); ++i) {
    if (!hints.empty() && HintHolds(hints[i], keys[i])) {
      addresses[i] = hints[i];
    } else {
      positions.push_back(static_cast<uint32_t>(i));
    }
  }
  // Leaves missing keys alone, so nothing of the table changes.
  return const_cast<TableImpl*>(this)->ProcessPositions(
      keys, positions, Missing::kLeave, {}, addresses, parallel);
}

Status TableImpl::LookAhead(Span<const Key> keys, bool reserve,
                            Span<Address> hints, const Parallel& parallel) {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  std::vector<uint32_t>& positions = ThreadPositions();
  positions.resize(keys.size());
  for (int64_t i = 0; i < keys.size(); ++i) {
    positions[i] = static_cast<uint32_t>(i);
  }
  return ProcessPositions(keys, positions,
                          reserve ? Missing::kReserve : Missing::kLeave, {},
                          hints, parallel);
}

// Null if the address is legal and not kNoRow; else the reason.
const char* TableImpl::Illegal(Address address) const {
  if (NonceOf(address) != nonce_) return "it was not handed out by this table";
  const RowIndex row = RowOf(address);
  if (row >= rows_->capacity() || !rows_->IsVisible(row)) {
    return "it names no row";
  }
  if (GenerationOf(address) != rows_->GenerationOf(row)) {
    return "its row was evicted";
  }
  return nullptr;
}

Status TableImpl::AddressError(Address address, int64_t position) const {
  const char* reason = Illegal(address);
  return Status::InvalidArgument(
      "table '" + options_.name + "': illegal address " +
      std::to_string(address) + " at position " + std::to_string(position) +
      ": " + (reason == nullptr ? "it names no row" : reason) +
      "; an address is valid only in the process and for the table that "
      "handed it out");
}

Status TableImpl::Gather(Span<const Address> addresses,
                         const float* default_row, float* out,
                         const Parallel& parallel) const {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  SharedLock row_content(rows_lock_);
  const int dim = options_.dim;
  const RowMath& math = BestRowMath();
  FirstError error;
  parallel.For(
      addresses.size(), kValidateCost + dim, [&](int64_t begin, int64_t end) {
        std::array<const float*, kRowsPerBlock> rows;
        for (int64_t first = begin; first < end; first += kRowsPerBlock) {
          const int64_t n = std::min(kRowsPerBlock, end - first);
          for (int64_t i = 0; i < n; ++i) {
            const Address address = addresses[first + i];
            if (address == kNoRow) {
              rows[i] = nullptr;
            } else if (Illegal(address) == nullptr) {
              rows[i] = rows_->Row(RowOf(address));
            } else {
              error.Report(first + i);
              return;
            }
          }
          math.gather(rows.data(), n, dim, default_row, out + first * dim);
        }
      });
  if (!error.any()) return Status::Ok();
  return AddressError(addresses[error.position()], error.position());
}

// Row pointers of an update (null for kNoRow), all checked, and whether any
// address repeats. Holds for the exclusive rows lock.
Status TableImpl::ResolveForUpdate(Span<const Address> addresses,
                                   std::vector<float*>* rows,
                                   bool* repeated) const {
  rows->resize(addresses.size());
  *repeated = false;
  int64_t marked = 0;
  Status status;
  for (; marked < addresses.size(); ++marked) {
    const Address address = addresses[marked];
    if (address == kNoRow) {
      (*rows)[marked] = nullptr;
      continue;
    }
    if (Illegal(address) != nullptr) {
      status = AddressError(address, marked);
      break;
    }
    const RowIndex row = RowOf(address);
    (*rows)[marked] = rows_->Row(row);
    *repeated |= rows_->TestAndMark(row);
  }
  for (int64_t i = 0; i < marked; ++i) {
    if (addresses[i] != kNoRow) rows_->ClearMarks(RowOf(addresses[i]));
  }
  return status;
}

Status TableImpl::EnsureSlots(const SlotLayout& slots) {
  UniqueLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  if (slots_.optimizer == slots.optimizer) return Status::Ok();
  if (!slots_.optimizer.empty()) {
    return Status::FailedPrecondition(
        "table '" + options_.name + "' keeps the slots of " + slots_.optimizer +
        " and cannot be updated by " + slots.optimizer +
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
  if (!slots.initial_values.empty() && slots_.optimizer != slots.optimizer) {
    layout.unlock();
    const Status status = EnsureSlots(slots);
    if (!status.ok()) return status;
    layout.lock();
    if (rows_ == nullptr) return ReleasedError();
  }
  UniqueLock row_content(rows_lock_);
  const int dim = options_.dim;
  std::vector<float*> rows;
  bool repeated = false;
  const Status status = ResolveForUpdate(addresses, &rows, &repeated);
  if (!status.ok()) return status;
  const int64_t step =
      update_count_.fetch_add(1, std::memory_order_relaxed) + 1;

  std::vector<float> summed;
  if (repeated) {
    // Positions by row, each row's in their order; its first takes the sum.
    std::vector<uint32_t> order(rows.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<uint32_t>(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return rows[a] < rows[b]; });
    summed.assign(gradients, gradients + addresses.size() * dim);
    size_t first = 0;
    for (size_t i = 1; i < order.size(); ++i) {
      if (rows[order[i]] == nullptr || rows[order[i]] != rows[order[first]]) {
        first = i;
        continue;
      }
      float* to = &summed[static_cast<size_t>(order[first]) * dim];
      const float* from = gradients + static_cast<int64_t>(order[i]) * dim;
      for (int j = 0; j < dim; ++j) to[j] += from[j];
      rows[order[i]] = nullptr;
    }
    gradients = summed.data();
  }
  parallel.For(addresses.size(), cost_per_row, [&](int64_t begin, int64_t end) {
    update(rows.data() + begin, gradients + begin * dim, end - begin, step);
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

Status TableImpl::Export(
    int64_t chunk_rows,
    const std::function<Status(const ExportChunk&)>& visit) const {
  if (chunk_rows < 1) {
    return Status::InvalidArgument("chunk_rows must be positive, got " +
                                   std::to_string(chunk_rows));
  }
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
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
    const float* data = rows_->Row(row);
    rows.insert(rows.end(), data, data + stride);
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
  const InitializerOptions& initializer = options.initializer;
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
