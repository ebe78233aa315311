// MxRecApplySgdByAddressMany: gradient descent on several tables.
#include "apply_many.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

REGISTER_OP("MxRecApplySgdByAddressMany")
    .Input("handles: N * resource")
    .Input("addresses: N * int64")
    .Input("gradients: N * float")
    .Input("learning_rate: float")
    .Attr("N: int >= 1")
    .Attr("weight_decay: float = 0.0")
    .SetIsStateful()
    .SetShapeFn(ApplyManyShape)
    .Doc(R"doc(
MxRecApplySgdByAddress for each table. If one fails, the others may have been
applied.

handles: distinct tables.
)doc");

struct SgdMany {
  using Params = mxrec::SgdParams;

  tensorflow::Status ReadAttrs(tensorflow::OpKernelConstruction* context) {
    return context->GetAttr("weight_decay", &weight_decay);
  }
  tensorflow::Status ReadScalars(tensorflow::OpKernelContext* context,
                                 int first, Params* params) const {
    params->weight_decay = weight_decay;
    return ReadScalar(context, first, "learning_rate", &params->learning_rate);
  }
  static mxrec::Status Apply(mxrec::Table* table, const ApplyInputs& inputs,
                             const Params& params,
                             const mxrec::Parallel& parallel) {
    return table->ApplySgd(inputs.addresses, inputs.gradients, params,
                           parallel);
  }

  float weight_decay = 0;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplySgdByAddressMany").Device(tensorflow::DEVICE_CPU),
    ApplyManyOp<SgdMany>);

}  // namespace
}  // namespace mxrec_ops
