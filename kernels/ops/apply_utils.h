// Input checks shared by the updates by address.
#ifndef MXREC_OPS_APPLY_UTILS_H_
#define MXREC_OPS_APPLY_UTILS_H_

#include "op_utils.h"

namespace mxrec_ops {

// What an update is given: handle, addresses [n], gradients [n, dim].
struct ApplyInputs {
  TableRef table;
  mxrec::Span<const int64_t> addresses;
  const float* gradients = nullptr;
};

// `first` is the input of the handle, `stride` how far apart the three are.
inline tensorflow::Status ReadApplyInputs(tensorflow::OpKernelContext* context,
                                          ApplyInputs* inputs, int first = 0,
                                          int stride = 1) {
  TF_RETURN_IF_ERROR(GetTable(context, first, &inputs->table));
  const tensorflow::Tensor& addresses = context->input(first + stride);
  const tensorflow::Tensor& gradients = context->input(first + 2 * stride);
  TF_RETURN_IF_ERROR(CheckVector(addresses, "addresses"));
  const mxrec::TableOptions& options = inputs->table->table().options();
  if (gradients.dims() != 2 ||
      gradients.dim_size(0) != addresses.NumElements()) {
    return tensorflow::errors::InvalidArgument(
        "gradient rows must equal address rows: table '", options.name,
        "' got ", addresses.NumElements(), " addresses and gradients of shape ",
        gradients.shape().DebugString());
  }
  if (gradients.dim_size(1) != options.dim) {
    return tensorflow::errors::InvalidArgument(
        "gradient columns must equal the dim of table '", options.name,
        "': expected ", options.dim, ", got ", gradients.dim_size(1));
  }
  inputs->addresses = InputSpan<int64_t>(addresses);
  inputs->gradients = gradients.flat<float>().data();
  return tensorflow::Status();
}

// The value of scalar float input `index`.
inline tensorflow::Status ReadScalar(tensorflow::OpKernelContext* context,
                                     int index, const char* what,
                                     float* value) {
  const tensorflow::Tensor& tensor = context->input(index);
  TF_RETURN_IF_ERROR(CheckScalar(tensor, what));
  *value = tensor.scalar<float>()();
  return tensorflow::Status();
}

// A float attribute that must be at least 0.
inline tensorflow::Status ReadNonNegative(
    tensorflow::OpKernelConstruction* context, const char* attribute,
    float* value) {
  TF_RETURN_IF_ERROR(context->GetAttr(attribute, value));
  if (*value >= 0) return tensorflow::Status();
  return tensorflow::errors::InvalidArgument(
      attribute, " must not be negative, got ", *value);
}

inline tensorflow::Status ReadFtrlAttrs(
    tensorflow::OpKernelConstruction* context, mxrec::FtrlParams* params) {
  TF_RETURN_IF_ERROR(
      context->GetAttr("learning_rate_power", &params->learning_rate_power));
  if (params->learning_rate_power > 0) {
    return tensorflow::errors::InvalidArgument(
        "learning_rate_power must not be positive, got ",
        params->learning_rate_power);
  }
  TF_RETURN_IF_ERROR(ReadNonNegative(context, "initial_accumulator_value",
                                     &params->initial_accumulator_value));
  TF_RETURN_IF_ERROR(ReadNonNegative(context, "l1", &params->l1));
  TF_RETURN_IF_ERROR(ReadNonNegative(context, "l2", &params->l2));
  return ReadNonNegative(context, "l2_shrinkage", &params->l2_shrinkage);
}

}  // namespace mxrec_ops

#endif  // MXREC_OPS_APPLY_UTILS_H_
