// MxRecApplyLazyAdamByAddress: Adam on the rows at addresses only.
#include "apply_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecApplyLazyAdamByAddress")
    .Input("handle: resource")
    .Input("addresses: int64")
    .Input("gradients: float")
    .Input("learning_rate: float")
    .Input("beta1: float")
    .Input("beta2: float")
    .Input("epsilon: float")
    .SetIsStateful()
    .SetShapeFn(ApplyByAddressShape)
    .Doc(R"doc(
Adam (Kingma and Ba, 2014) in the form of TensorFlow's sparse update, for the
rows of this batch alone. The table's step count t advances once per call:

  lr_t = learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)
  m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
  row -= lr_t * m / (sqrt(v) + epsilon)

addresses: [n]; 0 is skipped; gradients of a repeated address are summed first.
gradients: [n, dim].
)doc");

class ApplyLazyAdamOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    ApplyInputs inputs;
    OP_REQUIRES_OK(context, ReadApplyInputs(context, &inputs));
    mxrec::LazyAdamParams params;
    OP_REQUIRES_OK(context, ReadScalar(context, 3, "learning_rate",
                                       &params.learning_rate));
    OP_REQUIRES_OK(context, ReadScalar(context, 4, "beta1", &params.beta1));
    OP_REQUIRES_OK(context, ReadScalar(context, 5, "beta2", &params.beta2));
    OP_REQUIRES_OK(context, ReadScalar(context, 6, "epsilon", &params.epsilon));
    OP_REQUIRES_OK(context, ToTf(inputs.table->table().ApplyLazyAdam(
                                inputs.addresses, inputs.gradients, params,
                                TfParallel(context))));
  }
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyLazyAdamByAddress").Device(tensorflow::DEVICE_CPU),
    ApplyLazyAdamOp);

}  // namespace
}  // namespace mxrec_ops
