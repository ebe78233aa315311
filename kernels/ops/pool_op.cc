// MxRecPool: one row for each row of a ragged batch of ids.
#include "pool_utils.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

REGISTER_OP("MxRecPool")
    .Input("embeddings: float")
    .Input("restore: int32")
    .Input("row_splits: int64")
    .Input("weights: W * float")
    .Output("pooled: float")
    .Attr("W: int >= 0")
    .Attr("combiner: {'sum', 'mean', 'sqrtn'}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle embeddings;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &embeddings));
      DimensionHandle rows;
      TF_RETURN_IF_ERROR(RowsOfSplits(c, c->input(2), &rows));
      c->set_output(0, c->Matrix(rows, c->Dim(embeddings, 1)));
      return tensorflow::Status();
    })
    .Doc(R"doc(
Sums the embeddings of each row of a batch of ids.

embeddings: [n, dim].
restore: of any shape, the row of embeddings that each id leads to.
row_splits: [b + 1]; the ids of row i are those from row_splits[i] up to
  row_splits[i + 1].
weights: none, or one tensor of as many elements as there are ids.
pooled: [b, dim], summed in order of position. With e_j the embeddings of a row
  and w_j their weights, 1 if there are none: sum is the sum of w_j e_j; mean is
  that divided by the sum of w_j; sqrtn is it divided by the square root of the
  sum of w_j^2. Zeros where this divisor is 0, and for a row without ids.
combiner: which of them.
)doc");

class PoolOp : public OpKernel {
 public:
  explicit PoolOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetCombiner(context, &combiner_));
    OP_REQUIRES_OK(context, GetIsWeighted(context, &is_weighted_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& embeddings = context->input(0);
    OP_REQUIRES_OK(context, CheckMatrix(embeddings, "embeddings"));
    mxrec::PoolBatch batch;
    OP_REQUIRES_OK(context,
                   GetPoolBatch(context->input(1), context->input(2),
                                is_weighted_ ? &context->input(3) : nullptr,
                                combiner_, &batch));
    const int64_t dim = embeddings.dim_size(1);
    Tensor* pooled = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {batch.rows(), dim}, &pooled));
    OP_REQUIRES_OK(
        context,
        ToTf(mxrec::Pool(batch, embeddings.flat<float>().data(),
                         embeddings.dim_size(0), dim,
                         pooled->flat<float>().data(), TfParallel(context))));
  }

 private:
  mxrec::Combiner combiner_ = mxrec::Combiner::kSum;
  bool is_weighted_ = false;
};

REGISTER_KERNEL_BUILDER(Name("MxRecPool").Device(tensorflow::DEVICE_CPU),
                        PoolOp);

}  // namespace
}  // namespace mxrec_ops
