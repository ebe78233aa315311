// MxRecApplyAdagradByAddress: Adagrad on the rows at addresses.
#include "apply_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecApplyAdagradByAddress")
    .Input("handle: resource")
    .Input("addresses: int64")
    .Input("gradients: float")
    .Input("learning_rate: float")
    .Attr("initial_accumulator_value: float = 0.9")
    .SetIsStateful()
    .SetShapeFn(ApplyByAddressShape)
    .Doc(R"doc(
Adagrad (Duchi et al., 2011) with a small epsilon:

  s += g^2;  row -= learning_rate * g / sqrt(s + 1e-7)

addresses: [n]; 0 is skipped; gradients of a repeated address are summed first.
gradients: [n, dim].
initial_accumulator_value: of s, for every row of the table.
)doc");

class ApplyAdagradOp : public OpKernel {
 public:
  explicit ApplyAdagradOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context,
                   ReadNonNegative(context, "initial_accumulator_value",
                                   &params_.initial_accumulator_value));
  }

  void Compute(OpKernelContext* context) override {
    ApplyInputs inputs;
    OP_REQUIRES_OK(context, ReadApplyInputs(context, &inputs));
    mxrec::AdagradParams params = params_;
    OP_REQUIRES_OK(context, ReadScalar(context, 3, "learning_rate",
                                       &params.learning_rate));
    OP_REQUIRES_OK(context, ToTf(inputs.table->table().ApplyAdagrad(
                                inputs.addresses, inputs.gradients, params,
                                TfParallel(context))));
  }

 private:
  mxrec::AdagradParams params_;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyAdagradByAddress").Device(tensorflow::DEVICE_CPU),
    ApplyAdagradOp);

}  // namespace
}  // namespace mxrec_ops
