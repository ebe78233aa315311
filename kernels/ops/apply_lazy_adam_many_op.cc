// MxRecApplyLazyAdamByAddressMany: LazyAdam on several tables.
#include "apply_many.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

REGISTER_OP("MxRecApplyLazyAdamByAddressMany")
    .Input("handles: N * resource")
    .Input("addresses: N * int64")
    .Input("gradients: N * float")
    .Input("learning_rate: float")
    .Input("beta1: float")
    .Input("beta2: float")
    .Input("epsilon: float")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(ApplyManyShape)
    .Doc(R"doc(
MxRecApplyLazyAdamByAddress for each table. If one fails, the others may have
been applied.

handles: distinct tables.
)doc");

struct LazyAdamMany {
  using Params = mxrec::LazyAdamParams;

  tensorflow::Status ReadAttrs(tensorflow::OpKernelConstruction* /*context*/) {
    return tensorflow::Status();
  }
  tensorflow::Status ReadScalars(tensorflow::OpKernelContext* context,
                                 int first, Params* params) const {
    TF_RETURN_IF_ERROR(
        ReadScalar(context, first, "learning_rate", &params->learning_rate));
    TF_RETURN_IF_ERROR(ReadScalar(context, first + 1, "beta1", &params->beta1));
    TF_RETURN_IF_ERROR(ReadScalar(context, first + 2, "beta2", &params->beta2));
    return ReadScalar(context, first + 3, "epsilon", &params->epsilon);
  }
  static mxrec::Status Apply(mxrec::Table* table, const ApplyInputs& inputs,
                             const Params& params,
                             const mxrec::Parallel& parallel) {
    return table->ApplyLazyAdam(inputs.addresses, inputs.gradients, params,
                                parallel);
  }
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyLazyAdamByAddressMany").Device(tensorflow::DEVICE_CPU),
    ApplyManyOp<LazyAdamMany>);

}  // namespace
}  // namespace mxrec_ops
