// The variables of a table of fixed capacity: its rows, the slots of its
// optimizer and that optimizer's step count. They come into being when they are
// first needed, or are restored.
#ifndef MXREC_OPS_TABLE_VARIABLES_H_
#define MXREC_OPS_TABLE_VARIABLES_H_

#include <cstring>
#include <memory>
#include <vector>

#include "op_utils.h"
#include "variable_utils.h"

namespace mxrec_ops {

// The step count of input `index`, made as 0 if it has no value yet.
inline tensorflow::Status GetStepVariable(tensorflow::OpKernelContext* context,
                                          int index, VarRef* variable) {
  TF_RETURN_IF_ERROR(tensorflow::LookupOrCreateResource<tensorflow::Var>(
      context, tensorflow::HandleFromInput(context, index), variable,
      [](tensorflow::Var** created) {
        *created = new tensorflow::Var(tensorflow::DT_INT64);
        tensorflow::Tensor steps(tensorflow::DT_INT64, {});
        steps.scalar<int64_t>()() = 0;
        *(*created)->tensor() = steps;
        (*created)->is_initialized = true;
        return tensorflow::Status();
      }));
  tensorflow::mutex_lock lock(*(*variable)->mu());
  const tensorflow::Tensor& steps = *(*variable)->tensor();
  if (steps.dtype() == tensorflow::DT_INT64 && steps.dims() == 0) {
    return tensorflow::Status();
  }
  return tensorflow::errors::InvalidArgument(
      "a step count must be an int64 scalar, got ",
      tensorflow::DataTypeString(steps.dtype()), " ",
      steps.shape().DebugString());
}

// All variables of a table, from the inputs of an op at `first`: rows and
// slots, then at most one step count. Hold() keeps everybody else from them
// while this lives; Share() lets others go on.
class TableVariables {
 public:
  tensorflow::Status Get(tensorflow::OpKernelContext* context, int first,
                         int num_rows, int num_steps,
                         const mxrec::TableOptions& options,
                         const std::vector<float>& slot_initials) {
    dim_ = options.dim;
    if (options.fixed_capacity == 0
            ? num_rows != 0
            : num_rows != 1 + static_cast<int>(slot_initials.size())) {
      return tensorflow::errors::InvalidArgument(
          "table '", options.name, "': ", num_rows,
          " variables do not go with ", slot_initials.size(),
          " slots and capacity ", options.fixed_capacity);
    }
    for (int i = 0; i < num_rows; ++i) {
      VarRef variable;
      TF_RETURN_IF_ERROR(GetRowsVariable(context, first + i, options,
                                         i == 0 ? 0.0f : slot_initials[i - 1],
                                         &variable));
      rows_.push_back(std::move(variable));
    }
    for (int i = 0; i < num_steps; ++i) {
      VarRef variable;
      TF_RETURN_IF_ERROR(
          GetStepVariable(context, first + num_rows + i, &variable));
      steps_.push_back(std::move(variable));
    }
    return tensorflow::Status();
  }

  void Hold() {
    std::vector<tensorflow::Var*> variables;
    for (const VarRef& variable : rows_) variables.push_back(variable.get());
    for (const VarRef& variable : steps_) variables.push_back(variable.get());
    locks_ = LockAll(std::move(variables));
  }
  // Keeps the buffers as they are but for writes of single rows: who changes
  // more gives the variable another buffer, as TensorFlow's ops do while reads
  // copy.
  tensorflow::Status Share(tensorflow::OpKernelContext* context) {
    for (const VarRef& variable : rows_) {
      tensorflow::mutex_lock lock(*variable->mu());
      TF_RETURN_IF_ERROR(MakeUnshared(context, variable.get()));
      shared_.push_back(*variable->tensor());
    }
    return tensorflow::Status();
  }
  int64_t ReadSteps() const {
    if (steps_.empty()) return 0;
    tensorflow::tf_shared_lock lock(*steps_[0]->mu());
    return steps();
  }
  void Release() {
    shared_.clear();
    locks_.clear();
  }

  // Rows [n, dim * variables]. Needs Hold() or Share().
  void Read(mxrec::Span<const mxrec::RowIndex> offsets, float* out) const {
    const int64_t stride = dim_ * static_cast<int64_t>(rows_.size());
    for (size_t v = 0; v < rows_.size(); ++v) {
      const tensorflow::Tensor& rows =
          shared_.empty() ? *rows_[v]->tensor() : shared_[v];
      const float* const from = rows.flat<float>().data();
      for (int64_t i = 0; i < offsets.size(); ++i) {
        std::memcpy(out + i * stride + v * dim_, from + offsets[i] * dim_,
                    dim_ * sizeof(float));
      }
    }
  }

  // The methods below need Hold().
  tensorflow::Status MakeWritable(tensorflow::OpKernelContext* context) {
    for (const VarRef& variable : rows_) {
      TF_RETURN_IF_ERROR(MakeUnshared(context, variable.get()));
    }
    return tensorflow::Status();
  }
  void Write(mxrec::Span<const mxrec::RowIndex> offsets, const float* in) {
    const int64_t stride = dim_ * static_cast<int64_t>(rows_.size());
    for (size_t v = 0; v < rows_.size(); ++v) {
      float* const to = rows_[v]->tensor()->flat<float>().data();
      for (int64_t i = 0; i < offsets.size(); ++i) {
        std::memcpy(to + offsets[i] * dim_, in + i * stride + v * dim_,
                    dim_ * sizeof(float));
      }
    }
  }
  // Slots of the rows from `begin` on begin anew.
  void ResetSlots(int64_t begin, const std::vector<float>& slot_initials) {
    for (size_t v = 1; v < rows_.size(); ++v) {
      auto values = rows_[v]->tensor()->flat<float>();
      std::fill(values.data() + begin * dim_, values.data() + values.size(),
                slot_initials[v - 1]);
    }
  }
  int64_t steps() const {
    return steps_.empty() ? 0 : steps_[0]->tensor()->scalar<int64_t>()();
  }
  void SetSteps(int64_t steps) {
    if (steps_.empty()) return;
    tensorflow::Tensor value(tensorflow::DT_INT64, {});
    value.scalar<int64_t>()() = steps;
    *steps_[0]->tensor() = value;
  }

 private:
  int64_t dim_ = 0;
  std::vector<VarRef> rows_;
  std::vector<VarRef> steps_;
  std::vector<tensorflow::Tensor> shared_;  // buffers of rows_
  // Last, so that the locks go before what they lock.
  VariableLocks locks_;
};

}  // namespace mxrec_ops

#endif  // MXREC_OPS_TABLE_VARIABLES_H_
