// MxRecForward: hands on one output of an op that has several.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecForward")
    .Input("tensor: T")
    .Output("forwarded: T")
    .Attr("T: {float, int64}")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
The tensor as it is.

It stands between MxRecLookUpMany and whatever reads or waits for one of its
outputs. Being stateful it is not optimized away where nobody needs the value, so
that whether it runs says whether that output is wanted.
)doc");

class ForwardOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    context->set_output(0, context->input(0));
  }
  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("MxRecForward").Device(tensorflow::DEVICE_CPU),
                        ForwardOp);

}  // namespace
}  // namespace mxrec_ops
