// What every op of this library needs: the table resource, status conversion
// and TensorFlow's threads behind the core's Parallel interface.
#ifndef MXREC_OPS_OP_UTILS_H_
#define MXREC_OPS_OP_UTILS_H_

#include <memory>
#include <string>
#include <utility>

#include "mxrec/parallel.h"
#include "mxrec/span.h"
#include "mxrec/status.h"
#include "mxrec/table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/util/work_sharder.h"

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
    case mxrec::Code::kInternal:
      break;
  }
  return tensorflow::errors::Internal(status.message());
}

// Owned by the Session's resource manager; the table itself may be released
// earlier (mxrec::Table::Release) and then answers every call with an error.
class TableResource final : public tensorflow::ResourceBase {
 public:
  explicit TableResource(std::shared_ptr<mxrec::Table> table)
      : table_(std::move(table)) {}
  mxrec::Table& table() const { return *table_; }
  std::string DebugString() const override {
    return "mx_rec table '" + table_->options().name + "'";
  }
  int64_t MemoryUsed() const override {
    const mxrec::MemoryUsage usage = table_->memory();
    return usage.index_bytes + usage.row_bytes + usage.other_bytes;
  }

 private:
  const std::shared_ptr<mxrec::Table> table_;
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

// Runs the core's loops on TensorFlow's intra-op pool.
class TfParallel final : public mxrec::Parallel {
 public:
  explicit TfParallel(tensorflow::OpKernelContext* context)
      : threads_(*context->device()->tensorflow_cpu_worker_threads()) {}
  void For(int64_t total, int64_t cost_per_unit,
           const std::function<void(int64_t, int64_t)>& body) const override {
    if (total <= 0) return;
    tensorflow::Shard(threads_.num_threads, threads_.workers, total,
                      cost_per_unit, body);
  }
  int threads() const { return threads_.num_threads; }

 private:
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

// `tensor` must be a vector of `expected` elements, or empty.
inline tensorflow::Status CheckVectorOrEmpty(const tensorflow::Tensor& tensor,
                                             int64_t expected,
                                             const char* what) {
  tensorflow::Status status = CheckVector(tensor, what);
  if (!status.ok()) return status;
  if (tensor.NumElements() == 0 || tensor.NumElements() == expected) {
    return status;
  }
  return tensorflow::errors::InvalidArgument(
      what, " must be empty or have one element per key: expected ", expected,
      ", got ", tensor.NumElements());
}

inline tensorflow::Status CheckScalar(const tensorflow::Tensor& tensor,
                                      const char* what) {
  if (tensor.dims() == 0) return tensorflow::Status();
  return tensorflow::errors::InvalidArgument(
      what, " must be a scalar, got shape ", tensor.shape().DebugString());
}

}  // namespace mxrec_ops

#endif  // MXREC_OPS_OP_UTILS_H_
