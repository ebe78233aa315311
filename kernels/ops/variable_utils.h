// Writing rows of the variables that belong to a fixed-capacity table.
#ifndef MXREC_OPS_VARIABLE_UTILS_H_
#define MXREC_OPS_VARIABLE_UTILS_H_

#include <cstring>
#include <memory>

#include "op_utils.h"
#include "tensorflow/core/framework/resource_var.h"

namespace mxrec_ops {

// The rows of a float variable [fixed_capacity, dim], locked and not shared
// with who has read it.
class RowsOfVariable {
 public:
  // Of resource input `index`.
  tensorflow::Status Lock(tensorflow::OpKernelContext* context, int index,
                          const TableRef& table) {
    const mxrec::TableOptions& options = table->table().options();
    if (!tensorflow::LookupResource(
             context, tensorflow::HandleFromInput(context, index), &variable_)
             .ok()) {
      return tensorflow::errors::FailedPrecondition(
          "table '", options.name,
          "': its variable has no value yet; run global_variables_initializer "
          "first");
    }
    lock_ = std::make_unique<tensorflow::mutex_lock>(*variable_->mu());
    tensorflow::Tensor* rows = variable_->tensor();
    if (rows->dtype() != tensorflow::DT_FLOAT || rows->dims() != 2 ||
        rows->dim_size(0) != options.fixed_capacity ||
        rows->dim_size(1) != options.dim) {
      return tensorflow::errors::FailedPrecondition(
          "table '", options.name, "': its variable must be float [",
          options.fixed_capacity, ", ", options.dim, "], got ",
          tensorflow::DataTypeString(rows->dtype()), " ",
          rows->shape().DebugString(), "; run its initializer first");
    }
    return MakeUnshared(context, rows);
  }
  float* data() const { return variable_->tensor()->flat<float>().data(); }

 private:
  // Who has read the variable may still hold its buffer.
  static tensorflow::Status MakeUnshared(tensorflow::OpKernelContext* context,
                                         tensorflow::Tensor* rows) {
    if (rows->RefCountIsOne()) return tensorflow::Status();
    tensorflow::Tensor copy;
    TF_RETURN_IF_ERROR(
        context->allocate_temp(rows->dtype(), rows->shape(), &copy));
    std::memcpy(copy.flat<float>().data(), rows->flat<float>().data(),
                rows->TotalBytes());
    *rows = copy;
    return tensorflow::Status();
  }

  tensorflow::core::RefCountPtr<tensorflow::Var> variable_;
  std::unique_ptr<tensorflow::mutex_lock> lock_;  // before the variable goes
};

}  // namespace mxrec_ops

#endif  // MXREC_OPS_VARIABLE_UTILS_H_
