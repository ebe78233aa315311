// Writing rows of the variables that belong to a fixed-capacity table.
#ifndef MXREC_OPS_VARIABLE_UTILS_H_
#define MXREC_OPS_VARIABLE_UTILS_H_

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "op_utils.h"
#include "tensorflow/core/framework/resource_var.h"

namespace mxrec_ops {

using VarRef = tensorflow::core::RefCountPtr<tensorflow::Var>;

using VariableLocks = std::vector<std::unique_ptr<tensorflow::mutex_lock>>;

// Several variables at a time, in an order that all who lock several have.
inline VariableLocks LockAll(std::vector<tensorflow::Var*> variables) {
  std::sort(variables.begin(), variables.end(), std::less<tensorflow::Var*>());
  variables.erase(std::unique(variables.begin(), variables.end()),
                  variables.end());
  VariableLocks locks;
  for (tensorflow::Var* const variable : variables) {
    locks.push_back(std::make_unique<tensorflow::mutex_lock>(*variable->mu()));
  }
  return locks;
}

// Who has read a variable may still hold its buffer; from now on reads copy it,
// as TensorFlow has it for variables of which single rows are written. For the
// holder of the variable's mutex.
inline tensorflow::Status MakeUnshared(tensorflow::OpKernelContext* context,
                                       tensorflow::Var* variable) {
  // A save may have the buffer then, and knows of writes.
  if (variable->copy_on_read_mode.load()) return tensorflow::Status();
  tensorflow::Tensor* const tensor = variable->tensor();
  if (!tensor->RefCountIsOne()) {
    tensorflow::Tensor copy;
    TF_RETURN_IF_ERROR(
        context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
    std::memcpy(copy.flat<float>().data(), tensor->flat<float>().data(),
                tensor->TotalBytes());
    *tensor = copy;
  }
  variable->copy_on_read_mode.store(true);
  return tensorflow::Status();
}

// The variable of resource input `index`, made with rows [capacity, dim] of
// `initial` if it has no value yet.
inline tensorflow::Status GetRowsVariable(tensorflow::OpKernelContext* context,
                                          int index,
                                          const mxrec::TableOptions& options,
                                          float initial, VarRef* variable) {
  const tensorflow::TensorShape shape({options.fixed_capacity, options.dim});
  TF_RETURN_IF_ERROR(tensorflow::LookupOrCreateResource<tensorflow::Var>(
      context, tensorflow::HandleFromInput(context, index), variable,
      [&](tensorflow::Var** created) {
        tensorflow::Tensor rows;
        TF_RETURN_IF_ERROR(
            context->allocate_temp(tensorflow::DT_FLOAT, shape, &rows));
        rows.flat<float>().setConstant(initial);
        *created = new tensorflow::Var(tensorflow::DT_FLOAT);
        *(*created)->tensor() = rows;
        (*created)->is_initialized = true;
        return tensorflow::Status();
      }));
  tensorflow::mutex_lock lock(*(*variable)->mu());
  const tensorflow::Tensor& rows = *(*variable)->tensor();
  if (rows.dtype() == tensorflow::DT_FLOAT && rows.shape() == shape) {
    return tensorflow::Status();
  }
  return tensorflow::errors::FailedPrecondition(
      "table '", options.name, "': its variables must be float ",
      shape.DebugString(), ", got ", tensorflow::DataTypeString(rows.dtype()),
      " ", rows.shape().DebugString());
}

// The rows of a float variable [fixed_capacity, dim], locked and not shared
// with who has read it.
class RowsOfVariable {
 public:
  // Of resource input `index`; made with rows of `initial` if it has no value.
  tensorflow::Status Lock(tensorflow::OpKernelContext* context, int index,
                          const TableRef& table, float initial = 0.0f) {
    TF_RETURN_IF_ERROR(GetRowsVariable(context, index, table->table().options(),
                                       initial, &variable_));
    lock_ = std::make_unique<tensorflow::mutex_lock>(*variable_->mu());
    return MakeUnshared(context, variable_.get());
  }
  float* data() const { return variable_->tensor()->flat<float>().data(); }

 private:
  VarRef variable_;
  std::unique_ptr<tensorflow::mutex_lock> lock_;  // before the variable goes
};

}  // namespace mxrec_ops

#endif  // MXREC_OPS_VARIABLE_UTILS_H_
