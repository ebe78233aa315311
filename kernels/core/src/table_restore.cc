// Restoring a table from files.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "hash.h"
#include "mxrec/saving.h"
#include "table_impl.h"

namespace mxrec {
namespace {

constexpr int64_t kAhead = 16;  // keys whose bucket is fetched

using Readers = std::vector<std::unique_ptr<TableFileReader>>;

bool SameSlots(const Manifest& manifest, const SlotLayout& slots) {
  return manifest.optimizer == slots.optimizer &&
         manifest.slot_initials == slots.initial_values;
}

std::string ShowSlots(const std::string& optimizer,
                      const std::vector<float>& initials) {
  if (optimizer.empty()) return "no slots";
  std::string text = "slots of " + optimizer + " (initial values";
  for (const float value : initials) text += " " + std::to_string(value);
  return text + ")";
}

int ColumnOf(const Manifest& manifest, BlockKind kind, const char* name) {
  const auto columns = manifest.columns.find(kind);
  if (columns == manifest.columns.end()) return -1;
  for (size_t i = 0; i < columns->second.size(); ++i) {
    if (columns->second[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

Status OpenAll(const RestoreRequest& request, Readers* readers) {
  for (const SavedFile& file : request.saved.files) {
    std::unique_ptr<TableFileReader> reader;
    const Status status =
        TableFileReader::Create(request.prefix + file.suffix, &file, &reader);
    if (!status.ok()) return status;
    readers->push_back(std::move(reader));
  }
  return Status::Ok();
}

}  // namespace

int PartOf(Key key, int parts) {
  return static_cast<int>(HashKey(key) % static_cast<uint64_t>(parts));
}

// Puts the keys of files into a table that is held exclusively, newest file
// first: a key that is there already, or that a newer file calls evicted, is
// stale. Rows are the same whatever the number of threads.
class TableImpl::Filler {
 public:
  Filler(TableImpl* table, const RestoreRequest& request)
      : table_(table),
        request_(request),
        initials_(table->is_fixed() ? request.slots.initial_values
                                    : table->slots_.initial_values),
        stride_(table->options_.dim *
                (1 + static_cast<int64_t>(initials_.size()))) {}

  Status Add(TableFileReader* reader);

  // There are older files, which may say something else of candidates.
  void KeepHistory() { keeps_history_ = true; }
  bool has_times() const { return times_column_ >= 0; }
  int64_t added() const { return added_; }
  int64_t skipped() const { return skipped_; }

 private:
  class Thread;

  Status NoMemoryToIndex() const {
    return Status::ResourceExhausted(
        "table '" + table_->options_.name + "': no memory to index more than " +
        std::to_string(added_.load(std::memory_order_relaxed)) + " keys");
  }
  Status Insert(Span<const Key> keys, std::vector<int64_t>* taken,
                std::vector<RowIndex>* rows);
  void InsertRow(Shard* shard, uint64_t hash, Key key, RowIndex row);
  Status AddHistory(const Block& block);
  void Finish(const Block& block, Span<const int64_t> taken,
              Span<const RowIndex> rows);

  TableImpl* const table_;
  const RestoreRequest& request_;
  // Slots of rows as they are stored, and values of such a row.
  const std::vector<float>& initials_;
  const int64_t stride_;
  bool keeps_history_ = false;
  bool is_first_ = true;
  std::unordered_set<Key> evicted_;
  std::unordered_set<Key> settled_;  // candidates or none, by a newer file

  // Of the file that is being read.
  int keys_column_ = 0;
  int counts_column_ = -1;
  int times_column_ = -1;
  int rows_column_ = 0;
  int64_t file_stride_ = 0;
  int64_t copied_ = 0;     // values of a row that come from the file
  bool in_place_ = false;  // rows are read to where they stay
  std::vector<Key> file_evicted_;
  std::vector<Key> file_history_;

  std::atomic<int64_t> added_{0};
  int64_t skipped_ = 0;
};

// What one thread does with blocks. Most tables come from one file, all of
// whose keys are new: their rows are read to where they stay, and inserted in
// any order. Else rows are given, in the order of the file, to those that are
// wanted.
class TableImpl::Filler::Thread final : public BlockVisitor {
 public:
  explicit Thread(Filler* filler) : filler_(filler), table_(filler->table_) {}

  Status Place(BlockKind kind, int64_t size, BlockPlan* plan) override {
    plan->in_turn = kind != BlockKind::kRows || !filler_->in_place_;
    if (plan->in_turn || size == 0) return Status::Ok();
    const Status status =
        table_->rows_->Allocate(static_cast<uint32_t>(size), &first_row_);
    if (!status.ok()) return status;
    plan->column = filler_->rows_column_;
    const RowAccess& access = *table_->rows_;
    const int64_t row_bytes =
        filler_->stride_ * static_cast<int64_t>(sizeof(float));
    for (int64_t i = 0; i < size;) {
      const RowIndex row = first_row_ + static_cast<RowIndex>(i);
      const int64_t rows = std::min(size - i, access.RowsInARow(row));
      plan->pieces.push_back(
          {reinterpret_cast<char*>(access.Row(row)), rows * row_bytes});
      i += rows;
    }
    return status;
  }

  Status Take(const Block& block) override {
    if (block.kind == BlockKind::kHistory) return filler_->AddHistory(block);
    if (block.kind == BlockKind::kEvicted) {
      const Key* keys = block.column<Key>(0);
      std::vector<Key>& evicted = filler_->file_evicted_;
      evicted.insert(evicted.end(), keys, keys + block.size);
      return Status::Ok();
    }
    if (block.kind != BlockKind::kRows) return Status::Ok();
    return filler_->Insert(
        {block.column<Key>(filler_->keys_column_), block.size}, &taken_,
        &rows_);
  }

  Status Use(const Block& block) override {
    if (block.kind != BlockKind::kRows) return Status::Ok();
    if (!filler_->in_place_) {
      Copy(block);
    } else {
      const Status status =
          InsertInPlace({block.column<Key>(filler_->keys_column_), block.size});
      if (!status.ok()) return status;
    }
    filler_->Finish(block, taken_, rows_);
    return Status::Ok();
  }

 private:
  Status InsertInPlace(Span<const Key> keys) {
    const RowAccess access = *table_->rows_;
    const auto shard_of = [this](uint64_t hash) {
      return table_->shards_[ShardOf(hash)].get();
    };
    taken_.clear();
    rows_.clear();
    for (int64_t i = 0; i < keys.size(); ++i) {
      if (i + kAhead < keys.size()) {
        const uint64_t ahead = HashKey(keys[i + kAhead]);
        shard_of(ahead)->index.PrefetchBucket(ahead);
      }
      const uint64_t hash = HashKey(keys[i]);
      Shard* const shard = shard_of(hash);
      const RowIndex row = first_row_ + static_cast<RowIndex>(i);
      *access.KeyOf(row) = keys[i];
      std::lock_guard<std::mutex> lock(shard->mutex);
      // A file has a key once; the row of a second one would be left unused.
      RowIndex other = 0;
      if (shard->index.Find(hash, keys[i], access, &other)) continue;
      if (!shard->index.Reserve(access)) return filler_->NoMemoryToIndex();
      filler_->InsertRow(shard, hash, keys[i], row);
      taken_.push_back(i);
      rows_.push_back(row);
    }
    return Status::Ok();
  }

  void Copy(const Block& block) {
    const RowAccess access = *table_->rows_;
    const bool fixed = table_->is_fixed();
    const int64_t dim = table_->options_.dim;
    const int64_t stride = filler_->stride_;
    const int64_t copied = filler_->copied_;
    const float* const from = block.column<float>(filler_->rows_column_);
    if (fixed) buffer_.resize(rows_.size() * stride);
    for (size_t i = 0; i < rows_.size(); ++i) {
      float* const to =
          fixed ? buffer_.data() + i * stride : access.Row(rows_[i]);
      std::memcpy(to, from + taken_[i] * filler_->file_stride_,
                  copied * sizeof(float));
      for (int64_t at = copied; at < stride; at += dim) {
        std::fill_n(to + at, dim, filler_->initials_[at / dim - 1]);
      }
    }
    if (fixed && !rows_.empty()) {
      filler_->request_.write_rows(rows_, buffer_.data());
    }
  }

  Filler* const filler_;
  TableImpl* const table_;
  RowIndex first_row_ = 0;  // of a block that is read in place
  // Of the keys that are taken: their positions in the block, and their rows.
  std::vector<int64_t> taken_;
  std::vector<RowIndex> rows_;
  std::vector<float> buffer_;
};

Status TableImpl::Filler::Add(TableFileReader* reader) {
  const Manifest& manifest = reader->manifest();
  keys_column_ = ColumnOf(manifest, BlockKind::kRows, "keys");
  counts_column_ = ColumnOf(manifest, BlockKind::kRows, "counts");
  times_column_ = ColumnOf(manifest, BlockKind::kRows, "times");
  rows_column_ = ColumnOf(manifest, BlockKind::kRows, "rows");
  file_stride_ = manifest.stride();
  // Slots of the file go along only if they are those of the table.
  copied_ = request_.with_slots && file_stride_ == stride_
                ? stride_
                : table_->options_.dim;
  in_place_ = is_first_ && request_.parts == 1 && !table_->is_fixed() &&
              copied_ == stride_ && file_stride_ == stride_;
  is_first_ = false;
  std::vector<Thread> threads(
      static_cast<size_t>(reader->Threads(request_.threads)), Thread(this));
  std::vector<BlockVisitor*> visitors;
  for (Thread& thread : threads) visitors.push_back(&thread);
  const Status status = reader->Read(visitors);
  evicted_.insert(file_evicted_.begin(), file_evicted_.end());
  settled_.insert(file_history_.begin(), file_history_.end());
  file_evicted_.clear();
  file_history_.clear();
  return status;
}

// Gives rows to those of the keys that are wanted and missing; `taken` has
// their positions.
Status TableImpl::Filler::Insert(Span<const Key> keys,
                                 std::vector<int64_t>* taken,
                                 std::vector<RowIndex>* rows) {
  taken->clear();
  rows->clear();
  for (int64_t i = 0; i < keys.size(); ++i) {
    if (request_.parts > 1 &&
        PartOf(keys[i], request_.parts) != request_.part) {
      ++skipped_;
      continue;
    }
    if (!evicted_.empty() && evicted_.count(keys[i]) > 0) continue;
    taken->push_back(i);
  }
  const int64_t n = static_cast<int64_t>(taken->size());
  int64_t kept = 0;
  const auto shard_of = [&](int64_t i) -> std::pair<uint64_t, Shard*> {
    const uint64_t hash = HashKey(keys[(*taken)[i]]);
    return {hash, table_->shards_[ShardOf(hash)].get()};
  };
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const auto ahead = shard_of(i + kAhead);
      ahead.second->index.PrefetchBucket(ahead.first);
    }
    const auto at = shard_of(i);
    const Key key = keys[(*taken)[i]];
    RowIndex row = 0;
    if (at.second->index.Find(at.first, key, *table_->rows_, &row)) continue;
    if (!at.second->index.Reserve(*table_->rows_)) return NoMemoryToIndex();
    const Status status = table_->rows_->Allocate(1, &row);
    if (!status.ok()) return status;
    *table_->rows_->KeyOf(row) = key;
    InsertRow(at.second, at.first, key, row);
    rows->push_back(row);
    (*taken)[kept++] = (*taken)[i];
  }
  taken->resize(kept);
  return Status::Ok();
}

// A key that is both, in whatever order, has its row.
void TableImpl::Filler::InsertRow(Shard* shard, uint64_t hash, Key key,
                                  RowIndex row) {
  shard->index.Insert(hash, row);
  Candidates::Entry* const entry = shard->candidates.Find(hash, key);
  if (entry == nullptr) return;
  table_->Uncount(key, entry->count);
  shard->candidates.Erase(entry);
}

Status TableImpl::Filler::AddHistory(const Block& block) {
  const auto& admission = table_->options_.admission;
  if (!admission.admits()) return Status::Ok();
  const Key* const keys = block.column<Key>(0);
  const int64_t* const counts = block.column<int64_t>(1);
  const int64_t* const times = block.column<int64_t>(2);
  for (int64_t i = 0; i < block.size; ++i) {
    const Key key = keys[i];
    if (request_.parts > 1 && PartOf(key, request_.parts) != request_.part) {
      continue;
    }
    if (keeps_history_) file_history_.push_back(key);
    if (evicted_.count(key) > 0 || settled_.count(key) > 0) continue;
    const uint64_t hash = HashKey(key);
    Shard* const shard = table_->shards_[ShardOf(hash)].get();
    // Rows may be put in place meanwhile.
    std::lock_guard<std::mutex> lock(shard->mutex);
    RowIndex row = 0;
    if (counts[i] < 0 || shard->index.Find(hash, key, *table_->rows_, &row)) {
      continue;
    }
    Candidates::Entry* const entry = shard->candidates.FindOrAdd(hash, key);
    entry->count = counts[i];
    entry->time = times[i];
    if (admission.shared_counts != nullptr) {
      admission.shared_counts->Add(key, counts[i]);
    }
  }
  return Status::Ok();
}

// All of the rows but their values, and makes them visible.
void TableImpl::Filler::Finish(const Block& block, Span<const int64_t> taken,
                               Span<const RowIndex> rows) {
  const RowAccess access = *table_->rows_;
  const AdmissionOptions& admission = table_->options_.admission;
  const Key* const keys = block.column<Key>(keys_column_);
  if (table_->options_.record_counts) {
    const int64_t* const counts =
        counts_column_ < 0 ? nullptr : block.column<int64_t>(counts_column_);
    for (int64_t i = 0; i < rows.size(); ++i) {
      const int64_t count = counts == nullptr ? 0 : counts[taken[i]];
      access.CountOf(rows[i])->store(count, std::memory_order_relaxed);
      if (admission.shared_counts != nullptr) {
        admission.shared_counts->Add(keys[taken[i]], count);
      }
    }
  }
  if (admission.record_times) {
    const int64_t* const times =
        times_column_ < 0 ? nullptr : block.column<int64_t>(times_column_);
    for (int64_t i = 0; i < rows.size(); ++i) {
      access.TimeOf(rows[i])->store(times == nullptr ? 0 : times[taken[i]],
                                    std::memory_order_relaxed);
    }
  }
  if (!table_->padding_keys_.empty()) {
    for (int64_t i = 0; i < rows.size(); ++i) {
      if (table_->padding_keys_.count(keys[taken[i]]) > 0) {
        access.Freeze(rows[i]);
      }
    }
  }
  if (table_->is_fixed()) {
    for (const RowIndex row : rows) access.SetInitialized(row);
  }
  access.MakeAllVisible(rows);
  added_.fetch_add(rows.size(), std::memory_order_relaxed);
}

// That the files are of a table like this one. Nothing is changed.
Status TableImpl::CheckSaved(const RestoreRequest& request,
                             const Manifest& manifest) const {
  const std::string who = "table '" + options_.name + "': '" + request.prefix +
                          "' holds table '" + manifest.table + "' ";
  if (manifest.dim != options_.dim) {
    return Status::InvalidArgument(
        who + "of dim " + std::to_string(manifest.dim) + ", expected dim " +
        std::to_string(options_.dim) + "; create the table with that dim");
  }
  if (manifest.key_dtype != request.key_dtype) {
    return Status::InvalidArgument(who + "with key_dtype " +
                                   manifest.key_dtype + ", expected " +
                                   request.key_dtype);
  }
  const auto differ = [&](const SlotLayout& slots) {
    return request.with_slots && !manifest.optimizer.empty() &&
           !slots.optimizer.empty() && !SameSlots(manifest, slots);
  };
  if (!is_fixed() && differ(slots_)) {
    return Status::InvalidArgument(
        who + "with " + ShowSlots(manifest.optimizer, manifest.slot_initials) +
        ", but the table has " +
        ShowSlots(slots_.optimizer, slots_.initial_values) +
        "; train it with the same optimizer");
  }
  if (differ(request.slots)) {
    return Status::InvalidArgument(
        who + "with " + ShowSlots(manifest.optimizer, manifest.slot_initials) +
        ", but the table " + (is_fixed() ? "has " : "is trained here with ") +
        ShowSlots(request.slots.optimizer, request.slots.initial_values) +
        "; train it with the same optimizer, or take the rows alone by a warm "
        "start");
  }
  if (is_fixed() && request.parts == 1 &&
      manifest.size > options_.fixed_capacity) {
    return Status::ResourceExhausted(
        who + "with " + std::to_string(manifest.size) +
        " keys, more than its capacity " +
        std::to_string(options_.fixed_capacity) +
        "; create it with a larger device_vocabulary_size, or let it grow "
        "with init(use_dynamic_expansion=True)");
  }
  for (const char* column : {"keys", "rows"}) {
    if (ColumnOf(manifest, BlockKind::kRows, column) < 0) {
      return Status::DataLoss(who + "without " + column);
    }
  }
  for (const Column& column : manifest.columns.at(BlockKind::kRows)) {
    const bool is_rows = column.name == "rows";
    const int64_t width = is_rows ? manifest.stride() : 1;
    if (column.width == width &&
        column.dtype == (is_rows ? "float32" : "int64")) {
      continue;
    }
    if (!is_rows && column.name != "keys" && column.name != "counts" &&
        column.name != "times") {
      continue;
    }
    return Status::DataLoss(who + "with " + column.name + " of " +
                            std::to_string(column.width) + " " + column.dtype +
                            ", expected " + std::to_string(width));
  }
  return Status::Ok();
}

// Takes back what the table has added to counts of several.
void TableImpl::UncountAll() {
  if (options_.admission.shared_counts == nullptr) return;
  const int64_t rows = std::min(rows_->rows_allocated(), rows_->capacity());
  for (int64_t r = 0; r < rows; ++r) {
    const RowIndex row = static_cast<RowIndex>(r);
    if (!rows_->IsVisible(row)) continue;
    Uncount(*rows_->KeyOf(row),
            rows_->CountOf(row)->load(std::memory_order_relaxed));
  }
  for (const auto& shard : shards_) {
    shard->candidates.ForEach([this](const Candidates::Entry& entry) {
      Uncount(entry.key, entry.count);
    });
  }
}

// For the holder of the mutex of evictions and the exclusive layout lock.
Status TableImpl::ResetContent(const SlotLayout& slots) {
  auto fresh = std::make_unique<RowStore>(
      options_.name, is_fixed() ? 0 : options_.dim, options_.record_counts,
      options_.admission.record_times, options_.fixed_capacity);
  Status status = fresh->Init();
  if (status.ok() && !is_fixed() && !slots.initial_values.empty()) {
    status = fresh->AddSlots(slots.initial_values);
  }
  if (!status.ok()) return status;
  UncountAll();
  rows_ = std::move(fresh);
  for (int s = 0; s < kShards; ++s) shards_[s] = std::make_unique<Shard>(s);
  if (!is_fixed()) slots_ = slots;
  size_.store(0, std::memory_order_relaxed);
  freed_ = FreedRows();
  rows_waiting_.store(0, std::memory_order_relaxed);
  rows_ready_.store(0, std::memory_order_relaxed);
  lacks_rows_.store(false, std::memory_order_relaxed);
  oldest_waiting_.store(UINT64_MAX, std::memory_order_relaxed);
  sweep_ = Sweep();
  LogErasedKeys(false);
  // The next delta has nothing to build on.
  tracker_.reset();
  chain_ = next_chain_ = SavedChain{};
  // Addresses of before lead nowhere now.
  nonce_ = NewNonce();
  return status;
}

Status TableImpl::Clear() {
  if (is_fixed()) return WrongKind("clearing");
  std::lock_guard<std::mutex> no_saving(saving_mutex_);
  std::lock_guard<std::mutex> no_eviction(evict_mutex_);
  UniqueLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  const Status status = ResetContent(slots_);
  if (!status.ok()) return status;
  slot_steps_ = 0;
  update_count_.store(0, std::memory_order_relaxed);
  newest_time_.store(0, std::memory_order_relaxed);
  times_unknown_.store(false);
  return status;
}

// What is configured wins over what was saved, and whether the table is frozen
// is told by what was saved with the same configuration.
void TableImpl::RestoreAdmission(const Manifest& manifest, bool has_times,
                                 RestoreReport* report) {
  const AdmissionOptions& admission = options_.admission;
  const auto saved = [&manifest](const char* name) {
    const auto note = manifest.notes.find(name);
    return note == manifest.notes.end()
               ? int64_t{-1}
               : std::strtoll(note->second.c_str(), nullptr, 10);
  };
  newest_time_.store(std::max<int64_t>(0, saved("newest_time")),
                     std::memory_order_relaxed);
  times_unknown_.store(admission.record_times && !has_times);
  access_threshold_.store(admission.access_threshold,
                          std::memory_order_relaxed);
  // A table that was frozen by hand stays so, if it is still set up in the way
  // that it was frozen in.
  const bool stays_frozen =
      saved("frozen") == 1 &&
      saved("access_threshold") == admission.access_threshold;
  is_frozen_.store(admission.access_threshold == 0 || stays_frozen,
                   std::memory_order_relaxed);
  const auto compare = [report](const std::string& name, const std::string& now,
                                const std::string& before) {
    if (before == now) return;
    report->differences += (report->differences.empty() ? "" : ", ") + name +
                           " " + now + " (saved with " + before + ")";
  };
  for (const auto& [name, now] :
       {std::pair<const char*, int64_t>{"access_threshold",
                                        admission.access_threshold},
        {"eviction_threshold", admission.eviction_threshold}}) {
    compare(name, std::to_string(now), std::to_string(saved(name)));
  }
  // Earlier files do not have it.
  const auto coefficients = manifest.notes.find("faae_coefficient");
  if (HasCoefficients() && coefficients != manifest.notes.end()) {
    compare(coefficients->first, ShowCoefficients(), coefficients->second);
  }
}

Status TableImpl::StopSteps(const RestoreRequest& request,
                            std::shared_ptr<void>* stopped) {
  if (!steps_->Stop(request.wait_for_steps)) {
    return Status::FailedPrecondition(
        "table '" + options_.name + "': cannot restore '" + request.prefix +
        "' while a step uses the table, and one has not ended for " +
        std::to_string(request.wait_for_steps.count()) +
        " ms; restore in a run of its own, while nothing else runs");
  }
  stopped->reset(steps_.get(), [this](void*) { steps_->Resume(); });
  return Status::Ok();
}

Status TableImpl::Restore(const RestoreRequest& request,
                          RestoreReport* report) {
  std::unique_lock<std::mutex> saving(saving_mutex_, std::try_to_lock);
  if (!saving.owns_lock()) return SavingError("restore", request.prefix);
  SetSavingPath(request.prefix);
  Readers readers;
  Status status = OpenAll(request, &readers);
  if (!status.ok()) return status;
  const Manifest& manifest = readers.back()->manifest();
  {
    SharedLock layout(layout_lock_);
    if (rows_ == nullptr) return ReleasedError();
    for (const auto& reader : readers) {
      status = CheckSaved(request, reader->manifest());
      if (!status.ok()) return status;
    }
  }
  // Two tables do not fit at a time: what is here goes before the other is
  // read, so that must be known to be whole. An empty table is not harmed by
  // files that are not.
  if (size() > 0) {
    for (const auto& reader : readers) {
      status = reader->Verify(request.threads);
      if (!status.ok()) return status;
    }
  }
  // A step that has offsets of this content must not write to rows of the next.
  std::shared_ptr<void> stopped;
  if (is_fixed()) {
    status = StopSteps(request, &stopped);
    if (status.ok() && request.hold_rows) status = request.hold_rows();
    if (!status.ok()) return status;
  }
  std::lock_guard<std::mutex> no_eviction(evict_mutex_);
  UniqueLock layout(layout_lock_);
  // Who begins now waits for the lock.
  stopped.reset();
  if (rows_ == nullptr) return ReleasedError();
  // An optimizer may have added slots in between.
  status = CheckSaved(request, manifest);
  if (!status.ok()) return status;
  const bool had_keys = size() > 0;
  const SlotLayout slots_before = slots_;
  SlotLayout slots = slots_;
  const bool takes_slots = request.with_slots && !manifest.optimizer.empty();
  if (slots.optimizer.empty() && takes_slots) {
    slots = SlotLayout{manifest.optimizer, manifest.slot_initials};
  }
  status = ResetContent(slots);
  if (!status.ok()) return status;
  // A shard that grows step by step would hash its keys again and again. What
  // manifests say is checked against what is there.
  int64_t expected = 0;
  for (const auto& reader : readers) expected += reader->most_rows();
  expected = std::min(expected, manifest.size) / request.parts;
  for (const auto& shard : shards_) {
    // The most keys that a shard is likely to have.
    const double keys = static_cast<double>(expected) / kShards;
    shard->index.Prepare(static_cast<int64_t>(keys + std::sqrt(keys)));
  }
  Filler filler(this, request);
  for (auto reader = readers.rbegin(); reader != readers.rend(); ++reader) {
    if (readers.size() > 1) filler.KeepHistory();
    status = filler.Add(reader->get());
    if (!status.ok()) break;
  }
  if (!status.ok()) {
    (void)ResetContent(slots_before);
    if (!had_keys) return status;
    return Status(status.code(), status.message() +
                                     "; it was whole a moment ago. Table '" +
                                     options_.name + "' is empty now");
  }
  size_.store(filler.added(), std::memory_order_relaxed);
  const bool keeps_steps = request.with_slots;
  slot_steps_ = keeps_steps ? manifest.steps : 0;
  update_count_.store(keeps_steps ? manifest.updates : 0,
                      std::memory_order_relaxed);
  RestoreAdmission(manifest, filler.has_times(), report);
  report->keys = filler.added();
  report->skipped = filler.skipped();
  report->steps = keeps_steps ? manifest.steps : 0;
  return status;
}

}  // namespace mxrec
