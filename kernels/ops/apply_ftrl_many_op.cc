// MxRecApplyFtrlByAddressMany: FTRL-proximal on several tables.
#include "apply_many.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

REGISTER_OP("MxRecApplyFtrlByAddressMany")
    .Input("handles: N * resource")
    .Input("addresses: N * int64")
    .Input("gradients: N * float")
    .Input("learning_rate: float")
    .Attr("N: int >= 1")
    .Attr("learning_rate_power: float = -0.5")
    .Attr("initial_accumulator_value: float = 0.1")
    .Attr("l1: float = 0.0")
    .Attr("l2: float = 0.0")
    .Attr("l2_shrinkage: float = 0.0")
    .SetIsStateful()
    .SetShapeFn(ApplyManyShape)
    .Doc(R"doc(
MxRecApplyFtrlByAddress for each table. If one fails, the others may have been
applied.

handles: distinct tables.
)doc");

struct FtrlMany {
  using Params = mxrec::FtrlParams;

  tensorflow::Status ReadAttrs(tensorflow::OpKernelConstruction* context) {
    return ReadFtrlAttrs(context, &attrs);
  }
  tensorflow::Status ReadScalars(tensorflow::OpKernelContext* context,
                                 int first, Params* params) const {
    *params = attrs;
    return ReadScalar(context, first, "learning_rate", &params->learning_rate);
  }
  static mxrec::Status Apply(mxrec::Table* table, const ApplyInputs& inputs,
                             const Params& params,
                             const mxrec::Parallel& parallel) {
    return table->ApplyFtrl(inputs.addresses, inputs.gradients, params,
                            parallel);
  }

  Params attrs;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyFtrlByAddressMany").Device(tensorflow::DEVICE_CPU),
    ApplyManyOp<FtrlMany>);

}  // namespace
}  // namespace mxrec_ops
