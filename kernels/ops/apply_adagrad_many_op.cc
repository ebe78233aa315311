// MxRecApplyAdagradByAddressMany: Adagrad on several tables.
#include "apply_many.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

REGISTER_OP("MxRecApplyAdagradByAddressMany")
    .Input("handles: N * resource")
    .Input("addresses: N * int64")
    .Input("gradients: N * float")
    .Input("learning_rate: float")
    .Attr("N: int >= 1")
    .Attr("initial_accumulator_value: float = 0.9")
    .SetIsStateful()
    .SetShapeFn(ApplyManyShape)
    .Doc(R"doc(
MxRecApplyAdagradByAddress for each table. If one fails, the others may have
been applied.

handles: distinct tables.
)doc");

struct AdagradMany {
  using Params = mxrec::AdagradParams;

  tensorflow::Status ReadAttrs(tensorflow::OpKernelConstruction* context) {
    return ReadNonNegative(context, "initial_accumulator_value",
                           &attrs.initial_accumulator_value);
  }
  tensorflow::Status ReadScalars(tensorflow::OpKernelContext* context,
                                 int first, Params* params) const {
    *params = attrs;
    return ReadScalar(context, first, "learning_rate", &params->learning_rate);
  }
  static mxrec::Status Apply(mxrec::Table* table, const ApplyInputs& inputs,
                             const Params& params,
                             const mxrec::Parallel& parallel) {
    return table->ApplyAdagrad(inputs.addresses, inputs.gradients, params,
                               parallel);
  }

  Params attrs;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyAdagradByAddressMany").Device(tensorflow::DEVICE_CPU),
    ApplyManyOp<AdagradMany>);

}  // namespace
}  // namespace mxrec_ops
