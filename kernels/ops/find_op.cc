// MxRecFind: the addresses of a batch's keys, without inserting.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecFind")
    .Input("handle: resource")
    .Input("keys: int64")
    .Input("hints: int64")
    .Output("addresses: int64")
    .Attr("max_keys: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(KeysToAddressesShape)
    .Doc(R"doc(
Addresses of keys, 0 where the table has no row. Never inserts or counts.

keys: [n].
hints: [n] or [0], addresses found ahead of time by MxRecLookAhead. A hint that
  is not the current address of its key is ignored.
max_keys: the largest number of keys a batch may have, 0 for any; more are an
  error that names the table, and nothing is looked up.
addresses: [n].
)doc");

class FindOp : public OpKernel {
 public:
  explicit FindOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("max_keys", &max_keys_));
  }

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetFilledTable(context, 0, &table));
    const tensorflow::Tensor& keys = context->input(1);
    const tensorflow::Tensor& hints = context->input(2);
    OP_REQUIRES_OK(context, CheckVector(keys, "keys"));
    OP_REQUIRES_OK(context,
                   CheckNumberOfKeys(keys.NumElements(), max_keys_, table));
    OP_REQUIRES_OK(context,
                   CheckVectorOrEmpty(hints, keys.NumElements(), "hints"));
    OP_REQUIRES_OK(context, HoldRowsForStep(context, table));
    tensorflow::Tensor* addresses = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, keys.shape(), &addresses));
    OP_REQUIRES_OK(context,
                   ToTf(table->table().Find(
                       InputSpan<int64_t>(keys), InputSpan<int64_t>(hints),
                       OutputSpan<int64_t>(addresses), TfParallel(context))));
  }

 private:
  int64_t max_keys_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("MxRecFind").Device(tensorflow::DEVICE_CPU),
                        FindOp);

}  // namespace
}  // namespace mxrec_ops
