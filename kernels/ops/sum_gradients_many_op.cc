// MxRecSumGradientsMany: from gradients of batches to gradients of rows.
#include "many_utils.h"
#include "mxrec/batch_rows.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;

REGISTER_OP("MxRecSumGradientsMany")
    .Input("gradients: N * float")
    .Input("restores: N * int32")
    .Input("keys: N * int64")
    .Output("sums: N * float")
    .Attr("N: int >= 1")
    .Attr("dim: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      int n = 0, dim = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      for (int i = 0; i < n; ++i) {
        ShapeHandle keys;
        TF_RETURN_IF_ERROR(c->WithRank(c->input(2 * n + i), 1, &keys));
        c->set_output(i, c->Matrix(c->Dim(keys, 0), dim));
      }
      return Status();
    })
    .Doc(R"doc(
For each i what UnsortedSegmentSum gives for the rows of gradients[i].

gradients: as many elements as restores[i] times dim, in rows of dim.
restores: of any shapes, the row of the sums that each gradient belongs to; a
  gradient with a negative one is left out.
keys: [n_i]; only their number matters.
sums: [n_i, dim], summed in order of position, zeros where there is no gradient.
)doc");

class SumGradientsManyOp : public OpKernel {
 public:
  explicit SumGradientsManyOp(OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &n_));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<Tensor*> sums(n_);
    std::vector<int64_t> sizes(n_);
    for (int i = 0; i < n_; ++i) {
      const Tensor& gradients = context->input(i);
      sizes[i] = context->input(n_ + i).NumElements();
      OP_REQUIRES(
          context, gradients.NumElements() == sizes[i] * dim_,
          tensorflow::errors::InvalidArgument(
              "gradients[", i, "] must have ", dim_, " elements for each of ",
              sizes[i], " positions, got shape ",
              gradients.shape().DebugString()));
      const int64_t rows = context->input(2 * n_ + i).NumElements();
      OP_REQUIRES_OK(context,
                     context->allocate_output(i, {rows, dim_}, &sums[i]));
    }
    OP_REQUIRES_OK(context,
                   ForEachTable(context, sizes,
                                [&](int i, const mxrec::Parallel& parallel) {
                                  return Sum(context, i, sums[i], parallel);
                                }));
  }

 private:
  Status Sum(OpKernelContext* context, int i, Tensor* sums,
             const mxrec::Parallel& parallel) const {
    const mxrec::Status status = mxrec::SumRows(
        context->input(i).flat<float>().data(),
        InputSpan<int32_t>(context->input(n_ + i)), sums->dim_size(0), dim_,
        sums->flat<float>().data(), parallel);
    if (status.ok()) return Status();
    return tensorflow::errors::InvalidArgument("restores[", i, "]",
                                               status.message());
  }

  int n_ = 0;
  int dim_ = 0;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecSumGradientsMany").Device(tensorflow::DEVICE_CPU),
    SumGradientsManyOp);

}  // namespace
}  // namespace mxrec_ops
