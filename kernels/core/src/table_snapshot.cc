// Saving a table while it is used.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "hash.h"
#include "mxrec/saving.h"
#include "snapshot.h"
#include "table_impl.h"

namespace mxrec {
namespace {

// Of the table, for buffers between the table and the file.
constexpr int64_t kBufferShare = 20;
constexpr int64_t kRowsPerLook = 1 << 16;
constexpr size_t kEvictedPerBlock = 1 << 16;
constexpr int64_t kHistoryPerBlock = 1 << 15;
// For those who write: at first so small a part of the whole wait.
constexpr int kFirstWait = 64;
constexpr std::chrono::milliseconds kLeastWait{5};

const char* NameOf(InitializerKind kind) {
  switch (kind) {
    case InitializerKind::kConstant:
      return "constant";
    case InitializerKind::kUniform:
      return "uniform";
    case InitializerKind::kNormal:
      return "normal";
    case InitializerKind::kTruncatedNormal:
      return "truncated_normal";
    case InitializerKind::kPool:
      break;
  }
  return "pool";
}

}  // namespace

Manifest TableImpl::NewManifest(const SaveRequest& request) const {
  Manifest manifest;
  manifest.table = options_.name;
  manifest.key_dtype = request.key_dtype;
  manifest.dim = options_.dim;
  const SlotLayout& slots = is_fixed() ? request.slots : slots_;
  manifest.optimizer = slots.optimizer;
  manifest.slot_initials = slots.initial_values;
  const InitializerOptions& initializer = options_.initializer;
  manifest.notes["initializer"] = NameOf(initializer.kind);
  manifest.notes["initializer_a"] = std::to_string(initializer.a);
  manifest.notes["initializer_b"] = std::to_string(initializer.b);
  manifest.notes["initializer_scale"] = std::to_string(initializer.scale);
  manifest.notes["seed"] = std::to_string(initializer.seed);
  manifest.notes["capacity"] = std::to_string(options_.fixed_capacity);
  std::vector<Column>& columns = manifest.columns[BlockKind::kRows];
  columns.push_back({"keys", "int64", 1});
  if (options_.record_counts) columns.push_back({"counts", "int64", 1});
  if (options_.admission.record_times) columns.push_back({"times", "int64", 1});
  columns.push_back({"rows", "float32", manifest.stride()});
  if (options_.admission.admits()) {
    manifest.columns[BlockKind::kHistory] = {
        {"keys", "int64", 1}, {"counts", "int64", 1}, {"times", "int64", 1}};
  }
  return manifest;
}

Status TableImpl::SavingError(const char* what,
                              const std::string& prefix) const {
  std::string path;
  {
    std::lock_guard<std::mutex> lock(saving_path_mutex_);
    path = saving_path_;
  }
  return Status::FailedPrecondition(
      "table '" + options_.name + "': cannot " + what + " '" + prefix +
      "' while '" + path + "' is being written or read; wait for that");
}

void TableImpl::SetSavingPath(const std::string& path) {
  std::lock_guard<std::mutex> lock(saving_path_mutex_);
  saving_path_ = path;
}

Status TableImpl::Save(const SaveRequest& request, SavedTable* saved) {
  std::unique_lock<std::mutex> saving(saving_mutex_, std::try_to_lock);
  if (!saving.owns_lock()) return SavingError("save to", request.prefix);
  SetSavingPath(request.prefix);
  SaveKind kind = request.kind;
  // Without a complete save to build on, a delta is the first of its kind.
  if (kind == SaveKind::kDelta && chain_.files.empty()) kind = SaveKind::kBase;
  while (true) {
    Manifest manifest;
    int64_t bytes = 0;
    {
      SharedLock layout(layout_lock_);
      if (rows_ == nullptr) return ReleasedError();
      manifest = NewManifest(request);
      bytes = size() * manifest.stride() * static_cast<int64_t>(sizeof(float));
    }
    // Rows with other slots do not go with those of a file before; in rows
    // without slots they begin as they began in the table.
    if (kind == SaveKind::kDelta && !chain_.optimizer.empty() &&
        (chain_.optimizer != manifest.optimizer ||
         chain_.slot_initials != manifest.slot_initials)) {
      kind = SaveKind::kBase;
    }
    std::unique_ptr<TableFileWriter> writer;
    Status status = PrepareFile(request.prefix, request.file_number, &manifest);
    if (status.ok()) {
      status = TableFileWriter::Create(request.prefix, request.file_number,
                                       manifest, bytes / kBufferShare, &writer);
    }
    if (!status.ok()) return status;
    if (kind == SaveKind::kDelta) {
      bool linked = false;
      status = LinkFiles(chain_.prefix, request.prefix, chain_.files, &linked);
      if (!status.ok()) return status;
      if (!linked) kind = SaveKind::kBase;
    }
    if (kind == SaveKind::kDelta) {
      manifest.is_delta = true;
      manifest.base = chain_.files;
      manifest.columns[BlockKind::kEvicted] = {{"keys", "int64", 1}};
    }
    bool layout_changed = false;
    status = Stream(request, kind, writer.get(), &manifest, &layout_changed);
    // Slots have been added before the snapshot began.
    if (layout_changed) continue;
    if (!status.ok()) return status;
    SavedFile file;
    status = writer->Finish(&manifest, &file);
    if (!status.ok()) return status;
    saved->files = manifest.base;
    saved->files.push_back(file);
    if (kind != SaveKind::kPlain) {
      next_chain_ = SavedChain{request.prefix, saved->files, manifest.optimizer,
                               manifest.slot_initials};
    }
    saved->manifest = std::move(manifest);
    return Status::Ok();
  }
}

void TableImpl::CommitSave(const std::string& prefix) {
  std::lock_guard<std::mutex> saving(saving_mutex_);
  if (next_chain_.prefix != prefix || next_chain_.files.empty()) return;
  chain_ = std::exchange(next_chain_, SavedChain{});
  SharedLock layout(layout_lock_);
  UniqueLock inserts(inserts_lock_);
  UniqueLock row_content(rows_lock_);
  if (tracker_ != nullptr && rows_ != nullptr) {
    tracker_->SaveIsComplete(
        std::min(rows_->capacity(), rows_->rows_allocated()));
  }
  for (const auto& shard : shards_) shard->changed_saving.clear();
}

// For the holder of the exclusive locks of inserts and rows.
void TableImpl::BeginTracking(const SaveRequest& request, int64_t rows) {
  std::lock_guard<std::mutex> erased(erased_mutex_);
  if (tracker_ == nullptr) {
    tracker_ = std::make_unique<ChangeTracker>(request.least_count > 1);
    logs_erased_.store(true, std::memory_order_relaxed);
  }
  tracker_->BeginSave(rows, erased_);
  erased_.clear();
  for (const auto& shard : shards_) {
    shard->changed_saving.insert(shard->changed.begin(), shard->changed.end());
    shard->changed.clear();
  }
  // What is being written now is not all in this save.
  writers_->ForEachInside([this](const RowWrites& writes) {
    writes.ForEach([this](RowIndex row) { tracker_->Changed(row); });
  });
}

// True if the rows go on being written during the save: `closed` then keeps
// everybody from that until it is dropped.
bool TableImpl::ShareRows(const SaveRequest& request, ClosedGate* closed,
                          int64_t* steps) {
  if (!is_fixed() || !request.share_rows) return false;
  // Longer and longer, and open in between: the saves of two tables might each
  // wait for a step that waits at the other's gate.
  std::chrono::milliseconds left = request.wait_for_writes;
  std::chrono::milliseconds wait = std::max(left / kFirstWait, kLeastWait);
  while (!writers_->Close(std::min(wait, left))) {
    left -= wait;
    wait *= 2;
    if (left.count() <= 0) return false;
    std::this_thread::sleep_for(kLeastWait);
  }
  closed->reset(writers_.get());
  const bool shares = request.share_rows(steps);
  if (!shares) closed->reset();
  return shares;
}

Status TableImpl::Stream(const SaveRequest& request, SaveKind kind,
                         TableFileWriter* writer, Manifest* manifest,
                         bool* layout_changed) {
  std::unique_ptr<Snapshot> snapshot;
  std::vector<Key> evicted;
  int64_t steps = request.steps;
  auto begin = std::chrono::steady_clock::now();
  ClosedGate closed;
  const bool shares_rows = ShareRows(request, &closed, &steps);
  if (!shares_rows && request.hold_rows) request.hold_rows(&steps);
  {
    SharedLock layout(layout_lock_);
    UniqueLock inserts(inserts_lock_);
    UniqueLock row_content(rows_lock_);
    if (!shares_rows) begin = std::chrono::steady_clock::now();
    if (rows_ == nullptr) return ReleasedError();
    const SlotLayout& slots = is_fixed() ? request.slots : slots_;
    if (slots.optimizer != manifest->optimizer ||
        slots.initial_values != manifest->slot_initials) {
      *layout_changed = true;
      return Status::Ok();
    }
    const int64_t rows = std::min(rows_->capacity(), rows_->rows_allocated());
    const auto read_rows = [this, &request](Span<const RowIndex> read,
                                            float* out) {
      ReadRowsElsewhere(request, read, out);
    };
    snapshot = std::make_unique<Snapshot>(
        writer, rows, rows_->stride(), options_.record_counts,
        options_.admission.record_times, read_rows, manifest->stride());
    if (kind != SaveKind::kPlain) BeginTracking(request, rows);
    if (is_fixed()) {
      manifest->notes["rows_stood_still"] = shares_rows ? "0" : "1";
    }
    if (kind == SaveKind::kDelta) evicted = tracker_->EvictedSaving();
    const int64_t left_out = MarkPending(request, kind, snapshot.get());
    for (const auto& shard : shards_) {
      shard->candidates_pending = options_.admission.admits();
    }
    snapshot_is_delta_ = kind == SaveKind::kDelta;
    if (options_.admission.admits() || options_.admission.record_times) {
      const AdmissionState state = admission_state();
      manifest->notes["access_threshold"] =
          std::to_string(state.access_threshold);
      manifest->notes["eviction_threshold"] =
          std::to_string(options_.admission.eviction_threshold);
      manifest->notes["frozen"] = std::to_string(state.is_frozen ? 1 : 0);
      manifest->notes["newest_time"] = std::to_string(state.newest_time);
    }
    if (HasCoefficients()) {
      manifest->notes["faae_coefficient"] = ShowCoefficients();
    }
    manifest->size = size() - left_out;
    manifest->steps = is_fixed() ? steps : slot_steps_;
    manifest->updates = update_count_.load(std::memory_order_relaxed);
    snapshot_ = snapshot.get();
    const auto end = std::chrono::steady_clock::now();
    manifest->notes["pause_us"] = std::to_string(
        std::chrono::duration_cast<std::chrono::microseconds>(end - begin)
            .count());
  }
  closed.reset();
  Status status = WriteEvicted(evicted, *manifest, writer);
  int64_t row = 0;
  while (status.ok() && row < snapshot->rows()) {
    std::unique_ptr<BlockBuffer> buffer = writer->TakeUnhurried();
    if (buffer == nullptr) break;
    status = CopyPending(snapshot.get(), &row, buffer.get());
    writer->Submit(std::move(buffer));
  }
  // No row is pending any more, so nobody reads them for this save.
  const bool all_copied = status.ok() && row >= snapshot->rows();
  if (all_copied && request.release_rows) request.release_rows();
  if (status.ok()) status = CopyCandidates();
  {
    SharedLock layout(layout_lock_);
    UniqueLock keeping(keeping_lock_);
    UniqueLock inserts(inserts_lock_);
    UniqueLock row_content(rows_lock_);
    for (const auto& shard : shards_) shard->candidates_pending = false;
    snapshot_ = nullptr;
  }
  snapshot->SubmitKept();
  return status.ok() ? writer->status() : status;
}

Status TableImpl::WriteEvicted(const std::vector<Key>& evicted,
                               const Manifest& manifest,
                               TableFileWriter* writer) const {
  for (size_t begin = 0; begin < evicted.size(); begin += kEvictedPerBlock) {
    const size_t n = std::min(evicted.size() - begin, kEvictedPerBlock);
    BlockBuffer buffer(manifest.columns.at(BlockKind::kEvicted),
                       static_cast<int64_t>(n));
    buffer.kind = BlockKind::kEvicted;
    buffer.size = static_cast<int64_t>(n);
    std::copy_n(evicted.data() + begin, n, buffer.column<Key>(0));
    const Status status = writer->WriteBlock(&buffer);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

// The rows to be saved, 64 at a time. Returns how many keys of the table are
// neither among them nor in the files before.
int64_t TableImpl::MarkPending(const SaveRequest& request, SaveKind kind,
                               Snapshot* snapshot) {
  int64_t left_out = 0;
  for (int64_t first = 0; first < snapshot->rows(); first += 64) {
    const RowIndex row = static_cast<RowIndex>(first);
    const uint64_t visible = rows_->VisibleWord(row);
    uint64_t word = visible;
    if (kind == SaveKind::kDelta && word != 0) {
      word &= tracker_->Saving(row, request.least_count);
    }
    snapshot->words()[first >> 6].store(word, std::memory_order_relaxed);
    if (kind == SaveKind::kPlain) continue;
    tracker_->Saved(row, word);
    if (kind == SaveKind::kDelta) {
      left_out +=
          __builtin_popcountll(visible & ~tracker_->InFiles(row, visible));
    }
  }
  return left_out;
}

Status TableImpl::CopyCandidates() {
  if (!options_.admission.admits()) return Status::Ok();
  for (int s = 0; s < kShards; ++s) {
    SharedLock layout(layout_lock_);
    if (rows_ == nullptr) return ReleasedError();
    SharedLock inserts(inserts_lock_);
    std::lock_guard<std::mutex> lock(shards_[s]->mutex);
    BeforeCandidatesChange(shards_[s].get());
  }
  return Status::Ok();
}

// Writes the shard's candidates, or those that have changed, in this thread:
// there may be many, and no second place for them.
void TableImpl::KeepCandidates(Shard* shard) {
  shard->candidates_pending = false;
  TableFileWriter* const writer = snapshot_->writer();
  static const std::vector<Column> columns = {
      {"keys", "int64", 1}, {"counts", "int64", 1}, {"times", "int64", 1}};
  const int64_t most = snapshot_is_delta_
                           ? static_cast<int64_t>(shard->changed_saving.size())
                           : shard->candidates.size();
  BlockBuffer buffer(columns, std::min(most, kHistoryPerBlock));
  buffer.kind = BlockKind::kHistory;
  // A failure shows when the file is finished.
  const auto flush = [&] {
    if (buffer.size > 0) (void)writer->WriteBlock(&buffer);
    buffer.size = 0;
  };
  const auto add = [&](Key key, int64_t count, int64_t time) {
    if (buffer.size == buffer.capacity()) flush();
    buffer.column<int64_t>(0)[buffer.size] = key;
    buffer.column<int64_t>(1)[buffer.size] = count;
    buffer.column<int64_t>(2)[buffer.size] = time;
    ++buffer.size;
  };
  if (!snapshot_is_delta_) {
    shard->candidates.ForEach([&](const Candidates::Entry& entry) {
      add(entry.key, entry.count, entry.time);
    });
    return flush();
  }
  for (const Key key : shard->changed_saving) {
    const uint64_t hash = HashKey(key);
    const Candidates::Entry* const entry = shard->candidates.Find(hash, key);
    RowIndex row = 0;
    if (entry != nullptr) {
      add(key, entry->count, entry->time);
    } else if (!shard->index.Find(hash, key, *rows_, &row)) {
      add(key, kNoCandidate, 0);
    }
  }
  flush();
}

// A key that was found and not read yet has a row that nobody has written: that
// is saved as it will begin. The slots of a row that was another key's begin
// anew, too.
void TableImpl::ReadRowsElsewhere(const SaveRequest& request,
                                  Span<const RowIndex> rows, float* out) const {
  const int64_t slots =
      static_cast<int64_t>(request.slots.initial_values.size());
  const int64_t stride = options_.dim * (1 + slots);
  // In one go those between rows that nobody has written, which somebody may be
  // about to.
  int64_t first = 0;
  for (int64_t i = 0; i <= rows.size(); ++i) {
    const bool is_written = i < rows.size() && rows_->IsInitialized(rows[i]);
    if (is_written) continue;
    if (first < i) {
      request.read_rows(Span<const RowIndex>(rows.data() + first, i - first),
                        out + first * stride);
    }
    for (; first < i; ++first) {
      if (rows_->HasStaleSlots(rows[first])) {
        FillSlots(request.slots, out + first * stride);
      }
    }
    if (i == rows.size()) return;
    initializer_.Fill(*rows_->KeyOf(rows[i]), out + i * stride);
    FillSlots(request.slots, out + i * stride);
    first = i + 1;
  }
}

// With what the slots of a row begin with.
void TableImpl::FillSlots(const SlotLayout& slots, float* row) const {
  for (const float initial : slots.initial_values) {
    row += options_.dim;
    std::fill_n(row, options_.dim, initial);
  }
}

// Fills a buffer with pending rows from *row on, in one go: what it copies
// cannot change meanwhile.
Status TableImpl::CopyPending(Snapshot* snapshot, int64_t* row,
                              BlockBuffer* buffer) {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  // Counts, times and evictions go on beside updates.
  UniqueLock inserts(inserts_lock_, std::defer_lock);
  if (options_.record_counts || options_.admission.may_evict()) inserts.lock();
  SharedLock row_content(rows_lock_);
  const RowAccess access = *rows_;
  std::atomic<uint64_t>* const words = snapshot->words();
  std::vector<RowIndex> elsewhere;
  const int64_t end = std::min(snapshot->rows(), *row + kRowsPerLook);
  while (*row < end && buffer->size < buffer->capacity()) {
    const int64_t first = *row;
    uint64_t word = words[first >> 6].load(std::memory_order_relaxed) >>
                    (first & 63) << (first & 63);
    const int64_t word_end = (first | 63) + 1;
    uint64_t copied = 0;
    *row = word_end;
    while (word != 0) {
      const int bit = __builtin_ctzll(word);
      const RowIndex pending =
          static_cast<RowIndex>((first & ~int64_t{63}) + bit);
      if (buffer->size == buffer->capacity()) {
        *row = pending;
        break;
      }
      snapshot->Append(access, pending, buffer);
      if (is_fixed()) {
        elsewhere.push_back(pending);
      } else {
        copied |= uint64_t{1} << bit;
      }
      word &= word - 1;
    }
    if (copied != 0) {
      words[first >> 6].fetch_and(~copied, std::memory_order_release);
    }
  }
  // Who sees that a row is not pending writes it without a lock of the table.
  snapshot->ReadElsewhere(elsewhere, buffer);
  for (const RowIndex row : elsewhere) snapshot->ClearPending(row);
  return Status::Ok();
}

}  // namespace mxrec
