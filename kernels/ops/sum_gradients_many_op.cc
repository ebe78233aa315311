// MxRecSumGradientsMany: from gradients of batches to gradients of rows.
#include <algorithm>

#include "many_utils.h"
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
    OP_REQUIRES_OK(
        context, ForEachTable(context, sizes,
                              [&](int i, const mxrec::Parallel& parallel) {
                                return Sum(
                                    InputSpan<float>(context->input(i)),
                                    InputSpan<int32_t>(context->input(n_ + i)),
                                    i, sums[i], parallel);
                              }));
  }

 private:
  // Each thread has the rows of one remainder: every row is summed in order of
  // position whatever the number of threads, and early rows, which are those of
  // the frequent keys, are shared out.
  Status Sum(mxrec::Span<const float> gradients,
             mxrec::Span<const int32_t> restore, int i, Tensor* sums,
             const mxrec::Parallel& parallel) const {
    const int64_t rows = sums->dim_size(0);
    for (int64_t j = 0; j < restore.size(); ++j) {
      if (restore[j] >= rows) {
        return tensorflow::errors::InvalidArgument(
            "restores[", i, "][", j, "] = ", restore[j],
            " is out of range [0, ", rows, ")");
      }
    }
    float* out = sums->flat<float>().data();
    int64_t parts = 1;  // a power of two: remainders without division
    while (parts < std::min<int64_t>(parallel.threads(), kMaxParts)) parts *= 2;
    parallel.For(parts, restore.size() * (kCostPerRow + dim_) / parts,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t part = begin; part < end; ++part) {
                     AddRows(gradients, restore, part, parts, rows, out);
                   }
                 });
    return Status();
  }

  // The rows with this remainder. A row begins with its first gradient, which
  // saves a pass that clears the sums: positions of distinct ids come in order.
  void AddRows(mxrec::Span<const float> gradients,
               mxrec::Span<const int32_t> restore, int64_t part, int64_t parts,
               int64_t rows, float* out) const {
    int64_t begun = part;  // rows of this part before it have a value
    const auto clear = [&](int64_t end) {
      for (; begun < end; begun += parts) {
        std::fill_n(out + begun * dim_, dim_, 0.0f);
      }
    };
    for (int64_t j = 0; j < restore.size(); ++j) {
      const int64_t row = restore[j];
      if (row < 0 || (row & (parts - 1)) != part) continue;
      const float* __restrict from = gradients.data() + j * dim_;
      float* __restrict to = out + row * dim_;
      if (row < begun) {
        for (int k = 0; k < dim_; ++k) to[k] += from[k];
      } else {
        clear(row);
        for (int k = 0; k < dim_; ++k) to[k] = 0.0f + from[k];  // -0 to 0
        begun = row + parts;
      }
    }
    clear(rows);
  }

  static constexpr int64_t kMaxParts = 8;  // each part reads all positions
  static constexpr int64_t kCostPerRow = 8;

  int n_ = 0;
  int dim_ = 0;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecSumGradientsMany").Device(tensorflow::DEVICE_CPU),
    SumGradientsManyOp);

}  // namespace
}  // namespace mxrec_ops
