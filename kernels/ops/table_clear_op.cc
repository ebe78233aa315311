// MxRecTableClear: a table begins anew.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecTableClear")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return tensorflow::Status(); })
    .Doc(R"doc(
Removes all keys of a table that grows, with their rows, slots and counts.

Keys that come afterwards begin with their initial rows, as in a new table. It
waits for a save of the table under way.
)doc");

class TableClearOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    OP_REQUIRES_OK(context, ToTf(table->table().Clear()));
    table->Replaced();
  }
};

REGISTER_KERNEL_BUILDER(Name("MxRecTableClear").Device(tensorflow::DEVICE_CPU),
                        TableClearOp);

}  // namespace
}  // namespace mxrec_ops
