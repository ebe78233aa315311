// Input checks shared by the updates by address.
#ifndef MXREC_OPS_APPLY_UTILS_H_
#define MXREC_OPS_APPLY_UTILS_H_

#include "op_utils.h"

namespace mxrec_ops {

// Inputs 0..2 of an update: handle, addresses [n], gradients [n, dim].
struct ApplyInputs {
  TableRef table;
  mxrec::Span<const int64_t> addresses;
  const float* gradients = nullptr;
};

inline tensorflow::Status ReadApplyInputs(tensorflow::OpKernelContext* context,
                                          ApplyInputs* inputs) {
  TF_RETURN_IF_ERROR(GetTable(context, 0, &inputs->table));
  const tensorflow::Tensor& addresses = context->input(1);
  const tensorflow::Tensor& gradients = context->input(2);
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

}  // namespace mxrec_ops

#endif  // MXREC_OPS_APPLY_UTILS_H_
