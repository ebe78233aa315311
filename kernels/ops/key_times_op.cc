// MxRecKeyTimes: the times of a batch's distinct keys.
#include "mxrec/key_times.h"
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecKeyTimes")
    .Input("keys: int64")
    .Input("restore: int32")
    .Input("timestamps: int64")
    .Output("key_times: int64")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle keys;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &keys));
      c->set_output(0, c->Vector(c->UnknownDim()));
      return tensorflow::Status();
    })
    .Doc(R"doc(
When each key of a batch was last seen.

keys: [n], and restore: of any shape, from MxRecUnique.
timestamps: of any shape: one for the batch, or one for each equally long part of
  restore, such as a sample.
key_times: [1] for one timestamp, else [n], the newest of each key's occurrences.
)doc");

class KeyTimesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const tensorflow::Tensor& keys = context->input(0);
    const tensorflow::Tensor& restore = context->input(1);
    const tensorflow::Tensor& timestamps = context->input(2);
    OP_REQUIRES_OK(context, CheckVector(keys, "keys"));
    const bool is_one = timestamps.NumElements() == 1;
    tensorflow::Tensor* key_times = nullptr;
    OP_REQUIRES_OK(
        context, context->allocate_output(0, {is_one ? 1 : keys.NumElements()},
                                          &key_times));
    if (is_one) {
      key_times->flat<int64_t>()(0) = timestamps.flat<int64_t>()(0);
      return;
    }
    OP_REQUIRES_OK(context,
                   ToTf(mxrec::KeyTimes(InputSpan<int32_t>(restore),
                                        InputSpan<int64_t>(timestamps),
                                        OutputSpan<int64_t>(key_times))));
  }
};

REGISTER_KERNEL_BUILDER(Name("MxRecKeyTimes").Device(tensorflow::DEVICE_CPU),
                        KeyTimesOp);

}  // namespace
}  // namespace mxrec_ops
