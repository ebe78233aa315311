// Restoring a table from files.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "hash.h"
#include "mxrec/saving.h"
#include "table_filler.h"
#include "table_impl.h"

namespace mxrec {
namespace {

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
    if (manifest.ColumnOf(BlockKind::kRows, column) < 0) {
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
