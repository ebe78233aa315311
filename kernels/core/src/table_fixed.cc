#include <algorithm>
#include <numeric>

#include "table_impl.h"

namespace mxrec {
namespace {

constexpr int64_t kRowsAtATime = 1 << 16;

}  // namespace

Status TableImpl::Offsets(Span<const Address> addresses, Span<int64_t> offsets,
                          bool* all_initialized) const {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  if (!is_fixed()) return WrongKind("an offset");
  const StepClock::Hold step(StepsToWaitFor());
  SharedLock row_content(rows_lock_);
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
  const StepClock::Hold step(StepsToWaitFor());
  SharedLock row_content(rows_lock_);
  std::vector<float> initial(options_.dim);
  for (const int64_t offset : offsets) {
    if (offset < 0 || offset >= rows_->capacity()) continue;
    const RowIndex row = static_cast<RowIndex>(offset);
    // A row whose key was evicted since the step found it is still the key's.
    const bool has_key = rows_->IsVisible(row) || rows_->IsInLimbo(row);
    if (!has_key || rows_->IsInitialized(row)) continue;
    initializer_.Fill(*rows_->KeyOf(row), initial.data());
    write(offset, initial.data());
    rows_->SetInitialized(row);
  }
  return Status::Ok();
}

Status TableImpl::BeginWrites(std::shared_ptr<RowWrites>* writes) {
  if (!is_fixed()) return WrongKind("an offset");
  *writes = writers_->Enter();
  return Status::Ok();
}

Status TableImpl::KeepRows(Span<const int64_t> offsets, RowWrites* writes) {
  SharedLock layout(layout_lock_);
  const Status status = CheckOffsets(offsets);
  if (!status.ok()) return status;
  writes->Add(offsets);
  bool any_pending = false;
  {
    SharedLock row_content(rows_lock_);
    for (const int64_t offset : offsets) {
      if (offset < 0) continue;
      const RowIndex row = static_cast<RowIndex>(offset);
      // A lookup before a save began may have noted that, too, but for that
      // save.
      if (tracker_ != nullptr) tracker_->Changed(row);
      any_pending |= snapshot_ != nullptr && snapshot_->IsPending(row);
    }
  }
  if (any_pending) KeepForWrites(offsets);
  return Status::Ok();
}

void TableImpl::KeepForWrites(Span<const int64_t> offsets) {
  SharedLock keeping(keeping_lock_);
  while (true) {
    {
      UniqueLock row_content(rows_lock_);
      if (snapshot_ == nullptr || snapshot_->TryKeep(*rows_, offsets)) return;
    }
    // Without a lock that others need. No snapshot ends meanwhile.
    snapshot_->writer()->WaitForBuffer();
  }
}

// For the holder of the layout lock.
Status TableImpl::CheckOffsets(Span<const int64_t> offsets) const {
  if (rows_ == nullptr) return ReleasedError();
  if (!is_fixed()) return WrongKind("an offset");
  for (int64_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] >= -1 && offsets[i] < options_.fixed_capacity) continue;
    return Status::InvalidArgument(
        "table '" + options_.name + "': illegal offset " +
        std::to_string(offsets[i]) + " at position " + std::to_string(i) +
        ": it must be in [-1, " + std::to_string(options_.fixed_capacity) +
        ")");
  }
  return Status::Ok();
}

Status TableImpl::TrainedPositions(Span<const int64_t> offsets,
                                   std::vector<int64_t>* positions) const {
  SharedLock layout(layout_lock_);
  positions->clear();
  const Status status = CheckOffsets(offsets);
  if (!status.ok()) return status;
  const int64_t rows_ready = rows_->capacity();
  for (int64_t i = 0; i < offsets.size(); ++i) {
    const int64_t offset = offsets[i];
    const bool frozen = offset >= 0 && offset < rows_ready &&
                        rows_->IsFrozen(static_cast<RowIndex>(offset));
    if (offset >= 0 && !frozen) positions->push_back(i);
  }
  return Status::Ok();
}

Status TableImpl::HasStaleSlots(Span<const int64_t> offsets, bool* any) const {
  SharedLock layout(layout_lock_);
  *any = false;
  const Status status = CheckOffsets(offsets);
  if (!status.ok()) return status;
  const int64_t rows_ready = rows_->capacity();
  for (const int64_t offset : offsets) {
    *any |= offset >= 0 && offset < rows_ready &&
            rows_->HasStaleSlots(static_cast<RowIndex>(offset));
  }
  return Status::Ok();
}

Status TableImpl::ResetSlots(Span<const int64_t> offsets,
                             const std::function<void(int64_t)>& write) {
  SharedLock layout(layout_lock_);
  const Status status = CheckOffsets(offsets);
  if (!status.ok()) return status;
  const int64_t rows_ready = rows_->capacity();
  for (const int64_t offset : offsets) {
    if (offset < 0 || offset >= rows_ready) continue;
    if (rows_->TakeStaleSlots(static_cast<RowIndex>(offset))) write(offset);
  }
  return Status::Ok();
}

void TableImpl::ForgetInitializedRows() {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return;
  // A save needs what they have been.
  const int64_t rows = std::min(rows_->capacity(), rows_->rows_allocated());
  std::vector<int64_t> offsets(std::min(rows, kRowsAtATime));
  for (int64_t first = 0; first < rows; first += kRowsAtATime) {
    offsets.resize(std::min(rows - first, kRowsAtATime));
    std::iota(offsets.begin(), offsets.end(), first);
    KeepForWrites(offsets);
  }
  rows_->ForgetInitialized();
}

}  // namespace mxrec
