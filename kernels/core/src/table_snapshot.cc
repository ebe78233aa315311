// Saving a table while it is used.
#include <algorithm>
#include <chrono>
#include <utility>

#include "mxrec/saving.h"
#include "snapshot.h"
#include "table_impl.h"

namespace mxrec {
namespace {

// Of the table, for buffers between the table and the file.
constexpr int64_t kBufferShare = 20;
constexpr int64_t kRowsPerLook = 1 << 16;

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
  columns.push_back({"rows", "float32", manifest.stride()});
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
  while (true) {
    Manifest manifest;
    int64_t bytes = 0;
    {
      SharedLock layout(layout_lock_);
      if (rows_ == nullptr) return ReleasedError();
      manifest = NewManifest(request);
      bytes = size() * manifest.stride() * static_cast<int64_t>(sizeof(float));
    }
    std::unique_ptr<TableFileWriter> writer;
    Status status = PrepareFile(request.prefix, request.file_number, &manifest);
    if (status.ok()) {
      status = TableFileWriter::Create(request.prefix, request.file_number,
                                       manifest, bytes / kBufferShare, &writer);
    }
    if (!status.ok()) return status;
    bool layout_changed = false;
    status = Stream(request, writer.get(), &manifest, &layout_changed);
    // Slots have been added before the snapshot began.
    if (layout_changed) continue;
    if (!status.ok()) return status;
    SavedFile file;
    status = writer->Finish(&manifest, &file);
    if (!status.ok()) return status;
    saved->files = manifest.base;
    saved->files.push_back(file);
    saved->manifest = std::move(manifest);
    return Status::Ok();
  }
}

Status TableImpl::Stream(const SaveRequest& request, TableFileWriter* writer,
                         Manifest* manifest, bool* layout_changed) {
  std::unique_ptr<Snapshot> snapshot;
  {
    SharedLock layout(layout_lock_);
    UniqueLock inserts(inserts_lock_);
    UniqueLock row_content(rows_lock_);
    const auto begin = std::chrono::steady_clock::now();
    if (rows_ == nullptr) return ReleasedError();
    const SlotLayout& slots = is_fixed() ? request.slots : slots_;
    if (slots.optimizer != manifest->optimizer ||
        slots.initial_values != manifest->slot_initials) {
      *layout_changed = true;
      return Status::Ok();
    }
    const int64_t rows = std::min(rows_->capacity(), rows_->rows_allocated());
    snapshot = std::make_unique<Snapshot>(writer, rows, rows_->stride(),
                                          options_.record_counts);
    MarkPending(request, snapshot.get());
    manifest->size = size();
    manifest->steps = is_fixed() ? request.steps : slot_steps_;
    manifest->updates = update_count_.load(std::memory_order_relaxed);
    snapshot_ = snapshot.get();
    const auto end = std::chrono::steady_clock::now();
    manifest->notes["pause_us"] = std::to_string(
        std::chrono::duration_cast<std::chrono::microseconds>(end - begin)
            .count());
  }
  Status status;
  int64_t row = 0;
  while (status.ok() && row < snapshot->rows()) {
    std::unique_ptr<BlockBuffer> buffer = writer->Take();
    if (buffer == nullptr) break;
    status = CopyPending(request, snapshot.get(), &row, buffer.get());
    writer->Submit(std::move(buffer));
  }
  {
    SharedLock layout(layout_lock_);
    UniqueLock inserts(inserts_lock_);
    UniqueLock row_content(rows_lock_);
    snapshot_ = nullptr;
  }
  snapshot->SubmitKept();
  return status.ok() ? writer->status() : status;
}

void TableImpl::MarkPending(const SaveRequest& /*request*/,
                            Snapshot* snapshot) {
  for (int64_t r = 0; r < snapshot->rows(); ++r) {
    const RowIndex row = static_cast<RowIndex>(r);
    if (rows_->IsVisible(row)) snapshot->SetPending(row);
  }
}

// Fills a buffer with pending rows from *row on, in one go: what it copies
// cannot change meanwhile.
Status TableImpl::CopyPending(const SaveRequest& request, Snapshot* snapshot,
                              int64_t* row, BlockBuffer* buffer) {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  UniqueLock inserts(inserts_lock_, std::defer_lock);
  if (options_.record_counts) inserts.lock();
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
      const RowIndex pending = static_cast<RowIndex>((first & ~int64_t{63}) +
                                                     bit);
      if (buffer->size == buffer->capacity()) {
        *row = pending;
        break;
      }
      snapshot->Append(access, pending, buffer);
      if (is_fixed()) elsewhere.push_back(pending);
      copied |= uint64_t{1} << bit;
      word &= word - 1;
    }
    if (copied != 0) {
      words[first >> 6].fetch_and(~copied, std::memory_order_release);
    }
  }
  if (is_fixed() && !elsewhere.empty()) {
    const int column = static_cast<int>(buffer->columns().size()) - 1;
    request.read_rows(elsewhere, buffer->column<float>(column));
  }
  return Status::Ok();
}

}  // namespace mxrec
