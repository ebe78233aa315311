// MxRecPoolGradient: gradients of the embeddings of MxRecPool.
#include "pool_utils.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

REGISTER_OP("MxRecPoolGradient")
    .Input("gradients: float")
    .Input("num_embeddings: int64")
    .Input("restore: int32")
    .Input("row_splits: int64")
    .Input("weights: W * float")
    .Output("sums: float")
    .Attr("W: int >= 0")
    .Attr("combiner: {'sum', 'mean', 'sqrtn'}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle gradients, scalar;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &gradients));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &scalar));
      DimensionHandle rows, num_embeddings;
      TF_RETURN_IF_ERROR(RowsOfSplits(c, c->input(3), &rows));
      TF_RETURN_IF_ERROR(c->Merge(rows, c->Dim(gradients, 0), &rows));
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &num_embeddings));
      c->set_output(0, c->Matrix(num_embeddings, c->Dim(gradients, 1)));
      return tensorflow::Status();
    })
    .Doc(R"doc(
Gradients of the embeddings of MxRecPool.

gradients: [b, dim], of pooled.
num_embeddings: n, the rows of embeddings.
restore: as for MxRecPool.
row_splits: as for MxRecPool.
weights: as for MxRecPool.
sums: [n, dim]; for each embedding the sum over its ids, in order of position,
  of the gradient of the id's row times its weight over the row's divisor. Zeros
  where there is none.
combiner: as for MxRecPool.
)doc");

class PoolGradientOp : public OpKernel {
 public:
  explicit PoolGradientOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetCombiner(context, &combiner_));
    OP_REQUIRES_OK(context, GetIsWeighted(context, &is_weighted_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& gradients = context->input(0);
    const Tensor& count = context->input(1);
    mxrec::PoolBatch batch;
    OP_REQUIRES_OK(context,
                   GetPoolBatch(context->input(2), context->input(3),
                                is_weighted_ ? &context->input(4) : nullptr,
                                combiner_, &batch));
    OP_REQUIRES_OK(context, CheckPooledGradients(gradients, batch));
    OP_REQUIRES_OK(context, CheckScalar(count, "num_embeddings"));
    const int64_t num_embeddings = count.scalar<int64_t>()();
    OP_REQUIRES(context, num_embeddings >= 0 && num_embeddings <= INT32_MAX,
                tensorflow::errors::InvalidArgument(
                    "num_embeddings must be in [0, ", INT32_MAX, "], got ",
                    num_embeddings));
    const int64_t dim = gradients.dim_size(1);
    Tensor* sums = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {num_embeddings, dim}, &sums));
    OP_REQUIRES_OK(
        context, ToTf(mxrec::PoolGradient(
                     batch, gradients.flat<float>().data(), num_embeddings, dim,
                     sums->flat<float>().data(), TfParallel(context))));
  }

 private:
  mxrec::Combiner combiner_ = mxrec::Combiner::kSum;
  bool is_weighted_ = false;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecPoolGradient").Device(tensorflow::DEVICE_CPU), PoolGradientOp);

}  // namespace
}  // namespace mxrec_ops
