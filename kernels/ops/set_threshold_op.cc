// MxRecSetThreshold: changes the threshold of a table's admission.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecSetThreshold")
    .Input("handle: resource")
    .Input("threshold: int32")
    .Output("in_force: int32")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Sets the count from which on keys of a table with admission get a row.

threshold: of any shape, of which the first element is taken: at least 0; 0 lets
  counts stay as they are, under the threshold of before.
in_force: [], the threshold then.
)doc");

class SetThresholdOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    const tensorflow::Tensor& threshold = context->input(1);
    OP_REQUIRES(context, threshold.NumElements() > 0,
                tensorflow::errors::InvalidArgument(
                    "table '", table->table().options().name,
                    "': the threshold of admission must have an element, got "
                    "shape ",
                    threshold.shape().DebugString()));
    int64_t in_force = 0;
    OP_REQUIRES_OK(context, ToTf(table->table().SetAccessThreshold(
                                threshold.flat<int32_t>()(0), &in_force)));
    tensorflow::Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out));
    out->scalar<int32_t>()() = static_cast<int32_t>(in_force);
  }
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecSetThreshold").Device(tensorflow::DEVICE_CPU), SetThresholdOp);

}  // namespace
}  // namespace mxrec_ops
