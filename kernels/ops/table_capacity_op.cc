// MxRecTableCapacity: the capacity of a table.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecTableCapacity")
    .Input("handle: resource")
    .Output("capacity: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Number of rows the table holds without asking for more memory.
)doc");

class TableCapacityOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    tensorflow::Tensor* value = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &value));
    value->scalar<int64_t>()() = table->table().capacity();
  }
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecTableCapacity").Device(tensorflow::DEVICE_CPU), TableCapacityOp);

}  // namespace
}  // namespace mxrec_ops
