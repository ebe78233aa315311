// MxRecLookAhead: address hints for a batch that is trained later.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecLookAhead")
    .Input("handle: resource")
    .Input("keys: int64")
    .Output("hints: int64")
    .Attr("reserve: bool = false")
    .SetIsStateful()
    .SetShapeFn(KeysToAddressesShape)
    .Doc(R"doc(
Address hints for MxRecFindOrInsert and MxRecFind at a later step.

keys: [n].
reserve: also prepare the row of a missing key. Nothing observes it before
  MxRecFindOrInsert meets the key.
hints: [n], 0 where there is no row.
)doc");

class LookAheadOp : public OpKernel {
 public:
  explicit LookAheadOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("reserve", &reserve_));
  }

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    const tensorflow::Tensor& keys = context->input(1);
    OP_REQUIRES_OK(context, CheckVector(keys, "keys"));
    tensorflow::Tensor* hints = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, keys.shape(), &hints));
    OP_REQUIRES_OK(context,
                   ToTf(table->table().LookAhead(
                       InputSpan<int64_t>(keys), reserve_,
                       OutputSpan<int64_t>(hints), TfParallel(context))));
  }

 private:
  bool reserve_ = false;
};

REGISTER_KERNEL_BUILDER(Name("MxRecLookAhead").Device(tensorflow::DEVICE_CPU),
                        LookAheadOp);

}  // namespace
}  // namespace mxrec_ops
