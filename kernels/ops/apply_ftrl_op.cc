// MxRecApplyFtrlByAddress: FTRL-proximal on the rows at addresses.
#include "apply_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecApplyFtrlByAddress")
    .Input("handle: resource")
    .Input("addresses: int64")
    .Input("gradients: float")
    .Input("learning_rate: float")
    .Attr("learning_rate_power: float = -0.5")
    .Attr("initial_accumulator_value: float = 0.1")
    .Attr("l1: float = 0.0")
    .Attr("l2: float = 0.0")
    .Attr("l2_shrinkage: float = 0.0")
    .SetIsStateful()
    .SetShapeFn(ApplyByAddressShape)
    .Doc(R"doc(
FTRL-proximal (McMahan et al., 2013) as TensorFlow's sparse FtrlV2 computes it:

  new_accum = accum + g^2;  p = -learning_rate_power
  linear += g + 2 * l2_shrinkage * row
            - (new_accum^p - accum^p) / learning_rate * row
  row = (clip(linear, -l1, l1) - linear)
        / (new_accum^p / learning_rate + 2 * l2)

A row whose denominator is 0 keeps its value.

addresses: [n]; 0 is skipped; gradients of a repeated address are summed first.
gradients: [n, dim].
learning_rate: positive.
learning_rate_power: at most 0.
initial_accumulator_value: of accum, for every row of the table; linear begins
  at 0.
l1, l2, l2_shrinkage: at least 0.
)doc");

class ApplyFtrlOp : public OpKernel {
 public:
  explicit ApplyFtrlOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadFtrlAttrs(context, &params_));
  }

  void Compute(OpKernelContext* context) override {
    ApplyInputs inputs;
    OP_REQUIRES_OK(context, ReadApplyInputs(context, &inputs));
    mxrec::FtrlParams params = params_;
    OP_REQUIRES_OK(context, ReadScalar(context, 3, "learning_rate",
                                       &params.learning_rate));
    OP_REQUIRES_OK(context, ToTf(inputs.table->table().ApplyFtrl(
                                inputs.addresses, inputs.gradients, params,
                                TfParallel(context))));
  }

 private:
  mxrec::FtrlParams params_;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyFtrlByAddress").Device(tensorflow::DEVICE_CPU),
    ApplyFtrlOp);

}  // namespace
}  // namespace mxrec_ops
