#include <algorithm>
#include <array>
#include <cmath>

#include "first_error.h"
#include "row_math.h"
#include "table_impl.h"

namespace mxrec {
namespace {

constexpr int64_t kRowsPerBlock = 256;

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

}  // namespace

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

// For the holder of the exclusive rows lock, before it changes rows.
void TableImpl::KeepForSnapshot(Span<const Address> addresses) {
  const RowAccess access = *rows_;
  for (const Address address : addresses) {
    if (address != kNoRow) snapshot_->KeepBeforeChange(access, RowOf(address));
  }
}

void TableImpl::BeforeChange(Span<const Address> addresses) {
  if (snapshot_ != nullptr) KeepForSnapshot(addresses);
  if (tracker_ == nullptr) return;
  for (const Address address : addresses) {
    if (address != kNoRow) tracker_->Changed(RowOf(address));
  }
}

void TableImpl::BeforeAllChange() {
  if (snapshot_ == nullptr && tracker_ == nullptr) return;
  const RowAccess access = *rows_;
  const int64_t end = std::min(rows_->capacity(), rows_->rows_allocated());
  for (int64_t r = 0; r < end; ++r) {
    const RowIndex row = static_cast<RowIndex>(r);
    if (!access.IsVisible(row)) continue;
    if (snapshot_ != nullptr) snapshot_->KeepBeforeChange(access, row);
    if (tracker_ != nullptr) tracker_->Changed(row);
  }
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
                                                 int64_t, int64_t)>& update,
                        const WholeTable& whole) {
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
  const StepClock::Hold step_lasts(StepsToWaitFor());
  UniqueLock row_content(rows_lock_);
  const int dim = options_.dim;
  std::vector<float*>& rows = ThreadRows();
  rows.resize(addresses.size());
  bool repeated = false;
  const Status status =
      ResolveForUpdate(addresses, parallel, rows.data(), &repeated);
  if (!status.ok()) return status;
  if (whole.before) {
    BeforeAllChange();
  } else {
    BeforeChange(addresses);
  }
  update_count_.fetch_add(1, std::memory_order_relaxed);
  // Only the owner of the slots knows a step: SGD in between does not age them.
  const int64_t step = slots.initial_values.empty() ? 0 : ++slot_steps_;

  std::vector<float> sums;
  if (repeated) {
    SumRepeated(addresses, gradients, dim, &rows, &sums);
    gradients = sums.data();
  }
  if (whole.before) whole.before();
  parallel.For(static_cast<int64_t>(rows.size()), cost_per_row,
               [&](int64_t begin, int64_t end) {
                 update(rows.data() + begin, gradients + begin * dim,
                        end - begin, step);
               });
  if (whole.after) whole.after();
  return Status::Ok();
}

void TableImpl::ForTrainedRows(
    const Parallel& parallel, int64_t cost_per_row,
    const std::function<void(float* const*, int64_t)>& update) const {
  const int64_t end = std::min(rows_->capacity(), rows_->rows_allocated());
  parallel.For(end, cost_per_row, [&](int64_t begin, int64_t last) {
    const RowAccess access = *rows_;
    std::array<float*, kRowsPerBlock> block;
    int64_t n = 0;
    for (int64_t r = begin; r < last; ++r) {
      const RowIndex row = static_cast<RowIndex>(r);
      if (!access.IsVisible(row) || access.IsFrozen(row)) continue;
      block[n++] = access.Row(row);
      if (n == kRowsPerBlock) {
        update(block.data(), n);
        n = 0;
      }
    }
    if (n > 0) update(block.data(), n);
  });
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

Status TableImpl::ApplyAdam(Span<const Address> addresses,
                            const float* gradients, const AdamParams& params,
                            const Parallel& parallel) {
  const int dim = options_.dim;
  const RowMath& math = BestRowMath();
  const WholeTable whole = {
      [&] {
        ForTrainedRows(parallel, 2 * dim, [&](float* const* rows, int64_t n) {
          math.adam_decay(rows, n, dim, params.beta1, params.beta2);
        });
      },
      [&] {
        ForTrainedRows(parallel, 4 * dim, [&](float* const* rows, int64_t n) {
          math.adam_move(rows, n, dim, params.step_size, params.epsilon);
        });
      }};
  return Apply(
      addresses, gradients, SlotLayout{"Adam", {0.0f, 0.0f}}, parallel,
      kValidateCost + 4 * dim,
      [&](float* const* rows, const float* grads, int64_t n, int64_t /*step*/) {
        math.adam_add(rows, grads, n, dim, params.beta1, params.beta2);
      },
      whole);
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
                              params.epsilon, params.root_epsilon);
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

Status TableImpl::Import(Span<const Key> keys, const float* rows,
                         const Parallel& parallel) {
  if (is_fixed()) return WrongKind("an import of rows");
  const StepClock::Hold step_lasts(StepsToWaitFor());
  std::vector<Address> addresses(keys.size());
  const std::vector<int32_t> uncounted(keys.size(), 0);
  const Status status = FindOrInsert(keys, {}, uncounted, addresses, parallel);
  if (!status.ok()) return status;
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  UniqueLock row_content(rows_lock_);
  const int dim = options_.dim;
  for (int64_t i = 0; i < keys.size(); ++i) {
    if (!IsLegal(addresses[i], *rows_, rows_->capacity())) {
      return AddressError(addresses[i], i);
    }
  }
  BeforeChange(addresses);
  for (int64_t i = 0; i < keys.size(); ++i) {
    float* to =
        std::copy_n(rows + i * dim, dim, rows_->Row(RowOf(addresses[i])));
    for (const float initial : slots_.initial_values) {
      to = std::fill_n(to, dim, initial);
    }
  }
  return Status::Ok();
}

}  // namespace mxrec
