// MxRecUnique: unique keys, restore index and counts of a batch of ids.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecUnique")
    .Input("ids: Tids")
    .Output("keys: int64")
    .Output("restore: int32")
    .Output("counts: int32")
    .Attr("Tids: {int32, int64} = DT_INT64")
    .SetShapeFn([](InferenceContext* c) {
      const auto n = c->Vector(c->UnknownDim());
      c->set_output(0, n);
      c->set_output(1, c->input(0));
      c->set_output(2, n);
      return tensorflow::Status();
    })
    .Doc(R"doc(
Unique ids in order of first occurrence.

ids: of any shape.
keys: [n], the distinct ids.
restore: of the shape of ids, the position of each id in keys.
counts: [n], how often each key occurs in ids.
)doc");

template <typename T>
class UniqueOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const tensorflow::Tensor& ids = context->input(0);
    OP_REQUIRES(context, ids.NumElements() <= INT32_MAX,
                tensorflow::errors::InvalidArgument(
                    "ids must have at most ", INT32_MAX, " elements, got ",
                    ids.NumElements()));
    tensorflow::Tensor* restore = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, ids.shape(), &restore));
    std::vector<mxrec::Key> keys;
    std::vector<int32_t> counts;
    mxrec::Unique<T>(InputSpan<T>(ids), &keys, restore->flat<int32_t>().data(),
                     &counts);
    const int64_t n = static_cast<int64_t>(keys.size());
    tensorflow::Tensor* keys_out = nullptr;
    tensorflow::Tensor* counts_out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {n}, &keys_out));
    OP_REQUIRES_OK(context, context->allocate_output(2, {n}, &counts_out));
    std::copy(keys.begin(), keys.end(), keys_out->flat<int64_t>().data());
    std::copy(counts.begin(), counts.end(), counts_out->flat<int32_t>().data());
  }
};

REGISTER_KERNEL_BUILDER(Name("MxRecUnique")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<int32_t>("Tids"),
                        UniqueOp<int32_t>);
REGISTER_KERNEL_BUILDER(Name("MxRecUnique")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<int64_t>("Tids"),
                        UniqueOp<int64_t>);

}  // namespace
}  // namespace mxrec_ops
