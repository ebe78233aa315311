// MxRecRowSplits: where the rows of a sparse tensor begin and end.
#include "pool_utils.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

REGISTER_OP("MxRecRowSplits")
    .Input("indices: int64")
    .Input("num_rows: int64")
    .Output("row_splits: int64")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle indices, scalar;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &indices));
      DimensionHandle columns;
      TF_RETURN_IF_ERROR(c->WithValue(c->Dim(indices, 1), 2, &columns));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &scalar));
      DimensionHandle rows;
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &rows));
      if (c->ValueKnown(rows)) {
        TF_RETURN_IF_ERROR(c->Add(rows, 1, &rows));
      }
      c->set_output(0, c->Vector(rows));
      return tensorflow::Status();
    })
    .Doc(R"doc(
Row splits of a sparse matrix.

indices: [m, 2], of a SparseTensor; its rows must ascend.
num_rows: b, the rows of the matrix.
row_splits: [b + 1]; the values of row i are those from row_splits[i] up to
  row_splits[i + 1].
)doc");

class RowSplitsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& indices = context->input(0);
    const Tensor& num_rows = context->input(1);
    OP_REQUIRES(context, indices.dims() == 2 && indices.dim_size(1) == 2,
                tensorflow::errors::InvalidArgument(
                    "indices must have shape [m, 2], got ",
                    indices.shape().DebugString()));
    OP_REQUIRES_OK(context, CheckScalar(num_rows, "num_rows"));
    const int64_t rows = num_rows.scalar<int64_t>()();
    OP_REQUIRES(context, rows >= 0 && rows <= INT32_MAX,
                tensorflow::errors::InvalidArgument(
                    "num_rows must be in [0, ", INT32_MAX, "], got ", rows));
    Tensor* row_splits = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {rows + 1}, &row_splits));
    OP_REQUIRES_OK(context,
                   ToTf(mxrec::RowSplits(indices.flat<int64_t>().data(),
                                         indices.dim_size(0), 2, rows,
                                         row_splits->flat<int64_t>().data())));
  }
};

REGISTER_KERNEL_BUILDER(Name("MxRecRowSplits").Device(tensorflow::DEVICE_CPU),
                        RowSplitsOp);

}  // namespace
}  // namespace mxrec_ops
