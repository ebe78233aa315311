// MxRecTableImport: gives keys the rows that come with them.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

REGISTER_OP("MxRecTableImport")
    .Input("handle: resource")
    .Input("keys: int64")
    .Input("rows: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle keys, rows;
      DimensionHandle number;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &keys));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &rows));
      return c->Merge(c->Dim(keys, 0), c->Dim(rows, 0), &number);
    })
    .Doc(R"doc(
Gives each key the row that comes with it, whatever it had.

Missing keys are inserted, and counted 0 times. The slots of the optimizer begin
anew. Of a key that repeats the last row holds.

keys: [n].
rows: [n, dim], without slots.
)doc");

class TableImportOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    const Tensor& keys = context->input(1);
    const Tensor& rows = context->input(2);
    OP_REQUIRES_OK(context, CheckVector(keys, "keys"));
    const mxrec::TableOptions& options = table->table().options();
    OP_REQUIRES(context,
                rows.dims() == 2 && rows.dim_size(0) == keys.NumElements() &&
                    rows.dim_size(1) == options.dim,
                tensorflow::errors::InvalidArgument(
                    "table '", options.name,
                    "': rows to import must have shape [", keys.NumElements(),
                    ", ", options.dim, "], got ", rows.shape().DebugString()));
    table->ImportBegins();
    const mxrec::Status status =
        table->table().Import(InputSpan<int64_t>(keys),
                              rows.flat<float>().data(), TfParallel(context));
    table->ImportEnds();
    OP_REQUIRES_OK(context, ToTf(status));
  }
};

REGISTER_KERNEL_BUILDER(Name("MxRecTableImport").Device(tensorflow::DEVICE_CPU),
                        TableImportOp);

}  // namespace
}  // namespace mxrec_ops
