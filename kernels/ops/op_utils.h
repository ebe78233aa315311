// What every op of this library needs: the table resource, status conversion
// and TensorFlow's threads behind the core's Parallel interface.
#ifndef MXREC_OPS_OP_UTILS_H_
#define MXREC_OPS_OP_UTILS_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "mxrec/parallel.h"
#include "mxrec/span.h"
#include "mxrec/status.h"
#include "mxrec/table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace mxrec_ops {

inline tensorflow::Status ToTf(const mxrec::Status& status) {
  switch (status.code()) {
    case mxrec::Code::kOk:
      return tensorflow::Status();
    case mxrec::Code::kInvalidArgument:
      return tensorflow::errors::InvalidArgument(status.message());
    case mxrec::Code::kFailedPrecondition:
      return tensorflow::errors::FailedPrecondition(status.message());
    case mxrec::Code::kResourceExhausted:
      return tensorflow::errors::ResourceExhausted(status.message());
    case mxrec::Code::kNotFound:
      return tensorflow::errors::NotFound(status.message());
    case mxrec::Code::kPermissionDenied:
      return tensorflow::errors::PermissionDenied(status.message());
    case mxrec::Code::kDataLoss:
      return tensorflow::errors::DataLoss(status.message());
    case mxrec::Code::kInternal:
      break;
  }
  return tensorflow::errors::Internal(status.message());
}

// Owned by the Session's resource manager; the table itself may be released
// earlier (mxrec::Table::Release) and then answers every call with an error.
class TableResource final : public tensorflow::ResourceBase {
 public:
  // A table with `initial_rows` is of no use before so many rows have been
  // imported, or others restored; `begun_by` names what imports them.
  explicit TableResource(std::shared_ptr<mxrec::Table> table,
                         int64_t initial_rows = 0, std::string begun_by = "")
      : table_(std::move(table)),
        initial_rows_(initial_rows),
        begun_by_(std::move(begun_by)),
        has_values_(initial_rows == 0),
        step_name_("mx_rec_step_of_" +
                   std::to_string(reinterpret_cast<uintptr_t>(table_.get()))),
        writes_name_("mx_rec_writes_of_" + step_name_) {}
  // Of what stands for the table in the container of a step, and for writes of
  // its rows that are a variable.
  const std::string& step_name() const { return step_name_; }
  const std::string& writes_name() const { return writes_name_; }
  mxrec::Table& table() const { return *table_; }
  // Around an import. Nothing else makes keys visible before all are there, so
  // their number tells, in whatever order parts come; but an import under way
  // may have keys whose rows it has yet to write.
  void ImportBegins() { ++imports_; }
  void ImportEnds() {
    if (--imports_ > 0 || table_->size() < initial_rows_) return;
    if (imports_ == 0) has_values_ = true;  // else another has begun since
  }
  // The content was replaced: by that of a checkpoint, or by none.
  void Replaced() { has_values_ = true; }
  tensorflow::Status CheckHasValues() const {
    if (has_values_) return tensorflow::Status();
    return tensorflow::errors::FailedPrecondition(
        "table '", table_->options().name,
        "' has no values yet: its rows begin with those of the variable that "
        "it was, which op '",
        begun_by_,
        "' gives it. Run the initializer that the graph had when it was "
        "converted, or restore a checkpoint of the converted graph");
  }
  std::string DebugString() const override {
    return "mx_rec table '" + table_->options().name + "'";
  }
  int64_t MemoryUsed() const override {
    const mxrec::MemoryUsage usage = table_->memory();
    return usage.index_bytes + usage.row_bytes + usage.other_bytes;
  }

 private:
  const std::shared_ptr<mxrec::Table> table_;
  const int64_t initial_rows_;
  const std::string begun_by_;
  std::atomic<bool> has_values_;
  std::atomic<int> imports_{0};
  const std::string step_name_;
  const std::string writes_name_;
};

using TableRef = tensorflow::core::RefCountPtr<TableResource>;

// The table behind resource input `index`.
inline tensorflow::Status GetTable(tensorflow::OpKernelContext* context,
                                   int index, TableRef* table) {
  const tensorflow::Tensor& handle = context->input(index);
  if (handle.NumElements() != 1) {
    return tensorflow::errors::InvalidArgument(
        "a table handle must be one element, got shape ",
        handle.shape().DebugString());
  }
  return tensorflow::LookupResource(
      context, tensorflow::HandleFromInput(context, index), table);
}

// The same for an op that reads or updates rows, so the table must have them.
inline tensorflow::Status GetFilledTable(tensorflow::OpKernelContext* context,
                                         int index, TableRef* table) {
  TF_RETURN_IF_ERROR(GetTable(context, index, table));
  return (*table)->CheckHasValues();
}

// Lasts as long as the step in whose container it is: TensorFlow destroys it
// when the step has ended, however it ended.
class StepResource final : public tensorflow::ResourceBase {
 public:
  explicit StepResource(std::shared_ptr<void> step) : step_(std::move(step)) {}
  std::string DebugString() const override { return "mx_rec step"; }

 private:
  const std::shared_ptr<void> step_;
};

// From here on to the end of this step, rows of the table that are evicted are
// not used again, and no restore replaces those of a table of fixed capacity,
// so that addresses and offsets lead to them and to no others. To be called
// before an op gets addresses.
inline tensorflow::Status HoldRowsForStep(tensorflow::OpKernelContext* context,
                                          const TableRef& table) {
  const mxrec::TableOptions& options = table->table().options();
  if ((!options.admission.may_evict() && options.fixed_capacity == 0) ||
      context->step_container() == nullptr) {
    return tensorflow::Status();
  }
  StepResource* step = nullptr;
  TF_RETURN_IF_ERROR(context->step_container()->LookupOrCreate<StepResource>(
      context->resource_manager(), table->step_name(), &step,
      [&table](StepResource** created) {
        std::shared_ptr<void> begun;
        TF_RETURN_IF_ERROR(ToTf(table->table().BeginStep(&begun)));
        *created = new StepResource(std::move(begun));
        return tensorflow::Status();
      }));
  step->Unref();
  return tensorflow::Status();
}

// Runs the core's loops on TensorFlow's intra-op pool. The caller works too and
// waits only for blocks that a pool thread has begun: a caller that holds a
// lock of a table needs no free thread, even if all of them wait for that lock.
class TfParallel final : public mxrec::Parallel {
 public:
  explicit TfParallel(tensorflow::OpKernelContext* context)
      : threads_(*context->device()->tensorflow_cpu_worker_threads()) {}
  void For(int64_t total, int64_t cost_per_unit,
           const std::function<void(int64_t, int64_t)>& body) const override {
    if (total <= 0) return;
    const int64_t cost = total * std::max<int64_t>(cost_per_unit, 1);
    const int64_t helpers =
        std::min<int64_t>(threads(), cost / kCostPerThread) - 1;
    if (helpers <= 0) {
      body(0, total);
      return;
    }
    const int64_t blocks = std::min(
        {total, cost / kMinBlockCost, int64_t{kBlocksPerThread} * threads()});
    const auto loop = std::make_shared<Loop>(total, blocks, &body);
    for (int64_t i = 0; i < helpers; ++i) {
      threads_.workers->Schedule([loop] { loop->Work(); });
    }
    loop->Work();
    loop->Wait();
  }
  int threads() const override { return threads_.num_threads; }

 private:
  static constexpr int64_t kCostPerThread = 100000;  // cycles: worth a wake-up
  static constexpr int64_t kMinBlockCost = 20000;
  static constexpr int kBlocksPerThread = 8;

  class Loop {
   public:
    Loop(int64_t total, int64_t blocks,
         const std::function<void(int64_t, int64_t)>* body)
        : total_(total), blocks_(blocks), body_(body), left_(blocks) {}
    // `body` is alive while there is a block to take.
    void Work() {
      for (int64_t i = next_++; i < blocks_; i = next_++) {
        (*body_)(total_* i / blocks_, total_ * (i + 1) / blocks_);
        if (--left_ > 0) continue;
        std::lock_guard<std::mutex> lock(mutex_);
        finished_.notify_all();
      }
    }
    void Wait() {
      std::unique_lock<std::mutex> lock(mutex_);
      finished_.wait(lock, [this] { return left_ == 0; });
    }

   private:
    const int64_t total_;
    const int64_t blocks_;
    const std::function<void(int64_t, int64_t)>* const body_;
    std::atomic<int64_t> next_{0};
    std::atomic<int64_t> left_;
    std::mutex mutex_;
    std::condition_variable finished_;
  };

  const tensorflow::DeviceBase::CpuWorkerThreads& threads_;
};

template <typename T>
mxrec::Span<const T> InputSpan(const tensorflow::Tensor& tensor) {
  return mxrec::Span<const T>(tensor.flat<T>().data(), tensor.NumElements());
}

template <typename T>
mxrec::Span<T> OutputSpan(tensorflow::Tensor* tensor) {
  return mxrec::Span<T>(tensor->flat<T>().data(), tensor->NumElements());
}

inline tensorflow::Status CheckVector(const tensorflow::Tensor& tensor,
                                      const char* what) {
  if (tensor.dims() == 1) return tensorflow::Status();
  return tensorflow::errors::InvalidArgument(
      what, " must be a vector, got shape ", tensor.shape().DebugString());
}

// `tensor` must be a vector of `expected` elements, or empty. `elements` says
// what they are.
inline tensorflow::Status CheckVectorOrEmpty(
    const tensorflow::Tensor& tensor, int64_t expected, const char* what,
    const char* elements = "one element per key") {
  tensorflow::Status status = CheckVector(tensor, what);
  if (!status.ok()) return status;
  if (tensor.NumElements() == 0 || tensor.NumElements() == expected) {
    return status;
  }
  return tensorflow::errors::InvalidArgument(what, " must be empty or have ",
                                             elements, ": expected ", expected,
                                             ", got ", tensor.NumElements());
}

// A table has seen at most `max_keys` distinct keys in one batch; 0: no bound.
inline tensorflow::Status CheckNumberOfKeys(int64_t keys, int64_t max_keys,
                                            const TableRef& table) {
  if (max_keys <= 0 || keys <= max_keys) return tensorflow::Status();
  return tensorflow::errors::InvalidArgument(
      "table '", table->table().options().name, "': the batch has ", keys,
      " distinct keys, but send_count is ", max_keys,
      "; raise send_count, or use init(use_dynamic=True)");
}

// `tensor` must be a vector of one timestamp per key, of one for all, or empty.
inline tensorflow::Status CheckTimes(const tensorflow::Tensor& tensor,
                                     int64_t keys) {
  TF_RETURN_IF_ERROR(CheckVector(tensor, "timestamps"));
  const int64_t n = tensor.NumElements();
  if (n <= 1 || n == keys) return tensorflow::Status();
  return tensorflow::errors::InvalidArgument(
      "timestamps must be empty, or have one element for all keys or one per "
      "key: expected ",
      keys, ", got ", n);
}

inline tensorflow::Status CheckScalar(const tensorflow::Tensor& tensor,
                                      const char* what) {
  if (tensor.dims() == 0) return tensorflow::Status();
  return tensorflow::errors::InvalidArgument(
      what, " must be a scalar, got shape ", tensor.shape().DebugString());
}

}  // namespace mxrec_ops

#endif  // MXREC_OPS_OP_UTILS_H_
