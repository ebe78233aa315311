// MxRecApplySgdByAddress: gradient descent on the rows at addresses.
#include "apply_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecApplySgdByAddress")
    .Input("handle: resource")
    .Input("addresses: int64")
    .Input("gradients: float")
    .Input("learning_rate: float")
    .Attr("weight_decay: float = 0.0")
    .SetIsStateful()
    .SetShapeFn(ApplyByAddressShape)
    .Doc(R"doc(
row -= learning_rate * (gradient + weight_decay * row).

addresses: [n]; 0 is skipped; gradients of a repeated address are summed first.
gradients: [n, dim].
)doc");

class ApplySgdOp : public OpKernel {
 public:
  explicit ApplySgdOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("weight_decay", &weight_decay_));
  }

  void Compute(OpKernelContext* context) override {
    ApplyInputs inputs;
    OP_REQUIRES_OK(context, ReadApplyInputs(context, &inputs));
    mxrec::SgdParams params;
    params.weight_decay = weight_decay_;
    OP_REQUIRES_OK(context, ReadScalar(context, 3, "learning_rate",
                                       &params.learning_rate));
    OP_REQUIRES_OK(context, ToTf(inputs.table->table().ApplySgd(
                                inputs.addresses, inputs.gradients, params,
                                TfParallel(context))));
  }

 private:
  float weight_decay_ = 0;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplySgdByAddress").Device(tensorflow::DEVICE_CPU), ApplySgdOp);

}  // namespace
}  // namespace mxrec_ops
