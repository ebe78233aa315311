// MxRecPoolWeightGradient: gradients of the weights of MxRecPool.
#include "pool_utils.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

REGISTER_OP("MxRecPoolWeightGradient")
    .Input("gradients: float")
    .Input("embeddings: float")
    .Input("restore: int32")
    .Input("row_splits: int64")
    .Input("weights: float")
    .Output("weight_gradients: float")
    .Attr("combiner: {'sum', 'mean', 'sqrtn'}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle matrix;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &matrix));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &matrix));
      c->set_output(0, c->input(4));
      return tensorflow::Status();
    })
    .Doc(R"doc(
Gradients of the weights of MxRecPool.

gradients: [b, dim], of pooled.
embeddings: as for MxRecPool.
restore: as for MxRecPool.
row_splits: as for MxRecPool.
weights: as for MxRecPool.
weight_gradients: of the shape of weights; 0 in a row whose divisor is 0.
combiner: as for MxRecPool.
)doc");

class PoolWeightGradientOp : public OpKernel {
 public:
  explicit PoolWeightGradientOp(OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, GetCombiner(context, &combiner_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& gradients = context->input(0);
    const Tensor& embeddings = context->input(1);
    const Tensor& weights = context->input(4);
    mxrec::PoolBatch batch;
    OP_REQUIRES_OK(context, GetPoolBatch(context->input(2), context->input(3),
                                         &weights, combiner_, &batch));
    OP_REQUIRES_OK(context, CheckPooledGradients(gradients, batch));
    OP_REQUIRES_OK(context, CheckMatrix(embeddings, "embeddings"));
    const int64_t dim = embeddings.dim_size(1);
    OP_REQUIRES(context, gradients.dim_size(1) == dim,
                tensorflow::errors::InvalidArgument(
                    "gradients must have the ", dim,
                    " columns of embeddings, got ", gradients.dim_size(1)));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, weights.shape(), &out));
    OP_REQUIRES_OK(context,
                   ToTf(mxrec::PoolWeightGradient(
                       batch, gradients.flat<float>().data(),
                       embeddings.flat<float>().data(), embeddings.dim_size(0),
                       dim, out->flat<float>().data(), TfParallel(context))));
  }

 private:
  mxrec::Combiner combiner_ = mxrec::Combiner::kSum;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecPoolWeightGradient").Device(tensorflow::DEVICE_CPU),
    PoolWeightGradientOp);

}  // namespace
}  // namespace mxrec_ops
