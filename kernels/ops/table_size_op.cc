// MxRecTableSize: the size of a table.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecTableSize")
    .Input("handle: resource")
    .Output("size: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Number of keys in the table (reserved rows are not in it).
)doc");

class TableSizeOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    tensorflow::Tensor* value = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &value));
    value->scalar<int64_t>()() = table->table().size();
  }
};

REGISTER_KERNEL_BUILDER(Name("MxRecTableSize").Device(tensorflow::DEVICE_CPU),
                        TableSizeOp);

}  // namespace
}  // namespace mxrec_ops
